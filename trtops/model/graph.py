"""Graphs that no order of their nodes can run: tensors that nothing makes, or two nodes, or that make each other."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from trtops.model.facts import Fact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtops.model.read import OnnxFile

_SHOWN = 3


def graph_facts(model: OnnxFile) -> Iterator[Fact]:
    """What is wrong with how the nodes of the main graph hang together. Nodes in another order than they run are not.

    ONNX asks for nodes in their order and for one maker of each tensor (the IR's "Nodes", "Graphs"); runtimes sort
    nodes, and refuse the rest with words that name no cause.
    """
    graph = model.proto.graph
    nodes = list(graph.node)
    given = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    given |= {sparse.values.name for sparse in graph.sparse_initializer}
    makers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in makers or name in given:
                first = _name(nodes[makers[name]]) if name in makers else "an input or a weight"
                yield _fact(node, f"makes the tensor {name!r}, which {first} is already", "rename one of the two")
                return
            makers[name] = index
    reads = [sorted(_read(node)) for node in nodes]
    for index, node in enumerate(nodes):
        missing = [name for name in reads[index] if name not in makers and name not in given]
        if missing:
            yield _fact(node, f"reads {missing[0]!r}, which no input, weight or node is", _EXPORT)
            return
    for value in graph.output:
        if value.name not in makers and value.name not in given:
            yield Fact(
                code="model.broken-graph",
                severity="error",
                message=f"the output {value.name!r} is made by no node",
                node=value.name,
                fix=_EXPORT,
            )
            return
    stuck = _stuck(reads, makers)
    if stuck:
        others = ", ".join(_name(nodes[index]) for index in stuck[1 : 1 + _SHOWN])
        more = f" and {len(stuck) - 1 - _SHOWN} more" if len(stuck) > 1 + _SHOWN else ""
        what = f"waits for its own output, by way of {others}{more}" if others else "reads its own output"
        yield _fact(nodes[stuck[0]], what, "break the circle: ONNX has Loop and Scan for what repeats")


_EXPORT = "export the model again; check it with onnx.checker.check_model(path)"


def _fact(node: Any, what: str, fix: str) -> Fact:  # noqa: ANN401 - protobuf has no types
    name = _name(node)
    return Fact(
        code="model.broken-graph", severity="error", message=f"node {name} ({node.op_type}) {what}", node=name, fix=fix
    )


def _name(node: Any) -> str:  # noqa: ANN401 - protobuf has no types
    return str(node.name or next(iter(node.output), ""))


def _read(node: Any) -> set[str]:  # noqa: ANN401 - protobuf has no types
    """What a node reads, the graphs inside it included: they see what is around them."""
    names = set(filter(None, node.input))
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            inside = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            for inner in graph.node:
                names |= _read(inner) - inside
                inside |= set(inner.output)
            names |= {value.name for value in graph.output} - inside
    return names


def _stuck(reads: list[list[str]], makers: Mapping[str, int]) -> list[int]:
    """Nodes of a circle, in their order (Kahn, 1962: what is left when nodes are taken as their inputs are there)."""
    after: list[list[int]] = [[] for _ in reads]
    before = [0] * len(reads)
    for index, names in enumerate(reads):
        for name in names:
            if name in makers:
                after[makers[name]].append(index)
                before[index] += 1
    ready = deque(index for index, count in enumerate(before) if not count)
    while ready:
        for index in after[ready.popleft()]:
            before[index] -= 1
            if not before[index]:
                ready.append(index)
    left = {index for index, count in enumerate(before) if count}
    # What only waits for the circle is none of it: take away, again and again, what nothing left waits for.
    waiting = {index: sum(other in left for other in after[index]) for index in left}
    idle = deque(index for index, count in waiting.items() if not count)
    while idle:
        index = idle.popleft()
        left.discard(index)
        for name in reads[index]:
            maker = makers.get(name)
            if maker in left:
                waiting[maker] -= 1
                if not waiting[maker]:
                    idle.append(maker)
    return sorted(left)
