"""Samples to compare and to measure on: read from an ``.npz`` or drawn at random, cut to the shapes of a profile."""

from __future__ import annotations

import math
import zipfile
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

from trtops.accuracy.elements import numpy_name, random_array
from trtops.digest import Digest, digest_of
from trtops.errors import InputError, Location, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from trtops.tensor import Shape, TensorInfo

    Array = NDArray[np.generic]
    Shapes = Mapping[str, Shape]

MAX_SAMPLE_BYTES = 256 << 20
"""Largest ``.npz`` that is read, packed or unpacked."""

DEFAULT_RANDOM_SAMPLES = 32


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs to compare on.

    Attributes:
        source: the URI that they came from, or ``random``.
        digest: of names, dtypes, shapes and bytes; of seed and count where they are random.
        count: how many.
        inputs: bindings that they are for.
        arrays: input name -> array whose first axis is samples; empty where they are random.
        seed: of random samples.
    """

    source: str
    digest: Digest
    count: int
    inputs: tuple[TensorInfo, ...]
    arrays: Mapping[str, Array] = field(default_factory=dict)
    seed: int = 0

    def batches(self, shapes: Shapes) -> Iterator[dict[str, Array]]:
        """Every sample once, in batches of these shapes; the last batch wraps around to the first samples.

        A sample that is larger than the shape is cropped at the end of each axis; a smaller one is repeated (tiled).
        """
        rows = batch_rows(self.inputs, shapes)
        for start in range(0, self.count, rows):
            yield {info.name: self._array(info, shapes[info.name], start) for info in self.inputs}

    def batch(self, shapes: Shapes, start: int = 0) -> dict[str, Array]:
        """One batch of these shapes whose first row is sample ``start`` (modulo the count)."""
        return {info.name: self._array(info, shapes[info.name], start) for info in self.inputs}

    def _array(self, info: TensorInfo, shape: Shape, start: int) -> Array:
        import numpy as np

        if not shape:  # a scalar has no rows: one sample stands for the batch
            return np.array(self._sample(info, start % self.count, ()))
        rows = [self._sample(info, (start + row) % self.count, shape[1:]) for row in range(shape[0])]
        return np.ascontiguousarray(np.stack(rows)) if rows else np.zeros(shape, dtype=numpy_name(info))

    def _sample(self, info: TensorInfo, number: int, shape: Shape) -> Array:
        import numpy as np

        if not self.arrays:
            return random_array(info.dtype, shape, np.random.default_rng([self.seed, number, *info.name.encode()]))
        sample: Array = self.arrays[info.name][number]
        for axis, size in enumerate(shape):
            if sample.shape[axis] != size:
                sample = np.take(sample, np.arange(size), axis=axis, mode="wrap")
        return sample


def batch_rows(inputs: Sequence[TensorInfo], shapes: Shapes) -> int:
    """Rows of a batch: the first size of the first input whose first dimension is dynamic, else of the first input."""
    ranked = [info for info in inputs if shapes[info.name]]
    batched = [info for info in ranked if isinstance(info.shape[0], str)] or ranked
    return max(1, shapes[batched[0].name][0]) if batched else 1


def load_samples(
    uri: str, *, base: Path, inputs: Sequence[TensorInfo], count: int | None = None, seed: int = 0
) -> Samples:
    """Read or make the samples that a spec names.

    Args:
        uri: ``random`` (floats are standard normal, integers 0 to 9), or ``file:`` with a path of an ``.npz`` whose
            arrays are named after the inputs, first axis samples. Other arrays of the file are not read.
        base: the folder that a relative path starts from: the spec's.
        inputs: bindings of the engine.
        count: the first so many samples only; None: all of the file, or 32 random ones.
        seed: of random samples.

    Raises:
        InputError: the spec's or the file's author is to blame: no such file, not an ``.npz``, too large, an array
            that is missing or whose dtype, rank or sizes the engine does not take. All problems of the arrays at once.
    """
    if unsupported := [info.name for info in inputs if info.dtype == "string"]:
        raise InputError(
            f"input {unsupported[0]!r} takes strings, which cannot be compared by number",
            where=uri,
            fix="move the text handling out of the model, or leave the accuracy section out",
        )
    if uri == "random":
        total = count or DEFAULT_RANDOM_SAMPLES
        wanted = [[info.name, info.dtype] for info in inputs]
        return Samples(
            uri, digest_of({"random": seed, "count": total, "inputs": wanted}), total, tuple(inputs), {}, seed
        )
    path = _samples_path(uri, base)
    arrays = _checked(_read_arrays(path, [info.name for info in inputs]), inputs, str(path))
    total = min(len(array) for array in arrays.values())
    total = min(total, count) if count else total
    arrays = {name: array[:total] for name, array in arrays.items()}
    return Samples(uri, _arrays_digest(arrays), total, tuple(inputs), arrays, seed)


def _samples_path(uri: str, base: Path) -> Path:
    scheme, colon, rest = uri.partition(":")
    if scheme != "file" or not colon:
        raise InputError(f"cannot read samples from {uri!r}", where=uri, fix="write random, or file:NAME.npz")
    path = base / unquote(rest.removeprefix("//"))
    if not path.is_file():
        raise InputError(
            "there is no such samples file", where=str(path), fix="make it with numpy.savez_compressed, or write random"
        )
    if path.stat().st_size > MAX_SAMPLE_BYTES:
        raise _too_large(path)
    return path


def _too_large(path: Path) -> InputError:
    limit = MAX_SAMPLE_BYTES >> 20
    return InputError(f"the samples are larger than {limit} MiB", where=str(path), fix="keep fewer samples")


def _read_arrays(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Read the arrays of these names, those that are there. Nothing is unpickled, nothing unbounded is allocated."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            wanted = [name for name in names if f"{name}.npy" in members]
            if sum(members[f"{name}.npy"].file_size for name in wanted) > MAX_SAMPLE_BYTES:
                raise _too_large(path)
            return {name: _read_array(archive, members[f"{name}.npy"]) for name in wanted}
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(
            f"this is not an .npz of plain arrays: {error}", where=str(path), fix="write it with numpy.savez_compressed"
        ) from error
    except OSError as error:
        raise InputError(
            f"the samples cannot be read: {error.strerror}", where=str(path), fix="check the file"
        ) from error


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    import numpy as np

    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in readers:
            raise ValueError(f"{member.filename} has the .npy format {version[0]}.{version[1]}")
        shape, fortran, dtype = readers[version](file)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds Python objects")
        if min(shape, default=0) < 0 or size > member.file_size - file.tell():
            raise ValueError(f"{member.filename} is cut short: {shape} of {dtype} need {size} bytes")
        flat = np.frombuffer(file.read(size), dtype=dtype, count=math.prod(shape))
    array: Array = flat.reshape(shape, order="F" if fortran else "C")
    return array.astype(dtype.newbyteorder("="), order="C", copy=False)


def _checked(arrays: dict[str, Array], inputs: Sequence[TensorInfo], where: str) -> dict[str, Array]:
    """Match the arrays to the bindings, or name everything that does not fit."""
    problems = [problem for info in inputs for problem in _misfits(info, arrays.get(info.name), where)]
    counts = {name: len(array) for name, array in arrays.items() if array.ndim}
    if not problems and len(set(counts.values())) > 1:
        text = ", ".join(f"{name} has {size}" for name, size in counts.items())
        problems.append(
            Problem(
                "samples.uneven",
                f"arrays differ in their number of samples: {text}",
                Location(where),
                "make them equal",
            )
        )
    if problems:
        raise InputError("the samples do not fit the model", where=where, fix=problems[0].fix, problems=problems)
    return arrays


def _misfits(info: TensorInfo, array: Array | None, where: str) -> Iterator[Problem]:
    import numpy as np

    place, want = Location(where), numpy_name(info)
    if array is None:
        yield Problem(
            "samples.missing", f"there is no array for input {info.name!r}", place, f"add an array {info.name}"
        )
        return
    if array.dtype.name != want:
        fix = f"convert it with astype({want!r})"
        yield Problem("samples.dtype", f"array {info.name!r} is {array.dtype.name}, the model takes {want}", place, fix)
    elif array.dtype.kind == "f" and not np.isfinite(array).all():
        yield Problem("samples.not-finite", f"array {info.name!r} holds NaN or infinity", place, "remove those samples")
    rank = max(1, len(info.shape))
    if array.ndim != rank:
        message = f"array {info.name!r} has {array.ndim} axes, the model takes {rank}, the first of them samples"
        yield Problem("samples.rank", message, place, f"reshape it to {('samples', *info.shape[1:])}")
    elif 0 in array.shape:
        yield Problem("samples.empty", f"array {info.name!r} is empty: {array.shape}", place, "put samples into it")
    elif any(
        isinstance(fixed, int) and fixed != have for fixed, have in zip(info.shape[1:], array.shape[1:], strict=True)
    ):
        message = f"array {info.name!r} is {array.shape}, the model takes {('samples', *info.shape[1:])}"
        yield Problem("samples.shape", message, place, "preprocess the samples as the model expects")


def _arrays_digest(arrays: Mapping[str, Array]) -> Digest:
    content = {
        name: [array.dtype.str, list(array.shape), str(Digest.of_bytes(array.data.cast("B")))]
        for name, array in arrays.items()
    }
    return digest_of(content)
