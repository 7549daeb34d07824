"""Open Inference Protocol v2: requests to tensors, tensors to answers. Pure: no clock, no socket.

JSON with the binary tensor extension. References: the protocol, https://github.com/kserve/open-inference-protocol;
the extension, https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md.
Not taken, and refused by name: sequences, classification, and a body that is raw tensor data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from trtops.errors import InputError, Retryable, TrtopsError
from trtops.executor.port import Request
from trtops.serve import elements
from trtops.serve.quick import Quick
from trtops.serve.regions import Regions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from trtops.executor.port import EngineInfo, Outcome
    from trtops.serve.regions import Place
    from trtops.tensor import Shape, TensorInfo

MAX_ID = 1024
MAX_TENSORS = 1024
MAX_TIMEOUT_US = 24 * 3600 * 10**6
_MAX_DIM = 2**63 - 1
_CACHED_HEADER = 4096
_CACHED_PLANS = 256
_KNOWN_SHAPES = 1024
_PATH = re.compile(r"\$\.(inputs|outputs)\[(\d+)\]")
_REFUSED_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end")
_NO_PARAMETERS: dict[str, Any] = {}


class NotAcceptable(TrtopsError):
    """The answer exists and the form that the client asked for cannot carry it."""


class Given(msgspec.Struct):
    """An input as a request describes it."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = msgspec.Raw()


class Output(msgspec.Struct):
    """An output as a request asks for it."""

    name: str
    parameters: dict[str, Any] = {}


class Document(msgspec.Struct):
    """A request but for what it does not describe."""

    inputs: list[Given]
    id: str = ""
    parameters: dict[str, Any] | None = None
    outputs: list[Output] | None = None


_DECODER = msgspec.json.Decoder(Document)


