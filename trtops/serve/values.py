"""Requests and answers of the Open Inference Protocol as values: what :mod:`.oip` reads and writes.

In a module of their own, since structs of msgspec cannot be compiled (docs/adr/0022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from trtops.executor.port import Request

if TYPE_CHECKING:
    import numpy as np

    from trtops.serve.regions import Place
    from trtops.tensor import Shape, TensorInfo


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
class Piece:
    """A binary tensor: where its bytes stand after the JSON. ``view``: its type, if the bytes are its elements."""

    tensor: TensorInfo
    shape: Shape
    offset: int
    size: int
    view: np.dtype[np.generic] | None


@dataclass(frozen=True, slots=True)
class Plan:
    """How to read every request whose JSON part is the same bytes: all of its inputs are binary."""

    head: Head
    pieces: tuple[Piece, ...]
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
