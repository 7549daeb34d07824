"""The interface of an engine: one for all targets, and what breaks its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.releases import X, Y, sidecar
from trtops.errors import InputError
from trtops.release.contract import accepts, breaking_changes, contract_of
from trtops.release.documents import Contract

if TYPE_CHECKING:
    from trtops.tensor import TensorInfo


def _contract(
    version: str = "1.0.0", inputs: tuple[TensorInfo, ...] = (X,), outputs: tuple[TensorInfo, ...] = (Y,)
) -> Contract:
    return Contract(version=version, inputs=inputs, outputs=outputs)


def _tensor(base: TensorInfo, **changes: Any) -> TensorInfo:
    return base.model_copy(update=changes)


def test_targets_share_one_interface() -> None:
    renamed = _tensor(X, shape=("batch", 3, 48, 192))
    contract = contract_of("1.2.3", {"a": sidecar(0), "b": sidecar(1, inputs=(renamed,))})
    assert contract == _contract("1.2.3")


def test_targets_that_differ_are_named() -> None:
    with pytest.raises(InputError, match=r"targets a and b.*x float32.*x float16"):
        contract_of("1.0.0", {"a": sidecar(0), "b": sidecar(1, inputs=(_tensor(X, dtype="float16"),))})


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (_contract(inputs=(X, _tensor(X, name="z"))), "input z is new"),
        (_contract(inputs=()), "input x is gone"),
        (_contract(inputs=(_tensor(X, dtype="float16"),)), "input x changes from float32 to float16"),
        (_contract(inputs=(_tensor(X, shape=(1, 3, 48, 192)),)), "input x changes its shape"),
        (_contract(inputs=(_tensor(X, shape=("n", 3, 48)),)), "input x changes its shape"),
        (_contract(outputs=()), "output y is gone"),
        (_contract(outputs=(_tensor(Y, shape=("n", "m")),)), "output y changes its shape"),
    ],
)
def test_what_breaks_clients(new: Contract, words: str) -> None:
    (found,) = breaking_changes(_contract(), new)
    assert words in found


@pytest.mark.parametrize(
    "new",
    [
        _contract(),
        _contract(outputs=(Y, _tensor(Y, name="more"))),
        _contract(inputs=(_tensor(X, shape=("n", 3, 48, "w")),)),
        _contract(outputs=(_tensor(Y, shape=(1, 2)),)),
        _contract(inputs=(_tensor(X, shape=("batch", 3, 48, 192)),)),
    ],
)
def test_what_breaks_nobody(new: Contract) -> None:
    assert breaking_changes(_contract(), new) == ()


@pytest.mark.parametrize(
    ("wanted", "version", "taken"),
    [
        ("1.2.0", "1.2.0", True),
        ("1.2.0", "1.10.1", True),
        ("1.2.0", "1.1.9", False),
        ("1.2.0", "2.0.0", False),
        ("2.0.0", "1.9.9", False),
    ],
)
def test_a_client_takes_its_major_from_its_minor_on(wanted: str, version: str, taken: bool) -> None:
    assert accepts(wanted, version) is taken
