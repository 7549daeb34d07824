"""The common JSON request in one pass: inputs with flat data, every type known beforehand.

The JSON is decoded straight into the types that the engine takes, and packed. Whatever does not fit (another type, a
nested array, parameters of an input, a wrong count, a fault) is left to :mod:`trtops.serve.oip`, which reads all there
is and says what is wrong with it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec
import numpy as np

from trtops.serve import elements

if TYPE_CHECKING:
    from collections.abc import Callable

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
_NONE: Final = msgspec.Raw()
_array: Final = np.ndarray


@dataclass(frozen=True, slots=True)
class _Form:
    """An input of one shape: how its elements become an array. ``rows``: of the request; 1 where it has none."""

    name: str
    shape: Shape
    rows: int
    dtype: np.dtype[Any]
    pack: Callable[..., bytes]


Common: TypeAlias = "tuple[dict[str, NDArray[np.generic]], int, str, tuple[bytes, bytes] | None]"
"""A request as it was read: its inputs by name, the rows that they share, its id, and the text of its parameters and of
its outputs, None if it has neither."""


class Quick:
    """Decoder of an engine's common requests."""

    def __init__(self, inputs: tuple[TensorInfo, ...], most: int | None) -> None:
        """Make the decoder; one that takes nothing where an input's type has no packed form.

        Args:
            inputs: of the engine.
            most: rows that a request may have; None: the first axis is none of rows.
        """
        self._most = most
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
                ("shape", tuple[int, ...]),
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
            [("inputs", list[union]), ("id", str, ""), *((name, msgspec.Raw, _NONE) for name in _RAW)],
            forbid_unknown_fields=True,
            gc=False,
        )

    def decode(self, body: bytes) -> Common | None:
        """Read a request; None: it is not that common, or wrong."""
        if self._decoder is None:
            return None
        inputs: dict[str, NDArray[np.generic]] = {}
        rows = 0
        try:
            document = self._decoder.decode(body)
            for given in document.inputs:
                kind = given.__class__
                form = self._forms.get((kind, given.shape)) or self._form(kind, given.shape)
                if form is None or (rows and form.rows != rows):
                    return None
                rows = form.rows
                inputs[form.name] = _array(form.shape, form.dtype, form.pack(*given.data))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, struct.error, OverflowError):
            return None
        if not len(inputs) == self._count == len(document.inputs):
            return None
        parameters, outputs = document.parameters, document.outputs
        about = None
        if parameters is not _NONE or outputs is not _NONE:
            about = bytes(parameters), bytes(outputs)
        return inputs, rows, document.id, about

    def _form(self, kind: type, shape: Shape) -> _Form | None:
        tensor = self._tensors[kind]
        if len(shape) > elements.MAX_RANK or any(size < 0 for size in shape) or not tensor.accepts(shape):
            return None
        count = elements.count_of(shape)
        if not 0 < count <= _LONGEST or (self._most is not None and shape[0] > self._most):
            return None
        pack = struct.Struct(f"<{count}{_PACKED[tensor.dtype]}").pack
        form = _Form(tensor.name, shape, 1 if self._most is None else shape[0], elements.NUMPY[tensor.dtype], pack)
        if len(self._forms) >= _SHAPES:
            self._forms.clear()
        self._forms[kind, shape] = form
        return form
