"""What an execution of some shapes needs, and how tensors are put one after the other for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtops.tensor import DTYPES, stored_elements, stored_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from trtops.backend.pinned import PageLocked
    from trtops.backend.port import Arrays
    from trtops.backend.trt_memory import Buffer
    from trtops.tensor import MemoryFormat, Shape, TensorInfo


class Form(NamedTuple):
    """How an input that is not linear lies in its buffer.

    Attributes:
        strides: of the view; an array of these strides lies as the device takes it.
        pitch: bytes of a row.
        filling: what only fills rows up and has to be zero; None: there is no such.
    """

    strides: Shape
    pitch: int
    filling: NDArray[np.generic] | None

    @classmethod
    def of(cls, view: NDArray[np.generic], format: MemoryFormat) -> Form | None:  # noqa: A002 - TensorRT's word
        """The form of a buffer's view; None: it is linear."""
        if format == "linear":
            return None
        rows, *space, channels = stored_shape(view.shape, format)
        pitch = view.strides[0]
        last = channels - view.shape[1]
        if not last:
            return cls(view.strides, pitch, None)
        from numpy.lib.stride_tricks import as_strided

        item = view.itemsize
        whole = as_strided(view, (rows, *space, channels), (pitch, view.strides[2], view.strides[3], item))
        return cls(view.strides, pitch, whole[..., view.shape[1] :])

    def clear(self, start: int, stop: int) -> None:
        """Zero what fills these rows up: a kernel may read it, and no number times NaN is 0."""
        if self.filling is not None:
            self.filling[start:stop] = 0


class Prepared(NamedTuple):
    """What an execution of some shapes needs, looked up once.

    Attributes:
        context: that has these shapes.
        graph: of the execution and of the copies of its outputs; None: it is enqueued.
        rows: size of the first axis of the inputs.
        wants: name, shape and NumPy type of each input.
        sources: host view, device address, host address and bytes of each input.
        forms: of each input.
        results: name, host view, device address, host address and bytes of each output.
    """

    context: Any
    graph: Any
    rows: int
    wants: tuple[tuple[str, Shape, Any], ...]
    sources: tuple[tuple[NDArray[np.generic], int, int, int], ...]
    forms: tuple[Form | None, ...]
    results: tuple[tuple[str, NDArray[np.generic], int, int, int], ...]

    def fits(self, inputs: Arrays) -> bool:
        """Whether inputs are of the same names, shapes and types as those of the last execution."""
        if len(inputs) != len(self.wants):
            return False
        for name, shape, dtype in self.wants:
            array = inputs.get(name)
            if getattr(array, "shape", None) != shape:
                return False
            have = getattr(array, "dtype", None)
            if have is not dtype and have != dtype:
                return False
        return True


def views(
    context: Any,  # noqa: ANN401 - TensorRT has no types
    shapes: dict[str, Shape],
    sides: tuple[Sequence[TensorInfo], Sequence[TensorInfo]],
    buffers: dict[str, Buffer],
) -> Prepared:
    """Where the tensors of an execution are.

    Args:
        context: has these shapes.
        shapes: of the inputs.
        sides: inputs and outputs.
        buffers: by name.
    """
    import numpy as np

    wants, sources, forms, results = [], [], [], []
    for info in sides[0]:
        shape, buffer = shapes[info.name], buffers[info.name]
        view = buffer.view(shape, info.dtype, info.format)
        wants.append((info.name, shape, np.dtype(view.dtype)))
        sources.append((view, buffer.device, buffer.host, stored_bytes(info, shape)))
        forms.append(Form.of(view, info.format))
    for info in sides[1]:
        buffer, shape = buffers[info.name], tuple(context.get_tensor_shape(info.name))
        view = buffer.view(shape, info.dtype, info.format)
        results.append((info.name, view, buffer.device, buffer.host, stored_bytes(info, shape)))
    rows = wants[0][1][0] if wants and wants[0][1] else 1
    return Prepared(context, None, rows, tuple(wants), tuple(sources), tuple(forms), tuple(results))


def stored_bytes(info: TensorInfo, shape: Shape) -> int:
    """Bytes that a tensor takes in its format."""
    return stored_elements(shape, info.format) * DTYPES[info.dtype][1]


def locked(array: NDArray[np.generic], size: int, form: Form | None, table: PageLocked) -> int:
    """Where an array is, if the device may read it from there as it is; 0: it has to be copied."""
    if not table.any or not (array.flags.c_contiguous if form is None else array.strides == form.strides):
        return 0
    address: int = array.__array_interface__["data"][0]
    return address if table.covers(address, size) else 0


def place(view: NDArray[np.generic], arrays: Sequence[NDArray[np.generic]]) -> None:
    """Copy arrays one after the other along the first axis; zeros behind them."""
    if view.ndim == 0 or (len(arrays) == 1 and view.shape == arrays[0].shape):
        view[...] = arrays[0]
        return
    row = 0
    for array in arrays:
        view[row : row + array.shape[0]] = array
        row += array.shape[0]
    view[row:] = 0
