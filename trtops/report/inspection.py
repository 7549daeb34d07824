"""What is inside an engine, for a terminal; and what differs between two."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trtops.report.escape import visible
from trtops.report.numbers import size
from trtops.report.rows import Table
from trtops.report.text import PLAIN, Style, table

if TYPE_CHECKING:
    from trtops.backend.inspect import Inspection
    from trtops.backend.port import Sidecar


def inspection(sidecar: Sidecar, found: Inspection | None, reason: str | None, style: Style = PLAIN) -> str:
    """Sidecar, bindings, steps of the build, memory, and layers.

    Args:
        sidecar: of the artifact.
        found: its layers; None where this machine cannot look into it.
        reason: why it cannot.
        style: how to write.
    """
    built = f"{sidecar.backend} {sidecar.backend_version} on {sidecar.device.label}"
    lines = [
        f"{style.paint(sidecar.target.id, 'bold')}: artifact {sidecar.artifact.short}, {size(sidecar.size_bytes)}",
        f"built by {built}; plan {sidecar.plan.short}, model {sidecar.model.short}",
    ]
    lines += [f"step {number}: {visible(step)}" for number, step in enumerate(sidecar.steps, start=1)]
    rows = [
        (side, info.name, info.dtype, "×".join(str(dim) or "?" for dim in info.shape) or "scalar", info.format)  # noqa: RUF001
        for side, infos in (("input", sidecar.inputs), ("output", sidecar.outputs))
        for info in infos
    ]
    written = "".join(f"{line}\n" for line in lines) + "\n"
    wide = 5 if any(row[-1] != "linear" for row in rows) else 4
    head = ("tensor", "name", "type", "shape", "format")[:wide]
    written += table(Table(head, tuple(row[:wide] for row in rows)), style)
    ranges = [
        (profile.name, name, *("×".join(map(str, shape)) for shape in limits.shapes().values()))  # noqa: RUF001
        for profile in sidecar.profiles
        for name, limits in profile.inputs.items()
    ]
    written += "\n" + table(Table(("profile", "input", "min", "opt", "max"), tuple(ranges)), style)
    if found is None:
        return f"{written}\nlayers: {visible(reason or 'not known')}\n"
    memory = [
        f"{name} {size(count)}"
        for name, count in (("weights", found.weights_bytes), ("scratch memory", found.scratch_bytes))
        if count is not None
    ]
    if not found.layers:
        told = f"; {', '.join(memory)}" if memory else ""
        return f"{written}\nlayers: {sidecar.backend}'s inspector tells of none{told}\n"
    types = Counter(layer.precision for layer in found.layers)
    summary = ", ".join(f"{count} {kind}" for kind, count in types.most_common())
    listed = tuple((str(number), layer.kind, layer.precision, layer.name) for number, layer in enumerate(found.layers))
    written += f"\n{len(found.layers)} layers ({summary}){'; ' if memory else ''}{', '.join(memory)}\n"
    return written + table(Table(("#", "kind", "type", "layer"), listed, frozenset({0})), style)


def difference(one: tuple[Sidecar, Inspection | None], other: tuple[Sidecar, Inspection | None]) -> str:
    """What differs between two artifacts: facts of their sidecars, and layers by name; one difference a line."""
    lines = []
    before, after = (_facts(sidecar) for sidecar, _ in (one, other))
    lines += [f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]
    steps = [set(sidecar.steps) for sidecar, _ in (one, other)]
    lines += [f"- step {step}" for step in sorted(steps[0] - steps[1])]
    lines += [f"+ step {step}" for step in sorted(steps[1] - steps[0])]
    if one[1] is not None and other[1] is not None:
        sides = [
            {layer.name: f"{layer.kind} {layer.precision}" for layer in found.layers} for found in (one[1], other[1])
        ]
        lines += [f"- layer {name} ({sides[0][name]})" for name in sides[0] if name not in sides[1]]
        lines += [f"+ layer {name} ({sides[1][name]})" for name in sides[1] if name not in sides[0]]
        lines += [
            f"layer {name}: {kind} -> {sides[1][name]}"
            for name, kind in sides[0].items()
            if sides[1].get(name, kind) != kind
        ]
    return "".join(f"{visible(line)}\n" for line in lines) or "the artifacts do not differ\n"


def _facts(sidecar: Sidecar) -> dict[str, str]:
    return {
        "artifact": sidecar.artifact.short,
        "size": size(sidecar.size_bytes),
        "model": sidecar.model.short,
        "plan": sidecar.plan.short,
        "target": sidecar.target.id,
        "built by": f"{sidecar.backend} {sidecar.backend_version}",
        "device": sidecar.device.label,
        "inputs": "; ".join(map(str, sidecar.inputs)),
        "outputs": "; ".join(map(str, sidecar.outputs)),
        "profiles": ", ".join(profile.model_dump_json() for profile in sidecar.profiles),
    }
