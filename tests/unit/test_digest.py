from __future__ import annotations

import hashlib
import io
from pathlib import Path  # noqa: TC003 - pytest reads the annotation of a fixture

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from trtops.device import Device
from trtops.digest import Digest, canonical, digest_of


@given(st.binary())
def test_text_round_trips_and_agrees_with_hashlib(data: bytes) -> None:
    digest = Digest.of_bytes(data)
    assert digest.value == hashlib.sha256(data).hexdigest()
    assert Digest.parse(str(digest)) == digest


@pytest.mark.parametrize(
    "text", ["", "sha256:", "sha256:" + "A" * 64, "md5:" + "0" * 32, "0" * 64, "sha256:" + "0" * 63]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a digest"):
        Digest.parse(text)


def test_a_file_and_its_bytes_have_one_digest(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000
    (tmp_path / "f").write_bytes(data)
    assert Digest.of_file(tmp_path / "f") == Digest.of_bytes(data)
    stream = io.BytesIO(data)
    assert Digest.of_chunks(iter(lambda: stream.read(7), b"")) == Digest.of_bytes(data)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), _json, max_size=6))
def test_the_order_of_keys_does_not_matter(value: dict[str, object]) -> None:
    assert digest_of(dict(reversed(list(value.items())))) == digest_of(value)


_odd = st.sampled_from(
    [0.1, 1.0, -0.0, 1e-5, 1e-7, 1e16, 1e21, 5e-324, 2**53 - 1, "\x7f", "\x1f\b", "1.0", "[1.0,", ",1e5}", "é"]
)


@given(st.recursive(_json | _odd | st.floats(allow_nan=False, allow_infinity=False), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_canonical_bytes_are_those_of_the_library(value: object) -> None:
    assert canonical(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [{1: 2}, {"a": {None: 1}}, {"a": b"x"}, {"a": {1, 2}}])
def test_what_is_no_json_is_treated_as_the_library_does(value: object) -> None:
    try:
        expected: object = rfc8785.dumps(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, AttributeError) as error:
        expected = type(error)
    try:
        found: object = canonical(value)
    except (TypeError, ValueError, AttributeError) as error:
        found = type(error)
    assert found == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**60])
def test_what_json_cannot_carry_is_refused(value: float) -> None:
    with pytest.raises(ValueError):
        canonical(value)


def test_a_value_round_trips_through_its_canonical_bytes() -> None:
    device = Device(kind="gpu", name="NVIDIA H200", compute_capability="9.0", memory_bytes=150_754_820_096)
    assert Device.model_validate_json(device.canonical_bytes()) == device
    assert device.digest() != Device(kind="cpu", name="x86_64").digest()
    assert device.label == "NVIDIA H200 (sm 9.0)"
