"""Executions of a loaded TensorRT engine, for every version and for TensorRT for RTX.

What an execution needs was taken when the engine was loaded (:mod:`.trt_loaded`). It copies in, enqueues on its own
stream, copies out, and waits for an event. Sessions of several streams share the engine's weights and overlap: one
copies while another computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtops.backend import cuda_device
from trtops.backend.bindings import check_inputs, laid, tightest
from trtops.backend.cuda_device import CudaError, lost
from trtops.backend.pinned import PAGE_LOCKED
from trtops.backend.trt_loaded import LoadedEngine
from trtops.backend.trt_prepared import Prepared, locked, place, views
from trtops.errors import Retryable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from trtops.backend.port import Arrays, DeviceTimes, Sidecar
    from trtops.spec.engine import Execution, Memory
    from trtops.tensor import Shape

_DIRECT = 16 << 10
"""Bytes from which a tensor in page-locked memory is copied by the device itself: below, enqueueing the copy costs the
host more (about 2 us) than copying the bytes."""


class Parts(NamedTuple):
    """What a probe works with: the CUDA runtime, the engine, its context with shapes set, the stream, the profile."""

    cudart: Any
    engine: Any
    context: Any
    stream: Any
    profile: int


class TensorRtSession(LoadedEngine):
    """One stream of an engine, with contexts and buffers of its own. One thread owns it."""

    def _open(self, trt: Any, artifact: Path, sidecar: Sidecar) -> None:  # noqa: ANN401 - TensorRT has no types
        """Load it, and know page-locked tensors of clients from now on."""
        super()._open(trt, artifact, sidecar)
        PAGE_LOCKED.activate(cuda_device.runtime)

    def arrange(self, execution: Execution, memory: Memory, sizes: tuple[int, ...]) -> tuple[TensorRtSession, ...]:
        """Set up as the spec asks, before the first request: see :class:`trtops.backend.port.Arranges`.

        Raises:
            NotLoadable: the device has not enough memory.
        """
        sessions = [self]
        try:
            while len(sessions) < execution.streams:
                sessions.append(TensorRtSession(self._trt, self._artifact, self._sidecar, engine=self._engine))
            for session in sessions:
                session.set_up(memory.input, sizes if execution.cuda_graphs else ())
        except BaseException as error:
            for session in sessions[1:]:
                session.close()
            if isinstance(error, CudaError):
                raise self._too_small(error) from error
            raise
        return tuple(sessions)

    # -- executions ----------------------------------------------------------------------------------------------------

    def run(self, inputs: Arrays) -> dict[str, NDArray[np.generic]]:
        """Execute once.

        Raises:
            InputError: a name, dtype or shape that the engine does not take.
            Retryable: the device failed, or the session is closed; it is not usable any more.
            DeviceLost: the same, and no session of this process is.
        """
        try:
            prepared = self._last
            if prepared is None or not prepared.fits(inputs):
                prepared = self._last = self._captured(inputs) or self.prepare(inputs)
            self._copy_one(prepared, inputs)
            self._start(prepared)
            return self._finish(prepared, prepared.rows)
        except CudaError as error:
            self.close()
            raise lost(error) from error

    def _captured(self, inputs: Arrays) -> Prepared | None:
        """The graph of these shapes, if one was captured."""
        captured = self._graphs.get(tuple(getattr(inputs.get(info.name), "shape", ()) for info in self._inputs))
        return captured if captured is not None and captured.fits(inputs) else None

    def enqueue(self, parts: Sequence[Arrays], rows: int) -> None:
        """Start an execution of several requests: see :class:`trtops.backend.port.Gathers`.

        Raises:
            InputError: a shape that the engine does not take.
            Retryable: the device failed, or the session is closed; it is not usable any more.
            DeviceLost: the same, and no session of this process is.
        """
        try:
            prepared = self._bucket(parts[0], rows)
            self._copy_in(prepared, parts)
            self._start(prepared)
        except CudaError as error:
            self.close()
            raise lost(error) from error
        self._pending = prepared, rows

    def collect(self) -> dict[str, NDArray[np.generic]]:
        """Wait for what :meth:`enqueue` started; outputs of its rows, the caller's own.

        Raises:
            Retryable: the device failed, or nothing was started; the session is not usable any more.
            DeviceLost: the same, and no session of this process is.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            raise Retryable("nothing was started")
        try:
            return self._finish(*pending)
        except CudaError as error:
            self.close()
            raise lost(error) from error

    def prepare(self, inputs: Arrays) -> Prepared:
        """Check inputs and have the context take their shapes; little is done where they are those of the last time.

        Raises:
            InputError: a name, dtype or shape that the engine does not take.
            Retryable: the session is closed.
            CudaError: the device failed.
        """
        if self._prepared is not None and self._prepared.fits(inputs):
            return self._prepared
        check_inputs(inputs, self._inputs, self._profiles)
        return self._shaped({name: tuple(array.shape) for name, array in inputs.items()})

    def _shaped(self, shapes: dict[str, Shape]) -> Prepared:
        """Have the context of every shape take these.

        Raises:
            InputError: the engine does not take them.
            Retryable: the session is closed.
            CudaError: the device failed.
        """
        if self._context is None:
            raise Retryable("the session is closed")
        self._log.errors = []
        self._prepared = self._last = None
        index = tightest(shapes, self._profiles)
        if index is not None and index != self._profile:
            self._select(self._context, index)
            self._profile = index
        self._set_shapes(self._context, shapes)
        self._prepared = views(self._context, shapes, (self._inputs, self._outputs), self._buffers)
        return self._prepared

    def _bucket(self, part: Arrays, rows: int) -> Prepared:
        """The execution that a batch of ``rows`` runs in: the smallest that was captured, else one of its own size."""
        tails = [(info.name, part[info.name].shape[1:]) for info in self._inputs]
        for size in self._sizes:
            if size >= rows:
                captured = self._graphs.get(tuple((size, *tail) for _, tail in tails))
                if captured is not None:
                    return captured
                break
        whole = max(rows, self._least)
        kept = self._prepared
        if kept is not None and all(
            (whole, *tail) == want[1] for (_, tail), want in zip(tails, kept.wants, strict=True)
        ):
            return kept
        return self._shaped({name: (whole, *tail) for name, tail in tails})

    @property
    def _least(self) -> int:
        """Rows of the smallest batch of any profile."""
        return min((span.min[0] for profile in self._profiles for span in profile.inputs.values()), default=1)

    def _copy_one(self, prepared: Prepared, inputs: Arrays) -> None:
        """Put the inputs of one request, which are of the very shapes, as :meth:`_copy_in` does."""
        to_device = self._stream.to_device
        for (name, _, _), (view, device, host, size), form in zip(
            prepared.wants, prepared.sources, prepared.forms, strict=True
        ):
            array = inputs[name]
            copied = self._buffers[name].copied
            if copied and size >= _DIRECT and (address := locked(array, size, form, PAGE_LOCKED)):
                to_device(device, address, size)
                continue
            view[...] = array
            if form is not None:
                form.clear(0, array.shape[0])
            if copied and size:
                to_device(device, host, size)

    def _copy_in(self, prepared: Prepared, parts: Sequence[Arrays]) -> None:
        """Put the inputs of the requests one after the other, and zeros behind them.

        What lies in page-locked memory as the engine takes it is copied by the device from there; the rest passes
        through the buffer.
        """
        for (name, _, _), (view, device, host, size), form in zip(
            prepared.wants, prepared.sources, prepared.forms, strict=True
        ):
            arrays = [part[name] for part in parts]
            if not self._buffers[name].copied:
                place(view, arrays)
                if form is not None:
                    form.clear(0, view.shape[0])
                continue
            at = staged = row = 0
            for array in arrays:
                here = array.nbytes if form is None else form.pitch * array.shape[0]
                if here >= _DIRECT and (address := locked(array, here, form, PAGE_LOCKED)):
                    self._to_device(device + staged, host + staged, at - staged)
                    self._to_device(device + at, address, here)
                    staged = at + here
                    at, row = staged, row + array.shape[0]
                    continue
                place(view if view.ndim == 0 else view[row : row + array.shape[0]], [array])
                if form is not None:
                    form.clear(row, row + array.shape[0])
                at, row = at + here, row + (array.shape[0] if array.ndim else 1)
            self._to_device(device + staged, host + staged, at - staged)
            if at < size:
                self._stream.zeros(device + at, size - at)

    def _to_device(self, device: int, host: int, size: int) -> None:
        if size:
            self._stream.to_device(device, host, size)

    def _start(self, prepared: Prepared) -> None:
        stream = self._stream
        if prepared.graph is not None:
            stream.launch(prepared.graph)
        else:
            self._execute(prepared)
        stream.mark()

    def _finish(self, prepared: Prepared, rows: int) -> dict[str, NDArray[np.generic]]:
        """Wait. The next execution writes over the page-locked memory, so the caller gets its own."""
        self._stream.wait()
        if rows == prepared.rows:
            return {name: view.copy("K") for name, view, *_ in prepared.results}
        return {name: view[:rows].copy("K") for name, view, *_ in prepared.results}

    def probe(self, inputs: Arrays, *, batch: int, seconds: float) -> DeviceTimes:
        """Measure an execution's parts. The session is usable as before afterwards.

        Raises:
            InputError: a name, dtype or shape that the engine does not take.
            Retryable: the device failed, or the session is closed; it is not usable any more.
        """
        from trtops.backend.trt_probe import probe

        try:
            prepared = self.prepare(inputs)
            parts = Parts(self._cudart, self._engine, self._context, self._stream.handle, self._profile)
            return probe(parts, prepared.sources, prepared.results, self._pairs(inputs), batch=batch, seconds=seconds)
        except CudaError as error:
            self.close()
            raise lost(error) from error

    def _pairs(self, inputs: Arrays) -> tuple[tuple[str, NDArray[np.generic]], ...]:
        return tuple((info.name, laid(inputs[info.name], info)) for info in self._inputs)
