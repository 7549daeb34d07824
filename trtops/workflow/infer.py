"""``trtops infer``: one question to a server."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from trtops.serve.client import Model
    from trtops.tensor import TensorInfo

    Array = NDArray[np.generic]

_SHAPE = re.compile(r"random(?:\[(\d+(?:,\d+)*)\])?")
_DEFAULT_ROWS = 1
MAX_FILE_BYTES = 256 << 20
_SLOT_OUTPUT = 1 << 24


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        model: what the server says of the engine.
        outputs: name -> array.
        seconds: from sending to the whole answer.
    """

    model: Model
    outputs: Mapping[str, Array]
    seconds: float


def infer(url: str, engine: str, texts: Sequence[str], *, binary: bool = True, seed: int = 0) -> Answer:
    """Ask a server once.

    Args:
        url: ``http://host:port``.
        engine: its name.
        texts: ``NAME=@file.npy``, ``NAME=random`` or ``NAME=random[8,3,48,192]``; an input that is left out is random.
        binary: tensors as bytes, not as JSON numbers.
        seed: of random inputs.

    Raises:
        InputError: an input is unknown, given twice, or no array of it can be had.
        Unavailable: nothing answers there.
    """
    from trtops.serve.client import describe
    from trtops.serve.client import infer as ask

    model = describe(url, engine)
    arrays = inputs_of(model.inputs, texts, seed)
    start = time.perf_counter()
    outputs = ask(url, engine, arrays, binary=binary, model=model)
    return Answer(model, outputs, time.perf_counter() - start)


def infer_shared(path: Path, engine: str, texts: Sequence[str], *, seed: int = 0) -> Answer:
    """Ask a server of this host once, by shared memory.

    Args:
        path: socket of the server.
        engine: its name.
        texts: as for :func:`infer`.
        seed: of random inputs.

    Raises:
        InputError: as for :func:`infer`, or the engine is not served there.
        Unavailable: nothing listens there, or it refuses this user.
    """
    from contextlib import closing

    from trtops.executor.remote import RemoteEngines
    from trtops.serve.client import Model

    with closing(RemoteEngines(path, slots=1, output_bytes=_SLOT_OUTPUT)) as asking:
        found = {info.name: info for info in asking.engines()}
        info = found.get(engine)
        if info is None:
            raise InputError(
                f"{engine} is not served there", where=str(path), fix=f"served: {', '.join(found) or 'nothing'}"
            )
        arrays = inputs_of(info.inputs, texts, seed)
        rows = next(iter(arrays.values())).shape[0] if arrays else 1
        start = time.perf_counter()
        outcome = asking.infer(engine, arrays, rows)
        seconds = time.perf_counter() - start
    return Answer(Model(engine, info.version, info.backend, info.inputs, info.outputs), dict(outcome.outputs), seconds)


def inputs_of(infos: Sequence[TensorInfo], texts: Sequence[str], seed: int) -> dict[str, Array]:
    """Arrays for every input.

    Raises:
        InputError: as :func:`infer`.
    """
    import numpy as np

    known = {info.name: info for info in infos}
    given: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition("=")
        if not found:
            raise InputError(f"{text!r} is not NAME=VALUE", fix="write x=@file.npy or x=random")
        if name not in known:
            raise InputError(f"there is no input {name!r}", fix=f"inputs are {', '.join(known)}")
        if name in given:
            raise InputError(f"input {name!r} is given twice", fix="give it once")
        given[name] = value
    random = np.random.default_rng(seed)
    return {info.name: _array(info, given.get(info.name, "random"), random) for info in infos}


def _array(info: TensorInfo, value: str, random: np.random.Generator) -> Array:
    if value.startswith("@"):
        return _loaded(info, Path(value[1:]))
    match = _SHAPE.fullmatch(value)
    if match is None:
        sizes = ",".join(str(size) if isinstance(size, int) else "SIZE" for size in info.shape)
        fix = f"write {info.name}=@FILE.npy, {info.name}=random or {info.name}=random[{sizes}]"
        raise InputError(f"{info.name}={value!r} is neither @FILE.npy nor random", fix=fix)
    if match[1]:
        shape = tuple(int(size) for size in match[1].split(","))
        if not info.accepts(shape):
            raise InputError(f"{info.name} takes {_words(info)}, not {list(shape)}", fix="give sizes that fit")
    else:
        shape = _default_shape(info)
    from trtops.accuracy.elements import random_array

    return random_array(info.dtype, shape, random)


def _default_shape(info: TensorInfo) -> tuple[int, ...]:
    """One row, if only the first size is open."""
    if any(isinstance(size, str) for size in info.shape[1:]):
        raise InputError(
            f"{info.name} takes {_words(info)}: more sizes than the first are open",
            fix=f"give them: --input {info.name}=random[SIZE,SIZE,…]",
        )
    return tuple(size if isinstance(size, int) else _DEFAULT_ROWS for size in info.shape)


def _loaded(info: TensorInfo, path: Path) -> Array:
    import numpy as np

    from trtops.accuracy.elements import numpy_name

    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"{path} is larger than {MAX_FILE_BYTES} bytes", fix="send fewer rows at once")
        array: Array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}", fix="give the path of a .npy file"
        ) from None
    except (ValueError, EOFError):  # their words tell of pickled objects, which nobody shall be led to load
        raise InputError(
            f"{path} is not a .npy file of numbers, or it is cut off", fix="write it with numpy.save"
        ) from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} is an .npz, which holds many arrays", fix="write one with numpy.save")
    wanted = np.dtype(numpy_name(info))
    if array.dtype != wanted or not info.accepts(array.shape):
        found = f"{array.dtype} {list(array.shape)}"
        raise InputError(f"{info.name} takes {wanted} {_words(info)}, {path} holds {found}", fix="convert the file")
    return np.ascontiguousarray(array)


def _words(info: TensorInfo) -> str:
    return "[" + ",".join("?" if isinstance(size, str) else str(size) for size in info.shape) + "]"
