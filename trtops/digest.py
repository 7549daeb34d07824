"""Canonical bytes of a value and typed digests of bytes.

A value's digest is the SHA-256 of its canonical JSON (RFC 8785, by the library ``rfc8785``): sorted keys, no
spaces, one way to write a number. Law: ``Digest.parse(str(d)) == d``, and equal values have equal digests on every
machine and Python version.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer
from pydantic_core import core_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue

_PATTERN = re.compile(r"(sha256):([0-9a-f]{64})")
_CHUNK = 1 << 18
"""Bytes that are read at once: a buffer that stays in a core's second cache, and is made once."""


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """An algorithm and a value in lower-case hexadecimal, written ``sha256:…``."""

    algorithm: str
    value: str

    def __post_init__(self) -> None:
        """Refuse anything but an algorithm that is known with a value of its length."""
        if not _PATTERN.fullmatch(f"{self.algorithm}:{self.value}"):
            message = (
                f"not a digest: {self.algorithm}:{self.value[:80]} (expected sha256: and 64 lower-case hex digits)"
            )
            raise ValueError(message)

    def __str__(self) -> str:
        """Render as ``sha256:…``."""
        return f"{self.algorithm}:{self.value}"

    @property
    def short(self) -> str:
        """The first twelve digits, for people."""
        return self.value[:12]

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Read ``sha256:…``.

        Raises:
            ValueError: the text is anything else.
        """
        algorithm, _, value = text.partition(":")
        return cls(algorithm, value)

    @classmethod
    def of_bytes(cls, data: bytes | memoryview) -> Digest:
        """Digest of bytes in memory."""
        return cls("sha256", hashlib.sha256(data).hexdigest())

    @classmethod
    def of_chunks(cls, chunks: Iterable[bytes]) -> Digest:
        """Digest of bytes that come in pieces."""
        state = hashlib.sha256()
        for chunk in chunks:
            state.update(chunk)
        return cls("sha256", state.hexdigest())

    @classmethod
    def of_file(cls, path: Path) -> Digest:
        """Digest of a file, which is read through one buffer.

        Raises:
            OSError: the file cannot be read.
        """
        state, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK))
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                state.update(buffer[:count])
        return cls("sha256", state.hexdigest())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Validate from its text or itself; serialise as its text."""
        del source, handler
        convert: Callable[[Any], Digest] = lambda value: value if isinstance(value, cls) else cls.parse(str(value))  # noqa: E731
        return core_schema.no_info_plain_validator_function(
            convert, serialization=core_schema.plain_serializer_function_ser_schema(str, when_used="always")
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe the text form."""
        del schema, handler
        return {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}


def canonical(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Write a JSON value in its one canonical form (RFC 8785).

    Raises:
        ValueError: a number that JSON cannot carry exactly (NaN, infinity, an integer beyond 2**53 - 1).
    """
    plain = _plain(value)
    if plain is not None:
        return plain
    import rfc8785

    return rfc8785.dumps(value)


# Numbers that JSON libraries write in other ways than RFC 8785 does: 1.0, 1e-05, and what needs more than 15 digits.
_OTHERWISE = re.compile(r"(?<=[:\[,])-?(?:\d+(?:\.0|(?:\.\d+)?[eE][-+]?\d+)|\d{16,})(?=[,}\]])")


def _plain(value: Any) -> bytes | None:  # noqa: ANN401 - any JSON value
    """The same by the standard library's encoder, twenty times as fast; None where that could differ in a byte.

    Equal by construction: keys and text are ASCII (so that they sort alike and are escaped alike), no number is one
    that is written otherwise, and reading it back gives the very value (so no key was turned into text).
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        same = text[0] in "{[" and text.isascii() and not _OTHERWISE.search(text) and json.loads(text) == value
    except (TypeError, ValueError, RecursionError):
        return None  # the other one says what is wrong
    return text.encode("ascii") if same else None


def digest_of(value: Any) -> Digest:  # noqa: ANN401 - any JSON value
    """Digest of a JSON value's canonical form."""
    return Digest.of_bytes(canonical(value))


class Value(BaseModel):
    """Base of every value that flows between stages: frozen, closed, with canonical bytes and a digest."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", protected_namespaces=())

    def canonical_bytes(self) -> bytes:
        """Canonical JSON of this value. Law: ``type(v).model_validate_json(v.canonical_bytes()) == v``."""
        return canonical(self.model_dump(mode="json"))

    def digest(self) -> Digest:
        """Digest of the canonical bytes."""
        return Digest.of_bytes(self.canonical_bytes())


class Grown(Value):
    """Base of a value that got fields after documents of it were released, which ``later`` names.

    They are left out where they say nothing new: the digests of those documents hold for ever, and who knows no such
    field reads them.
    """

    later: ClassVar[tuple[str, ...]] = ()

    # With no annotation pydantic's JSON Schema stays that of the fields.
    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def] # noqa: ANN202
        fields: dict[str, Any] = handler(self)
        known = type(self).model_fields
        for name in self.later:
            if getattr(self, name) == known[name].get_default(call_default_factory=True):
                fields.pop(name, None)
        return fields
