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


def interface_facts(
    lock: InterfaceLock | None, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
) -> InterfaceFacts:
    """What a model changes of a locked interface."""
    if lock is None:
        return InterfaceFacts(released=None, released_numbers=None, change=None)
    before = lock.model_dump(mode="json")
    now = {
        "inputs": [one.model_dump(mode="json") for one in inputs],
        "outputs": [one.model_dump(mode="json") for one in outputs],
    }
    return InterfaceFacts(
        released=lock.version,
        released_numbers=version_numbers(lock.version),
        change=interface_change(before, now),
    )
