"""What an engine takes: checks of a request before it is queued, so that one bad item never harms a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from trtops.errors import InputError
from trtops.executor.padding import Pads

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from numpy.typing import NDArray

    from trtops.executor.port import Request
    from trtops.spec.engine import Padding, Profile
    from trtops.tensor import Dim, TensorInfo

# Element types that NumPy lacks travel as views of an unsigned integer of their size (trtops.tensor.DTYPES).
_CARRIERS: Final[Mapping[str, str]] = {"bfloat16": "uint16", "float8_e4m3": "uint8", "string": "object"}


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The NumPy type that carries an element type of :data:`trtops.tensor.DTYPES`."""
    return np.dtype(_CARRIERS.get(name, name))


@dataclass(frozen=True, slots=True)
class Bound:
    """One input with everything that is asked once a request, computed once.

    Attributes:
        shape: of the binding; a string is a dynamic size.
        fixed: sizes after the first axis if none of them is dynamic, else None.
        row_bytes: bytes of one row at the largest shape that the profiles allow; None: it has no bound.
        order: how an array has to lie in memory, in NumPy's words: ``C``, or ``K`` (in any way) where it has a format.
    """

    name: str
    dtype: np.dtype[np.generic]
    datatype: str
    shape: tuple[Dim, ...]
    fixed: tuple[int, ...] | None
    row_bytes: int | None
    order: Literal["C", "K"] = "C"

    def expected(self) -> str:
        """Type and shape in the protocol's words, for messages: ``FP32 [-1, 3, 48, 192]``."""
        shape = ", ".join(str(dim) if isinstance(dim, int) else "-1" for dim in self.shape)
        return f"{self.datatype} [{shape}]"


