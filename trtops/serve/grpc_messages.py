"""Messages of the gRPC interface, made from its compiled description, and the bytes of answers.

The description lies in a pool of its own, so that it never meets the same names in the default pool (tritonclient's,
when both are in one process) and needs no code that is bound to one version of protobuf.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SERVICE: Final = "inference.GRPCInferenceService"
DESCRIPTION: Final = Path(__file__).parent / "protocol" / "open_inference.binpb"

_LENGTH_DELIMITED: Final = 2


@cache
def messages() -> Mapping[str, Any]:
    """Name (without its package) -> class, of all top-level messages."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTION.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{message.name}"))
        for file in files.file
        for message in file.message_type
    }


def varint(number: int) -> bytes:
    """A number of 0 or more as protobuf writes it."""
    if number < 128:  # noqa: PLR2004 - seven bits a byte
        return bytes((number,))
    out = bytearray()
    while number > 127:  # noqa: PLR2004 - seven bits a byte
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, data: bytes) -> bytes:
    """A field of bytes, text, a message or packed numbers."""
    return b"%b%b%b" % (varint(number << 3 | _LENGTH_DELIMITED), varint(len(data)), data)


def number_field(number: int, value: int) -> bytes:
    """A field of a whole number of 0 or more."""
    return varint(number << 3) + varint(value)


def packed(number: int, values: Iterable[int]) -> bytes:
    """A field of whole numbers of 0 or more."""
    return field(number, b"".join(map(varint, values)))


def status_details(code: int, message: str, retry_after: float) -> bytes:
    """``google.rpc.Status`` with a ``RetryInfo``, as clients read it off the trailer ``grpc-status-details-bin``.

    Args:
        code: of the status.
        message: of the status.
        retry_after: seconds after which to try again.
    """
    seconds, rest = divmod(round(retry_after * 1e9), 10**9)
    info = field(1, number_field(1, seconds) + number_field(2, rest))
    wrapped = field(1, b"type.googleapis.com/google.rpc.RetryInfo") + field(2, info)
    return number_field(1, code) + field(2, message.encode()) + field(3, wrapped)
