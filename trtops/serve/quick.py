"""The common JSON request in one pass: inputs with flat data, every type known beforehand.

The JSON is decoded straight into the types that the engine takes, and packed. Whatever does not fit (another type, a
nested array, parameters of an input, a wrong count, a fault) is left to :mod:`trtops.serve.oip`, which reads all there
is and says what is wrong with it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from trtops.serve import elements

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from trtops.tensor import Shape, TensorInfo

_PACKED: Final = dict(
    zip(
        ("float16", "float32", "float64", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
        "efd?bhiqBHI",
        strict=True,
    )
)
_LONGEST: Final = 4096
"""Elements of a tensor that are packed here: above that, the array's own conversion is as fast."""
_SHAPES: Final = 256
_RAW: Final = ("parameters", "outputs")


@dataclass(frozen=True, slots=True)
class _Form:
    """An input of one shape: how its elements become an array."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    pack: struct.Struct


class Quick:
    """Decoder of an engine's common requests."""

    def __init__(self, inputs: tuple[TensorInfo, ...]) -> None:
        """Make the decoder; one that takes nothing where an input's type has no packed form."""
        self._tensors: dict[type, TensorInfo] = {}
        self._forms: dict[tuple[type, Shape], _Form] = {}
        self._decoder: msgspec.json.Decoder[Any] | None = None
        self._count = len(inputs)
        if inputs and all(tensor.dtype in _PACKED for tensor in inputs):
            self._decoder = msgspec.json.Decoder(self._document(inputs))

    def _document(self, inputs: tuple[TensorInfo, ...]) -> Any:  # noqa: ANN401 - a type that is made here
        """A type for the document: each input is told by its name, and has the data type that the engine takes."""
        kinds: list[Any] = []
        for index, tensor in enumerate(inputs):
            fields: list[tuple[str, Any]] = [
                ("shape", list[int]),
                ("datatype", Literal[tensor.datatype]),
                ("data", list[elements.json_type(tensor.dtype)]),  # type: ignore[misc]  # made from the engine
            ]
            kind = msgspec.defstruct(
                f"Input{index}", fields, tag_field="name", tag=tensor.name, forbid_unknown_fields=True, gc=False
            )
            self._tensors[kind] = tensor
            kinds.append(kind)
        union: Any = kinds[0]
        for kind in kinds[1:]:
            union |= kind
        return msgspec.defstruct(
            "Document",
            [("inputs", list[union]), ("id", str, ""), *((name, msgspec.Raw, msgspec.Raw()) for name in _RAW)],
            forbid_unknown_fields=True,
            gc=False,
        )

    def decode(self, body: bytes) -> tuple[dict[str, NDArray[np.generic]], str, tuple[bytes, bytes]] | None:
        """Inputs by name, the request's id, and the text of its parameters and outputs (empty: there are none).

        None: it is not that common, or wrong.
        """
        if self._decoder is None:
            return None
        try:
            document = self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        inputs: dict[str, NDArray[np.generic]] = {}
        for given in document.inputs:
            shape = tuple(given.shape)
            form = self._forms.get((given.__class__, shape)) or self._form(given.__class__, shape)
            if form is None:
                return None
            try:
                inputs[form.name] = np.ndarray(form.shape, form.dtype, form.pack.pack(*given.data))
            except (struct.error, OverflowError):
                return None
        if not len(inputs) == self._count == len(document.inputs):
            return None
        return inputs, document.id, (bytes(document.parameters), bytes(document.outputs))

    def _form(self, kind: type, shape: Shape) -> _Form | None:
        tensor = self._tensors[kind]
        if len(shape) > elements.MAX_RANK or any(size < 0 for size in shape) or not tensor.accepts(shape):
            return None
        count = elements.count_of(shape)
        if not 0 < count <= _LONGEST:
            return None
        form = _Form(
            tensor.name, shape, elements.NUMPY[tensor.dtype], struct.Struct(f"<{count}{_PACKED[tensor.dtype]}")
        )
        if len(self._forms) >= _SHAPES:
            self._forms.clear()
        self._forms[kind, shape] = form
        return form


def rows_of(inputs: Mapping[str, NDArray[np.generic]], most: int) -> int | None:
    """The rows that all inputs share; None: they differ, or are none or more than ``most``."""
    rows = 0
    for array in inputs.values():
        have = array.shape[0]
        if (rows and have != rows) or not 1 <= have <= most:
            return None
        rows = have
    return rows
