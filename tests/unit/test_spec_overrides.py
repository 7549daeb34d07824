"""What a runtime config makes of a spec's batching."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.releases import runtime
from trtops.digest import Digest
from trtops.spec.engine import Batching, BatchingOverride, Padding, Queue
from trtops.spec.overrides import apply_override, contradiction

PADDED = Padding(sizes={"width": (8, 16)})


def test_only_what_a_config_names_changes() -> None:
    batching = Batching.model_validate({"max_batch": 8, "max_queue_delay": "2ms", "priorities": 3})
    assert apply_override(batching, BatchingOverride()) == batching
    queue = Queue(max_size=7)
    changed = apply_override(batching, BatchingOverride(max_batch=4, max_queue_delay=0, queue=queue))
    assert changed == Batching(max_batch=4, max_queue_delay=0, queue=queue, priorities=3)


def test_padding_and_flush_are_set_and_taken_back() -> None:
    plain = Batching.model_validate({"max_batch": 8, "max_queue_delay": "2ms"})
    changed = apply_override(plain, BatchingOverride(padding=PADDED, flush="adaptive"))
    assert (changed.padding, changed.flush) == (PADDED, "adaptive")
    assert apply_override(changed, BatchingOverride(padding="none", flush="fixed")) == plain
    assert apply_override(plain, BatchingOverride(padding="none")) == plain


@pytest.mark.parametrize(
    ("spec", "override", "field"),
    [
        ({}, {"flush": "adaptive"}, "flush"),
        ({"flush": "adaptive", "max_queue_delay": "2ms"}, {"max_queue_delay": "0ms"}, "max_queue_delay"),
        ({"max_queue_delay": "2ms"}, {"flush": "adaptive", "max_queue_delay": "0ms"}, "flush"),
    ],
)
def test_a_wait_of_nothing_cannot_adapt(spec: dict[str, Any], override: dict[str, Any], field: str) -> None:
    refused = contradiction(Batching.model_validate(spec), BatchingOverride.model_validate(override))
    assert refused is not None
    assert refused[0] == field
    assert "max_queue_delay" in refused[1] + refused[2]


def test_what_the_spec_says_itself_is_not_judged_here() -> None:
    odd = Batching.model_validate({"flush": "adaptive"})
    assert contradiction(odd, BatchingOverride(priorities=2)) is None
    assert contradiction(odd, BatchingOverride.model_validate({"max_queue_delay": "2ms"})) is None


def test_configs_of_before_keep_their_digests() -> None:
    assert "padding" not in runtime().canonical_bytes().decode()
    assert "flush" not in runtime().canonical_bytes().decode()
    changed = runtime().model_copy(update={"batching": BatchingOverride(flush="fixed")})
    assert Digest.of_bytes(changed.canonical_bytes()) != Digest.of_bytes(runtime().canonical_bytes())


@pytest.mark.parametrize("value", ["off", {"sizes": {}}, {"sizes": {"width": [16, 8]}}])
def test_padding_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        BatchingOverride.model_validate({"padding": value})
