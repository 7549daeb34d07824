"""Open Inference Protocol v2 over gRPC: requests to tensors, tensors to the bytes of an answer. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trtops.errors import InputError, Retryable
from trtops.serve import elements
from trtops.serve.grpc_messages import field, packed
from trtops.serve.oip import Decoded, Document, Given, Output

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trtops.executor.port import Outcome
    from trtops.serve.oip import Codec
    from trtops.tensor import Shape, TensorInfo

_CONTENTS: Final = {
    "bool": "bool_contents",
    **dict.fromkeys(("int8", "int16", "int32"), "int_contents"),
    "int64": "int64_contents",
    **dict.fromkeys(("uint8", "uint16", "uint32"), "uint_contents"),
    "uint64": "uint64_contents",
    "float32": "fp32_contents",
    "float64": "fp64_contents",
    "string": "bytes_contents",
}
"""Element type -> the field of InferTensorContents that holds it; the 16 and 8 bit floats travel as raw bytes only."""

_FORMS: Final = 1024


def _plain(parameters: Any) -> dict[str, Any]:  # noqa: ANN401 - a map of protobuf
    found: dict[str, Any] = {}
    for key, value in parameters.items():
        kind = value.WhichOneof("parameter_choice")
        found[key] = getattr(value, kind) if kind else None
    return found


def _array(name: str, tensor: TensorInfo, shape: Shape, contents: Any) -> NDArray[np.generic]:  # noqa: ANN401 - protobuf's
    """Read an input from typed contents."""
    want = _CONTENTS.get(tensor.dtype)
    if want is None:
        raise InputError(f"input '{name}': {tensor.datatype} has no typed contents", fix="send raw_input_contents")
    for other, _ in contents.ListFields():
        if other.name != want:
            raise InputError(f"input '{name}': expected {want} for {tensor.datatype}, got {other.name}")
    values = getattr(contents, want)
    if len(values) != elements.count_of(shape):
        raise InputError(
            f"input '{name}': shape {list(shape)} needs {elements.count_of(shape)} elements, got {len(values)}"
        )
    if tensor.dtype == "string":
        return _texts(name, values, shape)
    try:
        array = np.array(values, elements.NUMPY[tensor.dtype])
    except OverflowError as error:
        raise InputError(f"input '{name}': not {tensor.datatype}: {error}") from None
    return array.reshape(shape)


def _texts(name: str, values: Any, shape: Shape) -> NDArray[np.generic]:  # noqa: ANN401 - protobuf's
    array = np.empty(len(values), object)
    index = 0
    try:
        for index, value in enumerate(values):
            array[index] = value.decode()
    except UnicodeDecodeError:
        raise InputError(f"input '{name}': BYTES element {index} is no UTF-8 text") from None
    return array.reshape(shape)


class GrpcCodec:
    """Requests and answers of one engine."""

    def __init__(self, codec: Codec) -> None:
        """Read with the rules of the HTTP codec; write down what does not change from answer to answer."""
        self.codec = codec
        info = codec.info
        self._opening = field(1, info.name.encode()) + field(2, info.version.encode())
        self._described: dict[tuple[str, Shape], bytes] = {}

    def decode(self, request: Any, now: float, remaining: float | None) -> Decoded:  # noqa: ANN401 - protobuf's class
        """Read a request.

        Args:
            request: a ``ModelInferRequest``.
            now: monotonic seconds.
            remaining: seconds that the call's deadline leaves; None: it has none.

        Raises:
            InputError: the client's fault; names the tensor, what was expected and what came.
        """
        outputs = [Output(output.name, _plain(output.parameters)) for output in request.outputs] or None
        document = Document([], request.id, _plain(request.parameters) if request.parameters else None, outputs)
        head = self.codec.head(document)
        inputs, rows = self._inputs(request)
        decoded = self.codec.decoded(inputs, rows, head, now)
        if remaining is not None:
            due = decoded.request.deadline
            decoded.request.deadline = now + remaining if due is None else min(due, now + remaining)
        return decoded

    def _inputs(self, request: Any) -> tuple[dict[str, NDArray[np.generic]], int]:  # noqa: ANN401 - protobuf's class
        codec, raw = self.codec, request.raw_input_contents
        inputs: dict[str, NDArray[np.generic]] = {}
        rows = used = 0
        codec.check_count(len(request.inputs), len(request.outputs))
        for given in request.inputs:
            tensor, shape = codec.check(given, inputs, rows)
            rows = shape[0] if codec.batchable else 1
            name = given.name
            place = codec.regions.place(_plain(given.parameters), f"input '{name}': ") if given.parameters else None
            if place is not None:
                inputs[name] = codec.from_place(Given(name, list(shape), given.datatype), place, tensor, shape)
            elif raw:
                if given.HasField("contents"):
                    raise InputError(f"input '{name}': has contents, and the request raw_input_contents", fix="use one")
                if used >= len(raw):
                    raise InputError(f"input '{name}': no raw_input_contents are left for it", fix="one an input")
                data = raw[used]
                used += 1
                inputs[name] = elements.from_binary(
                    data, 0, len(data), tensor.dtype, shape, name, "its raw_input_contents"
                )
            else:
                inputs[name] = _array(name, tensor, shape, given.contents)
        codec.complete(inputs)
        if used != len(raw):
            raise InputError(f"{len(raw)} raw_input_contents for {used} inputs without shared memory")
        return inputs, rows

    def encode(self, decoded: Decoded, outcome: Outcome) -> bytes:
        """Write a ``ModelInferResponse``, all outputs as raw bytes.

        Raises:
            InputError: an output does not fit in the shared memory that it was to go to.
            Retryable: the engine was replaced, while the request ran, by one without this output.
        """
        parts = [self._opening]
        if decoded.id:
            parts.append(field(3, decoded.id.encode()))
        tail: list[bytes] = []
        for wanted in decoded.wanted:
            name = wanted.tensor.name
            array = outcome.outputs.get(name)
            if array is None:
                raise Retryable(f"engine '{self.codec.info.name}' was replaced by one that has no output '{name}'")
            if wanted.place is not None:
                wanted.place.write(name, elements.to_binary(array, wanted.tensor.dtype))
                parts.append(field(5, self._describe(wanted.tensor, array.shape)))
                tail.append(b"\x32\x00")  # empty: clients count raw contents by outputs
                continue
            opening = self._described.get((name, array.shape))
            if opening is None:
                if len(self._described) >= _FORMS:
                    self._described.clear()
                opening = self._described[name, array.shape] = field(5, self._describe(wanted.tensor, array.shape))
            parts.append(opening)
            tail.append(field(6, elements.to_binary(array, wanted.tensor.dtype)))
        return b"".join((*parts, *tail))

    @staticmethod
    def _describe(tensor: TensorInfo, shape: Shape) -> bytes:
        return field(1, tensor.name.encode()) + field(2, tensor.datatype.encode()) + packed(3, shape)