class Interface:
    """The inputs of an engine.

    Attributes:
        batchable: requests run together along the first axis. If not, each runs alone.
        pads: fills requests up to common sizes; None: each shape runs by itself.
        max_rows, min_rows: rows that the profiles allow in a batch; smaller ones are filled up with zeros.
    """

    def __init__(
        self,
        engine: str,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        *,
        max_batch: int,
        profiles: Sequence[Profile] = (),
        padding: Padding | None = None,
    ) -> None:
        """Read bindings and profiles.

        Raises:
            NotLoadable: the padding names what is not there. Blame the spec.
        """
        self.engine = engine
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.profiles = tuple(profiles)
        self.bounds = tuple(_bound(info, self.profiles) for info in inputs)
        self.batchable = bool(inputs) and all(
            bool(info.shape) and not isinstance(info.shape[0], int) for info in (*inputs, *outputs)
        )
        ranges = [
            profile.inputs[info.name] for profile in self.profiles for info in inputs if info.name in profile.inputs
        ]
        self.min_rows = max(1, min((span.min[0] for span in ranges), default=1)) if self.batchable else 1
        self.max_rows = min(max_batch, max((span.max[0] for span in ranges if span.max), default=max_batch))
        if not self.batchable:
            self.max_rows = _fixed_rows(inputs)
        self._names = frozenset(info.name for info in inputs)
        self.pads = (
            Pads(engine, padding, self.bounds, self.outputs, batchable=self.batchable) if padding is not None else None
        )
        self._one_shape = all(bound.fixed is not None for bound in self.bounds)
        fixed = [(bound.name, bound.fixed, bound.dtype) for bound in self.bounds if bound.fixed is not None]
        self._plain = tuple(fixed) if self._one_shape and self.batchable else ()

    def __repr__(self) -> str:
        """Show what it takes."""
        kind = f"rows 1..{self.max_rows}" if self.batchable else "not batchable"
        return f"Interface({', '.join(f'{bound.name} {bound.expected()}' for bound in self.bounds)}; {kind})"

    def alone(self) -> None:
        """Run each request alone: the engine's outputs turned out not to be split by rows."""
        self.batchable = False
        self._plain = ()
        self.pads = None

    def check(self, request: Request) -> Hashable:
        """Check a request and return its shape bucket: the sizes of all inputs after the first axis.

        Raises:
            InputError: a tensor is missing, unknown, or of another type or shape. Blame the client.
        """
        inputs = request.inputs
        if self._plain and len(inputs) == len(self._plain) and 0 < request.rows <= self.max_rows:
            rows = request.rows
            for name, fixed, dtype in self._plain:
                array = inputs.get(name)
                if array is None or array.shape != (rows, *fixed) or array.dtype != dtype:
                    break
            else:
                return ()
        return self._check(request)

    def _check(self, request: Request) -> Hashable:
        inputs = request.inputs
        if inputs.keys() != self._names:
            self._refuse_names(inputs)
        rows = request.rows
        if self.batchable and not 0 < rows <= self.max_rows:
            raise InputError(
                f"the request has {rows} rows, engine {self.engine} takes 1 to {self.max_rows}",
                where=f"engine {self.engine}",
                fix="send larger batches in parts",
            )
        for bound in self.bounds:
            array = inputs[bound.name]
            if array.dtype != bound.dtype and not (bound.dtype.hasobject and array.dtype.kind in "SU"):
                self._refuse(bound, f"type {array.dtype}")
            if self.batchable and array.shape[:1] != (rows,):
                self._refuse_rows(bound, array.shape, rows)
            if bound.fixed is None or array.shape[1:] != bound.fixed:
                self._check_shape(bound, array.shape)
        if self._one_shape and self.batchable:
            return ()
        self._check_together(inputs)
        own = tuple(inputs[bound.name].shape[1:] for bound in self.bounds)
        if self.pads is not None and self.batchable:
            tails = self.pads.tails(inputs)
            filled = {bound.name: (rows, *tail) for bound, tail in zip(self.bounds, tails, strict=True)}
            if tails != own and self.allows(filled):
                return tails
        return own

    def allows(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether a profile covers these shapes."""
        return not self.profiles or any(self._covers(profile, shapes) for profile in self.profiles)

    def _check_shape(self, bound: Bound, shape: tuple[int, ...]) -> None:
        if len(shape) != len(bound.shape) or any(
            isinstance(want, int) and want != have for want, have in zip(bound.shape, shape, strict=True)
        ):
            self._refuse(bound, f"shape {list(shape)}")

    def _check_together(self, inputs: Mapping[str, NDArray[np.generic]]) -> None:
        """Sizes of one name are equal in all inputs, and one profile covers them all."""
        sizes: dict[str, tuple[int, str]] = {}
        for bound in self.bounds:
            shape = inputs[bound.name].shape
            self._check_shape(bound, shape)
            for dim, size in zip(bound.shape, shape, strict=True):
                if isinstance(dim, str) and dim:
                    first, where = sizes.setdefault(dim, (size, bound.name))
                    if first != size:
                        self._refuse(bound, f"{size} for size '{dim}', which is {first} in input {where!r}")
        shapes = {name: array.shape for name, array in inputs.items()}
        if not self.allows(shapes):
            came = ", ".join(f"{bound.name!r} {list(inputs[bound.name].shape)}" for bound in self.bounds)
            allowed = " or ".join(
                ", ".join(f"{name!r} {list(span.min)} to {list(span.max)}" for name, span in profile.inputs.items())
                for profile in self.profiles
            )
            raise InputError(f"no profile takes {came}", where=f"engine {self.engine}", fix=f"they take {allowed}")

    def _covers(self, profile: Profile, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        start = 1 if self.batchable else 0  # fewer rows than a profile's minimum are filled up
        for name, span in profile.inputs.items():
            shape = shapes.get(name, ())
            if len(shape) != len(span.min):
                return False
            for low, size, high in zip(span.min[start:], shape[start:], span.max[start:], strict=True):
                if not low <= size <= high:
                    return False
            if shape and shape[0] > span.max[0]:
                return False
        return True

    def _refuse_names(self, inputs: Mapping[str, NDArray[np.generic]]) -> None:
        missing = sorted(self._names - inputs.keys())
        unknown = sorted(inputs.keys() - self._names)
        said = [f"input {', '.join(map(repr, missing))} is missing"] if missing else []
        said += [f"input {', '.join(map(repr, unknown))} is unknown"] if unknown else []
        takes = ", ".join(f"{bound.name!r} {bound.expected()}" for bound in self.bounds)
        raise InputError(" and ".join(said), where=f"engine {self.engine}", fix=f"it takes {takes}")

    def _refuse_rows(self, bound: Bound, shape: tuple[int, ...], rows: int) -> None:
        if len(shape) != len(bound.shape):
            self._refuse(bound, f"shape {list(shape)}")
        self._refuse(bound, f"{shape[0]} rows where the request has {rows}")

    def _refuse(self, bound: Bound, got: str) -> None:
        raise InputError(f"input {bound.name!r} has {got}, expected {bound.expected()}", where=f"engine {self.engine}")


def _bound(info: TensorInfo, profiles: Sequence[Profile]) -> Bound:
    dtype = numpy_dtype(info.dtype)
    fixed = tuple(dim for dim in info.shape[1:] if isinstance(dim, int))
    whole = fixed if len(fixed) == len(info.shape[1:]) else None
    spans = [profile.inputs[info.name] for profile in profiles if info.name in profile.inputs]
    elements: int | None = None
    if whole is not None:
        elements = math.prod(whole)
    elif spans:
        elements = max(math.prod(span.max[1:]) for span in spans)
    bounded = elements is not None and not dtype.hasobject
    return Bound(
        name=info.name,
        dtype=dtype,
        datatype=info.datatype,
        shape=info.shape,
        fixed=whole,
        row_bytes=elements * dtype.itemsize if bounded and elements is not None else None,
        order="C" if info.format == "linear" else "K",
    )


def _fixed_rows(inputs: Sequence[TensorInfo]) -> int:
    return max((info.shape[0] for info in inputs if info.shape and isinstance(info.shape[0], int)), default=1)
