"""A small client for one inference, on the standard library. Services use tritonclient or their own."""

from __future__ import annotations

import http.client
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec

from trtops.errors import DeadlineExceeded, InputError, Overloaded, TrtopsError, Unavailable
from trtops.serve import elements
from trtops.tensor import DTYPES, OIP_TO_NUMPY, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

_MAX_ANSWER = 1 << 30
_OK = 200


@dataclass(frozen=True, slots=True)
class Model:
    """What a server says of an engine. A dynamic dimension is named ``dim<axis>``."""

    name: str
    version: str
    platform: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


def describe(url: str, engine: str, *, timeout: float = 30.0) -> Model:
    """Ask a server for an engine's tensors.

    Args:
        url: ``http://host:port``.
        engine: its name.
        timeout: seconds.

    Raises:
        InputError: the URL is none, or the engine is not served there.
        Unavailable: the server is not there, not ready, or speaks another protocol.
    """
    _, body = _call(url, "GET", f"/v2/models/{quote(engine, safe='')}", None, {}, timeout)
    try:
        document = msgspec.json.decode(body)
        return Model(
            str(document["name"]),
            str(document["versions"][-1]),
            str(document["platform"]),
            tuple(_tensor(tensor) for tensor in document["inputs"]),
            tuple(_tensor(tensor) for tensor in document["outputs"]),
        )
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        raise _foreign(url, error) from None


def fetch(url: str, path: str, *, timeout: float = 30.0) -> bytes:
    """Read a page of a server.

    Args:
        url: ``http://host:port``.
        path: of the page.
        timeout: seconds.

    Raises:
        InputError: the URL is none, or the page is not there.
        Unavailable: the server is not there.
    """
    return _call(url, "GET", path, None, {}, timeout)[1]


def _tensor(document: Mapping[str, Any]) -> TensorInfo:
    shape = tuple(int(dim) if dim >= 0 else f"dim{axis}" for axis, dim in enumerate(document["shape"]))
    return TensorInfo(name=document["name"], dtype=OIP_TO_NUMPY[document["datatype"]], shape=shape)


def infer(
    url: str,
    engine: str,
    inputs: Mapping[str, Array],
    *,
    binary: bool = True,
    model: Model | None = None,
    timeout: float = 60.0,
) -> dict[str, Array]:
    """Run one inference.

    Args:
        url: ``http://host:port``.
        engine: its name.
        inputs: name -> array; its element type is what is sent, unless ``model`` says otherwise.
        binary: whether tensors travel as bytes or as JSON numbers, both ways.
        model: what :func:`describe` gave; tells bfloat16 from uint16.
        timeout: seconds for the whole call's each step.

    Returns:
        output's name -> array.

    Raises:
        InputError: the URL, a name, an element type or a shape is wrong; the message names the tensor.
        Overloaded: the server's queue is full.
        DeadlineExceeded: it was not served in time.
        Unavailable: the server is not there, not ready, or speaks another protocol.
    """
    names = {tensor.name: tensor.dtype for tensor in model.inputs} if model else {}
    described: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for name, array in inputs.items():
        dtype = names.get(name) or _dtype(name, array)
        tensor: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": DTYPES[dtype][0]}
        text = None if binary else elements.to_json(array, dtype)
        if text is None:
            tail.append(elements.to_binary(array, dtype))
            tensor["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            tensor["data"] = msgspec.Raw(text)
        described.append(tensor)
    head = msgspec.json.encode({"inputs": described, "parameters": {"binary_data_output": binary}})
    headers = {"Inference-Header-Content-Length": str(len(head))} if tail else {}
    path = f"/v2/models/{quote(engine, safe='')}/infer"
    length, body = _call(url, "POST", path, b"".join((head, *tail)), headers, timeout)
    try:
        return _outputs(body, length)
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, struct.error, TrtopsError) as error:
        raise _foreign(url, error) from None


def _dtype(name: str, array: Array) -> str:
    if array.dtype.kind in "OUS":
        return "string"
    dtype = str(array.dtype.name)
    if dtype not in DTYPES:
        raise InputError(f"input '{name}': element type {dtype} has no name in the protocol")
    return dtype


def _outputs(body: bytes, length: int | None) -> dict[str, Array]:
    at = len(body) if length is None else length
    document = msgspec.json.decode(body[:at])
    outputs: dict[str, Array] = {}
    for tensor in document["outputs"]:
        name, dtype, shape = tensor["name"], OIP_TO_NUMPY[tensor["datatype"]], tuple(tensor["shape"])
        size = tensor.get("parameters", {}).get("binary_data_size")
        if size is None:
            data = msgspec.Raw(msgspec.json.encode(tensor["data"]))
            outputs[name] = elements.from_json(data, dtype, shape, name)
        else:
            if not 0 <= size <= len(body) - at:
                raise ValueError(f"output '{name}' is cut short")
            outputs[name] = elements.from_binary(body, at, size, dtype, shape, name)
            at += size
    return outputs


def get(url: str, path: str, *, timeout: float = 10.0) -> bytes:
    """What a server answers at a path.

    Args:
        url: ``http://host:port``.
        path: absolute.
        timeout: seconds for each step of the call.

    Raises:
        InputError: the URL is none, or there is nothing at that path.
        Unavailable: the server is not there, or not ready.
    """
    return _call(url, "GET", path, None, {}, timeout)[1]


def _call(
    url: str, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout: float
) -> tuple[int | None, bytes]:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme != "http" or not parts.hostname or port == -1:
        raise InputError(f"'{url}' is no address of a server", fix="write http://host:port")
    connection = http.client.HTTPConnection(parts.hostname, port, timeout=timeout)
    try:
        connection.request(method, parts.path.rstrip("/") + path, body, dict(headers))
        answer = connection.getresponse()
        data = answer.read(_MAX_ANSWER)
    except TimeoutError:
        raise DeadlineExceeded(f"no answer within {timeout:g} s", where=url) from None
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"cannot talk to the server: {str(error) or type(error).__name__}",
            where=url,
            fix="start it with trtops serve",
        ) from None
    finally:
        connection.close()
    if answer.status != _OK:
        raise _error(answer.status, data, answer.getheader("Retry-After"), url)
    length = answer.getheader("Inference-Header-Content-Length")
    return (int(length) if length is not None and length.isdigit() else None), data


def _error(status: int, body: bytes, after: str | None, url: str) -> TrtopsError:
    try:
        message = str(msgspec.json.decode(body)["error"])
    except (msgspec.DecodeError, LookupError, TypeError):
        message = f"the server answered with status {status}"
    if status == 429:  # noqa: PLR2004 - HTTP's own number
        return Overloaded(message, where=url, retry_after=float(after) if after and after.isdigit() else 1.0)
    if status == 504:  # noqa: PLR2004 - HTTP's own number
        return DeadlineExceeded(message, where=url)
    if 400 <= status < 500:  # noqa: PLR2004 - HTTP's own number
        return InputError(message, where=url)
    return Unavailable(message, where=url)


def _foreign(url: str, error: Exception) -> Unavailable:
    return Unavailable(f"the answer is not the Open Inference Protocol's: {error}", where=url)
