from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtops.spec.engine import EngineSpec, Memory, Queue
from trtops.spec.load import merge
from trtops.spec.units import BYTES, MICROSECONDS, parse_bytes, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS = st.sampled_from("abcd")
LEAVES = st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
TREES = st.dictionaries(
    KEYS,
    st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=6),
    max_size=3,
)


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for key, value in tree.items():
        found |= leaves(value, (*path, key)) if isinstance(value, dict) else {(*path, key): value}
    return found


@given(TREES, TREES)
def test_every_leaf_of_the_overlay_is_in_the_result_and_nothing_is_invented(
    base: dict[str, Any], overlay: dict[str, Any]
) -> None:
    before = deepcopy((base, overlay))
    merged = merge(base, overlay)
    assert (base, overlay) == before
    found = leaves(merged)
    assert leaves(overlay).items() <= found.items()
    assert found.items() <= {**leaves(base), **leaves(overlay)}.items()


@given(TREES)
def test_merging_nothing_or_itself_changes_nothing(tree: dict[str, Any]) -> None:
    assert merge(tree, {}) == tree
    assert merge(tree, tree) == tree


@given(TREES)
def test_null_removes(tree: dict[str, Any]) -> None:
    assert merge(tree, dict.fromkeys(tree)) == {}


@given(TREES, TREES, TREES)
def test_overlays_may_be_merged_in_any_grouping(a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]) -> None:
    # Associative where no mapping is replaced by something else.
    if all(isinstance(x, dict) == isinstance(y, dict) for x, y in _pairs(a, b, c)):
        assert merge(merge(a, b), c) == merge(a, merge(b, c))


def _pairs(*trees: Any) -> list[tuple[Any, Any]]:
    pairs: list[tuple[Any, Any]] = []
    for key in {key for tree in trees for key in tree}:
        values = [tree[key] for tree in trees if key in tree]
        pairs += [(x, y) for x in values for y in values]
        pairs += _pairs(*[value for value in values if isinstance(value, dict)])
    return pairs


@given(st.integers(0, 10**6), st.sampled_from(list(BYTES)))
def test_a_size_is_its_number_times_its_unit(number: int, unit: str) -> None:
    assert parse_bytes(f"{number}{unit}") == parse_bytes(f" {number} {unit} ") == number * BYTES[unit]


@given(st.integers(0, 10**6), st.sampled_from(list(MICROSECONDS)))
def test_a_duration_is_its_number_times_its_unit(number: int, unit: str) -> None:
    assert parse_duration(f"{number}{unit}") == number * MICROSECONDS[unit]


@given(st.integers(0, 1 << 50), st.integers(0, 24 * 3600 * 10**6))
def test_values_come_back_from_their_canonical_bytes(size: int, duration: int) -> None:
    memory = Memory.model_validate({"workspace": f"{size}B"})
    queue = Queue.model_validate({"timeout": f"{duration}us"})
    assert memory.workspace == size
    assert Memory.model_validate_json(memory.canonical_bytes()) == memory
    assert Queue.model_validate_json(queue.canonical_bytes()) == queue


def outcome(parse: Callable[[Any], int], value: Any) -> int:
    try:
        return parse(value)
    except ValueError as error:
        return 0 if "write" in str(error) else -1


@given(st.text(max_size=12) | st.integers() | st.floats() | st.booleans() | st.none() | st.lists(st.integers()))
def test_nothing_but_a_value_error_comes_of_a_wrong_unit(value: Any) -> None:
    for parse in (parse_bytes, parse_duration):
        assert outcome(parse, value) >= 0


def test_a_spec_comes_back_from_its_canonical_bytes(spec_data: dict[str, Any]) -> None:
    spec = EngineSpec.model_validate(spec_data)
    again = EngineSpec.model_validate_json(spec.canonical_bytes())
    assert again == spec
    assert again.digest() == spec.digest()


@pytest.fixture
def spec_data() -> dict[str, Any]:
    return {
        "apiVersion": "trtops/v1",
        "kind": "Engine",
        "metadata": {"name": "a"},
        "model": {"source": "file:m.onnx", "sha256": "0" * 64},
        "targets": [{"backend": "tensorrt", "slo": {"p99": "5ms", "throughput": 10.5}}],
        "profiles": [{"inputs": {"x": {"min": [1], "opt": [2], "max": [4]}}}],
        "memory": {"workspace": "1.5GiB"},
        "accuracy": {"atol": 1e-5},
    }
