"""The interface that clients of an engine rely on: taken from its artifacts, and compared between releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.errors import InputError
from trtops.release.documents import Contract

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtops.backend.port import Sidecar
    from trtops.tensor import TensorInfo


def contract_of(version: str, sidecars: Mapping[str, Sidecar]) -> Contract:
    """The interface of an engine: one for all of its targets.

    Args:
        version: ``interface.version`` of the spec.
        sidecars: target id -> sidecar; at least one.

    Raises:
        InputError: two targets differ in a tensor's name, dtype or fixed sizes (whoever wrote the spec: such targets
            are two engines).
    """
    targets = sorted(sidecars)
    first = sidecars[targets[0]]
    for target in targets[1:]:
        other = sidecars[target]
        if _shape(first.inputs) != _shape(other.inputs) or _shape(first.outputs) != _shape(other.outputs):
            raise InputError(
                f"targets {targets[0]} and {target} have different interfaces: {_words(first)} against {_words(other)}",
                fix="make engines of their own of targets whose clients differ",
            )
    # How an engine has a tensor in memory is no part of it: clients may write it as they like.
    sides = (tuple(tensor.linear for tensor in side) for side in (first.inputs, first.outputs))
    return Contract(version=version, inputs=next(sides), outputs=next(sides))


def breaking_changes(old: Contract, new: Contract) -> tuple[str, ...]:
    """What of a new interface breaks clients of the old one, in words; empty if nothing does.

    Clients keep working when the new engine takes every input that the old one took, under the same names and dtypes,
    and gives every output that the old one gave. A new output is no break; a new input is.
    """
    broken = [*_inputs_broken(old.inputs, new.inputs), *_outputs_broken(old.outputs, new.outputs)]
    return tuple(broken)


def accepts(wanted: str, version: str) -> bool:
    """Tell whether an interface version serves clients of another: same major, and not older.

    ``accepts("1.2.0", "1.3.1")`` holds; ``accepts("1.2.0", "2.0.0")`` and ``accepts("1.2.0", "1.1.9")`` do not.
    """
    want, have = _parts(wanted), _parts(version)
    return want[0] == have[0] and have >= want


def _inputs_broken(old: Sequence[TensorInfo], new: Sequence[TensorInfo]) -> list[str]:
    before, after = {tensor.name: tensor for tensor in old}, {tensor.name: tensor for tensor in new}
    broken = [f"input {name} is new and has to be given" for name in sorted(after.keys() - before.keys())]
    broken += [f"input {name} is gone" for name in sorted(before.keys() - after.keys())]
    for name in sorted(before.keys() & after.keys()):
        broken += _tensor_broken("input", before[name], after[name], narrower_breaks=True)
    return broken


def _outputs_broken(old: Sequence[TensorInfo], new: Sequence[TensorInfo]) -> list[str]:
    before, after = {tensor.name: tensor for tensor in old}, {tensor.name: tensor for tensor in new}
    broken = [f"output {name} is gone" for name in sorted(before.keys() - after.keys())]
    for name in sorted(before.keys() & after.keys()):
        broken += _tensor_broken("output", before[name], after[name], narrower_breaks=False)
    return broken


def _tensor_broken(kind: str, old: TensorInfo, new: TensorInfo, *, narrower_breaks: bool) -> list[str]:
    if old.dtype != new.dtype:
        return [f"{kind} {old.name} changes from {old.dtype} to {new.dtype}"]
    was, now = old.oip_shape, new.oip_shape
    # An input may grow more dynamic and an output more fixed; the other way round a client may be surprised.
    wide, narrow = (now, was) if narrower_breaks else (was, now)
    fits = len(was) == len(now) and all(w in (-1, n) for w, n in zip(wide, narrow, strict=True))
    return [] if fits else [f"{kind} {old.name} changes its shape from {list(was)} to {list(now)}"]


def _shape(tensors: Sequence[TensorInfo]) -> list[tuple[str, str, tuple[int, ...]]]:
    return sorted((tensor.name, tensor.dtype, tensor.oip_shape) for tensor in tensors)


def _words(sidecar: Sidecar) -> str:
    tensors = [
        f"{tensor.name} {tensor.dtype}{list(tensor.oip_shape)}" for tensor in (*sidecar.inputs, *sidecar.outputs)
    ]
    return ", ".join(tensors)


def _parts(version: str) -> tuple[int, int, int]:
    major, minor, patch = (int(part) for part in version.split("."))
    return major, minor, patch