@dataclass(frozen=True, slots=True)
class Wanted:
    """An output that the client asked for, whether in binary form, and the shared memory that it goes to if any."""

    tensor: TensorInfo
    binary: bool
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """What a request says beside its tensors."""

    id: str
    priority: int
    timeout_us: int
    wanted: tuple[Wanted, ...]
    key: str = ""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A binary tensor: where its bytes stand after the JSON. ``view``: its type, if the bytes are its elements."""

    tensor: TensorInfo
    shape: Shape
    offset: int
    size: int
    view: np.dtype[np.generic] | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """How to read every request whose JSON part is the same bytes: all of its inputs are binary."""

    head: Head
    pieces: tuple[_Piece, ...]
    rows: int
    size: int


class Decoded(msgspec.Struct, eq=False):
    """A request as the executor takes it, and what its answer needs."""

    request: Request
    id: str
    wanted: tuple[Wanted, ...]


class Answer(msgspec.Struct, eq=False):
    """A body in parts. ``json_bytes`` is the length of the JSON part where binary data follows, else None."""

    parts: list[bytes]
    json_bytes: int | None


def _name_of(body: bytes, error: Exception) -> str:
    """Name of the tensor that a message of msgspec points at by its index; empty if it points at none."""
    match = _PATH.search(str(error))
    if match is None:
        return ""
    try:
        tensor = msgspec.json.decode(body)[match[1]][int(match[2])]
        return f"{match[1][:-1]} '{str(tensor['name'])[:100]}': "
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return f"{match[1][:-1]} {match[2]}: "


def _parse(text: bytes) -> Document:
    if not text.strip():
        raise InputError("the body is empty; expected a JSON object with 'inputs'")
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError as error:
        raise InputError(f"{_name_of(text, error)}not an inference request: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise InputError("the body is not a request: it is nested too deeply") from None


def _whole(parameters: Mapping[str, Any], key: str, high: int, where: str = "") -> int:
    value = parameters.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
        raise InputError(f"{where}parameter '{key}': expected a whole number from 0 to {high}, got {value!r:.80}")
    return value


def _key(parameters: Mapping[str, Any]) -> str:
    """The routing key: requests of one key get the same release while a rollout splits the traffic."""
    value = parameters.get("routing_key", "")
    if not isinstance(value, str) or len(value) > MAX_ID:
        raise InputError(f"parameter 'routing_key': expected text of up to {MAX_ID} characters, got {value!r:.80}")
    return value


def _flag(parameters: Mapping[str, Any], key: str, default: bool, where: str = "") -> bool:  # noqa: FBT001 - a flag's default
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"{where}parameter '{key}': expected true or false, got {value!r:.80}")
    return value


def _dims(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(str(dim) for dim in shape[:16]) + (",…]" if len(shape) > 16 else "]")  # noqa: PLR2004 - a readable message


class Codec:
    """Requests and answers of one engine. Cheap to use, made once a generation."""

    def __init__(self, info: EngineInfo, regions: Regions | None = None) -> None:
        """Write down all of an answer that does not change from request to request.

        Args:
            info: the engine.
            regions: shared memory that tensors may be in.
        """
        self.info = info
        self.generation = info.generation
        self.regions = regions or Regions()
        self._inputs = {tensor.name: tensor for tensor in info.inputs}
        self._outputs = {tensor.name: tensor for tensor in info.outputs}
        self.batchable = bool(info.inputs) and all(
            bool(tensor.shape) and not isinstance(tensor.shape[0], int) for tensor in (*info.inputs, *info.outputs)
        )
        self._all = {flag: tuple(Wanted(tensor, flag) for tensor in info.outputs) for flag in (False, True)}
        encode = msgspec.json.encode
        self._opening = b'{"model_name":%b,"model_version":%b,' % (encode(info.name), encode(info.version))
        self._plain = Head("", 0, 0, self._all[False])
        self._plans: dict[bytes, _Plan] = {}
        self._known: dict[tuple[str, str, Shape], TensorInfo] = {}
        self._quick = Quick(info.inputs, info.max_batch if self.batchable else None)
        self._heads: dict[tuple[bytes, bytes], Head] = {}
        self._described: dict[tuple[str, Shape], bytes] = {}

    def decode(self, body: bytes, header: int | None, now: float) -> Decoded:
        """Read a request.

        Args:
            body: the whole body, decompressed.
            header: length of its JSON part in bytes; None: all of it.
            now: monotonic seconds, from which the request's timeout counts.

        Raises:
            InputError: the client's fault; names the tensor, what was expected and what came.
        """
        if header is None:
            return self._from_common(body, now) or self._from_document(_parse(body), body, len(body), now)
        if not 0 < header <= len(body):
            raise InputError(
                f"Inference-Header-Content-Length is {header} and the body has {len(body)} bytes",
                fix="give the length of the JSON part, which is never empty",
            )
        text = body[:header]
        plan = self._plans.get(text)
        if plan is not None and plan.size == len(body) - header:
            return self._from_plan(plan, body, header, now)
        return self._from_document(_parse(text), body, header, now, text)

    def _from_common(self, body: bytes, now: float) -> Decoded | None:
        found = self._quick.decode(body)
        if found is None:
            return None
        inputs, rows, key, about = found
        if key and len(key) > MAX_ID:
            return None
        head = self._plain if about is None else self._heads.get(about) or self._learn(about)
        if head is None:
            return None
        deadline = now + head.timeout_us / 1e6 if head.timeout_us else None
        return Decoded(Request(inputs, rows, deadline, head.priority, head.key), key, head.wanted)

    def _learn(self, about: tuple[bytes, bytes]) -> Head | None:
        """What parameters and outputs say that are not known yet; None: it is wrong, or of shared memory."""
        text = b'{"inputs":[]%b%b}' % tuple(
            b',"%b":%b' % (name, value) if value else b""
            for name, value in zip((b"parameters", b"outputs"), about, strict=True)
        )
        try:
            head = self.head(_parse(text))
        except InputError:
            return None
        if any(wanted.place is not None for wanted in head.wanted):
            return None
        if sum(map(len, about)) <= _CACHED_HEADER:
            if len(self._heads) >= _CACHED_PLANS:
                self._heads.clear()
            self._heads[about] = head
        return head

    def _from_plan(self, plan: _Plan, body: bytes, header: int, now: float) -> Decoded:
        inputs: dict[str, NDArray[np.generic]] = {}
        for piece in plan.pieces:
            tensor, at = piece.tensor, header + piece.offset
            if piece.view is not None and not at % piece.view.itemsize:
                inputs[tensor.name] = np.ndarray(piece.shape, piece.view, body, at)
            else:
                inputs[tensor.name] = elements.from_binary(body, at, piece.size, tensor.dtype, piece.shape, tensor.name)
        return self.decoded(inputs, plan.rows, plan.head, now)

    def _from_document(
        self, document: Document, body: bytes, header: int, now: float, text: bytes | None = None
    ) -> Decoded:
        self.check_count(len(document.inputs), len(document.outputs or ()))
        head = self.head(document)
        pieces: list[_Piece] = []
        inputs: dict[str, NDArray[np.generic]] = {}
        rows, offset = 0, 0
        for given in document.inputs:
            tensor, shape = self.check(given, inputs, rows)
            rows = shape[0] if self.batchable else 1
            place = self.regions.place(given.parameters, f"input '{given.name}': ") if given.parameters else None
            if place is not None:
                inputs[given.name] = self.from_place(given, place, tensor, shape)
                continue
            size = self._binary_size(given, len(body) - header - offset)
            if size is None:
                inputs[given.name] = elements.from_json(given.data, tensor.dtype, shape, given.name)
                continue
            at = header + offset
            inputs[given.name] = elements.from_binary(body, at, size, tensor.dtype, shape, given.name)
            view = None if tensor.dtype in {"bool", "string"} else elements.NUMPY[tensor.dtype]
            pieces.append(_Piece(tensor, shape, offset, size, view))
            offset += size
        self.complete(inputs)
        if offset != len(body) - header:
            raise InputError(
                f"{len(body) - header} bytes follow the JSON, and the inputs' binary_data_size add up to {offset}"
            )
        if text is not None and len(pieces) == len(inputs):
            self._remember(text, _Plan(head, tuple(pieces), rows, offset))
        return self.decoded(inputs, rows, head, now)

    @staticmethod
    def from_place(given: Given, place: Place, tensor: TensorInfo, shape: Shape) -> NDArray[np.generic]:
        """Read an input from shared memory."""
        if memoryview(given.data).nbytes or "binary_data_size" in given.parameters:
            raise InputError(f"input '{given.name}': has data and a shared memory region", fix="give one")
        data = place.region.read(place.offset, place.size)
        return elements.from_binary(data, 0, place.size, tensor.dtype, shape, given.name, "shared_memory_byte_size")

    def _remember(self, text: bytes, plan: _Plan) -> None:
        shared = any(wanted.place is not None for wanted in plan.head.wanted)
        if len(text) <= _CACHED_HEADER and not plan.head.id and not shared:
            if len(self._plans) >= _CACHED_PLANS:
                self._plans.clear()
            self._plans[text] = plan

    @staticmethod
    def check_count(inputs: int, outputs: int) -> None:
        """Refuse requests of very many tensors."""
        if inputs > MAX_TENSORS or outputs > MAX_TENSORS:
            raise InputError(f"a request has {MAX_TENSORS} inputs and outputs at most")

    def check(self, given: Given, seen: Mapping[str, object], rows: int) -> tuple[TensorInfo, Shape]:
        """Compare what a request says of an input with what the engine takes, before any data is read."""
        name, shape = given.name, tuple(given.shape)
        known = self._known.get((name, given.datatype, shape))
        if known is not None and name not in seen and (not self.batchable or rows in {0, shape[0]}):
            return known, shape
        tensor = self._inputs.get(name)
        if tensor is None:
            names = ", ".join(f"'{taken}'" for taken in self._inputs)
            raise InputError(f"unknown input '{name:.100}': engine '{self.info.name}' takes {names}")
        if name in seen:
            raise InputError(f"input '{name}' is given twice")
        if given.datatype != tensor.datatype:
            raise InputError(f"input '{name}': expected datatype {tensor.datatype}, got '{given.datatype:.40}'")
        if len(shape) > elements.MAX_RANK or not all(0 <= dim <= _MAX_DIM for dim in shape):
            raise InputError(
                f"input '{name}': {_dims(shape)} is no shape: sizes are 0 or more, and {elements.MAX_RANK} at most"
            )
        if not tensor.accepts(shape):
            raise InputError(f"input '{name}': expected shape {_dims(tensor.oip_shape)}, got {_dims(shape)}")
        if self.batchable:
            self._check_rows(name, shape[0], rows)
        if len(self._known) >= _KNOWN_SHAPES:
            self._known.clear()
        self._known[name, given.datatype, shape] = tensor
        return tensor, shape

    def _check_rows(self, name: str, have: int, rows: int) -> None:
        if not 1 <= have <= self.info.max_batch:
            raise InputError(f"input '{name}': expected 1 to {self.info.max_batch} rows, got {have}")
        if rows and have != rows:
            raise InputError(f"input '{name}': expected {rows} rows like the inputs before it, got {have}")

    @staticmethod
    def _binary_size(given: Given, left: int) -> int | None:
        """Bytes of a binary input; None: its data stands in the JSON."""
        if not given.parameters:
            return None
        where = f"input '{given.name}': "
        if "binary_data_size" not in given.parameters:
            return None
        if memoryview(given.data).nbytes:
            raise InputError(f"{where}has both data and binary_data_size", fix="give one")
        size = _whole(given.parameters, "binary_data_size", _MAX_DIM, where)
        if size > left:
            raise InputError(f"{where}binary_data_size is {size}, and {left} bytes are left in the body")
        return size

    def complete(self, inputs: Mapping[str, object]) -> None:
        """Refuse a request that lacks an input."""
        if len(inputs) != len(self._inputs):
            missing = ", ".join(
                f"'{name}' ({tensor.datatype} {_dims(tensor.oip_shape)})"
                for name, tensor in self._inputs.items()
                if name not in inputs
            )
            raise InputError(f"missing input {missing}")

    def head(self, document: Document) -> Head:
        """Read what a request says beside its inputs."""
        if len(document.id) > MAX_ID:
            raise InputError(f"id has {len(document.id)} characters; {MAX_ID} are allowed")
        parameters = document.parameters or _NO_PARAMETERS
        if not parameters and document.outputs is None:
            return Head(document.id, 0, 0, self._all[False]) if document.id else self._plain
        for key in _REFUSED_PARAMETERS:
            if key in parameters:
                raise InputError(f"parameter '{key}': sequences are not supported; every request stands alone")
        priority = _whole(parameters, "priority", 2**31)
        timeout = _whole(parameters, "timeout", MAX_TIMEOUT_US)
        binary = _flag(parameters, "binary_data_output", default=False)
        wanted = self._wanted(document.outputs, binary=binary) if document.outputs else self._all[binary]
        return Head(document.id, max(0, priority - 1), timeout, wanted, _key(parameters))

    def _wanted(self, outputs: list[Output], *, binary: bool) -> tuple[Wanted, ...]:
        found: dict[str, Wanted] = {}
        for output in outputs:
            where = f"output '{output.name:.100}': "
            tensor = self._outputs.get(output.name)
            if tensor is None:
                known = ", ".join(f"'{known}'" for known in self._outputs)
                raise InputError(f"unknown output '{output.name:.100}': engine '{self.info.name}' gives {known}")
            if output.name in found:
                raise InputError(f"{where}is asked for twice")
            place = self.regions.place(output.parameters, where) if output.parameters else None
            if output.parameters.get("classification"):
                raise InputError(f"{where}classification is not supported", fix="ask for the tensor and rank it")
            found[output.name] = Wanted(tensor, _flag(output.parameters, "binary_data", binary, where), place)
        return tuple(found.values())

    @staticmethod
    def decoded(inputs: Mapping[str, NDArray[np.generic]], rows: int, head: Head, now: float) -> Decoded:
        """Put a request together."""
        deadline = now + head.timeout_us / 1e6 if head.timeout_us else None
        return Decoded(Request(inputs, rows, deadline, head.priority, head.key), head.id, head.wanted)

    def encode(self, decoded: Decoded, outcome: Outcome) -> Answer:
        """Write an answer.

        Raises:
            NotAcceptable: an output cannot be written in the form that was asked for.
            Retryable: the engine was replaced, while the request ran, by one without this output.
        """
        pieces = [self._opening if not decoded.id else self._opening + b'"id":%b,' % msgspec.json.encode(decoded.id)]
        tail: list[bytes] = []
        begin = b'"outputs":['
        for wanted in decoded.wanted:
            tensor = wanted.tensor
            array = outcome.outputs.get(tensor.name)
            if array is None:
                raise Retryable(f"engine '{self.info.name}' was replaced by one that has no output '{tensor.name}'")
            opening = self._described.get((tensor.name, array.shape)) or self._describe(tensor, array)
            if wanted.place is not None:
                wanted.place.write(tensor.name, elements.to_binary(array, tensor.dtype))
                pieces += (begin, opening[:-1], b"}")  # no parameters: Triton's C++ client takes any for binary data
            elif wanted.binary:
                data = elements.to_binary(array, tensor.dtype)
                tail.append(data)
                pieces += (begin, opening, b'"parameters":{"binary_data_size":%d}}' % len(data))
            else:
                pieces += (begin, opening, b'"data":', _json_data(tensor, array), b"}")
            begin = b","
        pieces.append(b"]}" if decoded.wanted else b'"outputs":[]}')
        json = b"".join(pieces)
        return Answer([json, *tail], len(json)) if tail else Answer([json], None)

    def _describe(self, tensor: TensorInfo, array: NDArray[np.generic]) -> bytes:
        """The JSON of an output up to its data; kept, since few shapes come again and again."""
        encode = msgspec.json.encode
        text = b'{"name":%b,"datatype":%b,"shape":%b,' % (
            encode(tensor.name),
            encode(tensor.datatype),
            encode(array.shape),
        )
        if len(self._described) >= _KNOWN_SHAPES:
            self._described.clear()
        self._described[tensor.name, array.shape] = text
        return text


def _json_data(tensor: TensorInfo, array: NDArray[np.generic]) -> bytes:
    text = elements.to_json(array, tensor.dtype)
    if text is None:
        raise NotAcceptable(
            f"output '{tensor.name}' ({tensor.datatype}) has no JSON form (BF16, NaN, infinity, or bytes but no text)",
            fix="ask for it with the parameter binary_data",
        )
    return text
