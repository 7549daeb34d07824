"""The interface that clients of a released engine rely on, as a committed file: ``governance/interfaces/ENGINE.yaml``.

A pull request is held to it with no registry at hand. It stands with governance, not beside the engine: where policies
of the base branch judge, the base branch's file counts, so that nobody takes back what was promised in the same change.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from trtops.digest import Value
from trtops.document import parse_document
from trtops.errors import InputError, Location, Undecided
from trtops.policy.inputs import Numbers, version_numbers
from trtops.policy.inputs_release import InterfaceChange, interface_change
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtops.model.facts import Preflight
    from trtops.spec.engine import Profile

FOLDER = "governance/interfaces"
_FIX = "write it with `trtops interface lock ENGINE --env ENV`"


class InterfaceLock(Value):
    """What an engine has promised its clients.

    Attributes:
        engine: name, as that of the file.
        environment: from whose stable channel it was taken.
        release: digest of the engine release.
        version: interface version.
        inputs, outputs: tensors.
    """

    apiVersion: Literal["trtops/v1"] = "trtops/v1"  # noqa: N815 - the field's name in every document of this kind
    kind: Literal["Interface"] = "Interface"
    engine: str
    environment: str
    release: str
    version: Annotated[str, StringConstraints(pattern=r"^\d{1,9}\.\d{1,9}\.\d{1,9}$")]
    inputs: Annotated[tuple[TensorInfo, ...], Field(max_length=1000)]
    outputs: Annotated[tuple[TensorInfo, ...], Field(max_length=1000)]

    def text(self) -> str:
        """The file. Law: ``parse_lock(lock.text().encode(), …) == lock``."""
        lines = [
            "# What clients of this engine rely on: a change that breaks it needs a new major `interface.version`.",
            "# Written by `trtops interface lock`; not for hands.",
            f"apiVersion: {self.apiVersion}",
            f"kind: {self.kind}",
            f"engine: {self.engine}",
            f"environment: {self.environment}",
            f"release: {json.dumps(self.release)}",
            f"version: {json.dumps(self.version)}",
        ]
        for name, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            lines += [f"{name}:", *(f"  - {json.dumps(one.model_dump(mode='json'))}" for one in tensors)]
            if not tensors:
                lines[-1] += " []"
        return "\n".join(lines) + "\n"


class InterfaceFacts(Value):
    """What clients of the released engine would see change; null where no release is locked.

    ``released`` is the interface version of ``governance/interfaces``, ``released_numbers`` its integers.
    """

    released: str | None
    released_numbers: Numbers | None
    change: InterfaceChange | None


def parse_lock(content: bytes, engine: str, label: str) -> InterfaceLock:
    """Read a lock.

    Args:
        content: of the file.
        engine: whose it has to be.
        label: what messages call the file.

    Raises:
        Undecided: it is none, or of another engine: a promise that cannot be read is never taken for absent.
    """
    try:
        document = parse_document(content, file=label)
        lock = InterfaceLock.model_validate_json(json.dumps(document.data), strict=True)
    except InputError as error:
        raise Undecided(error.what, where=error.where or label, fix=error.fix or _FIX) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(str(part) for part in first["loc"])
        raise Undecided(f"`{at}`: {first['msg']}", where=Location(label), fix=_FIX) from None
    if lock.engine != engine:
        raise Undecided(f"this is the interface of {lock.engine}, not of {engine}", where=Location(label), fix=_FIX)
    return lock


def lock_of(files: Mapping[str, bytes], engine: str) -> InterfaceLock | None:
    """The lock of an engine among the files that decide; None if it has none.

    Raises:
        Undecided: as :func:`parse_lock`.
    """
    path = f"{FOLDER}/{engine}.yaml"
    content = files.get(path)
    return None if content is None else parse_lock(content, engine, path)


def interface_facts(lock: InterfaceLock | None, found: Preflight, profiles: Sequence[Profile]) -> InterfaceFacts:
    """What a model changes of a locked interface, as it would be built.

    A lock is of a built engine. The build fixes an input's open dimension that every profile holds at one size, and
    infers what follows from that for outputs: here an output's open dimension has the promised size where preflight
    infers that size at every point of every profile.

    Args:
        lock: of the released engine; None: none is known.
        found: preflight of the model.
        profiles: shapes that the engine will take.
    """
    if lock is None:
        return InterfaceFacts(released=None, released_numbers=None, change=None)
    promised = {one.name: one for one in lock.outputs}
    now = {
        "inputs": [_fixed(one, profiles) for one in found.model.inputs],
        "outputs": [_inferred(one, promised.get(one.name), found) for one in found.model.outputs],
    }
    return InterfaceFacts(
        released=lock.version,
        released_numbers=version_numbers(lock.version),
        change=interface_change(
            lock.model_dump(mode="json"),
            {kind: [one.model_dump(mode="json") for one in tensors] for kind, tensors in now.items()},
        ),
    )


def _fixed(tensor: TensorInfo, profiles: Sequence[Profile]) -> TensorInfo:
    given = [profile.inputs[tensor.name] for profile in profiles if tensor.name in profile.inputs]
    shapes = [shape for limits in given for shape in limits.shapes().values()]
    return _resized(tensor, [size.pop() if len(size) == 1 else None for size in _sizes(shapes, len(tensor.shape))])


def _inferred(tensor: TensorInfo, promised: TensorInfo | None, found: Preflight) -> TensorInfo:
    if promised is None or len(promised.shape) != len(tensor.shape):
        return tensor
    points = [point for profile in found.output_shapes.values() for point in profile.values()]
    shapes = [point.get(tensor.name, ()) for point in points]
    pairs = zip(promised.shape, _sizes(shapes, len(tensor.shape)), strict=True)
    return _resized(tensor, [dim if isinstance(dim, int) and size == {dim} else None for dim, size in pairs])


def _sizes(shapes: Sequence[tuple[int, ...]], rank: int) -> list[set[int]]:
    """The sizes that each dimension takes; empty sets where a shape has another rank, which preflight tells of."""
    fits = bool(shapes) and all(len(shape) == rank for shape in shapes)
    return [set(column) for column in zip(*shapes, strict=True)] if fits else [set() for _ in range(rank)]


def _resized(tensor: TensorInfo, sizes: Sequence[int | None]) -> TensorInfo:
    """The same tensor; an open dimension takes the size that stands in its place, if one does."""
    pairs = zip(tensor.shape, sizes, strict=True)
    shape = tuple(dim if isinstance(dim, int) or size is None else size for dim, size in pairs)
    return tensor.model_copy(update={"shape": shape})
