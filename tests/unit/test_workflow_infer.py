from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from trtops.errors import InputError
from trtops.tensor import TensorInfo
from trtops.workflow.infer import inputs_of

if TYPE_CHECKING:
    from pathlib import Path

X = TensorInfo(name="x", dtype="float32", shape=("n", 3, 4))
MASK = TensorInfo(name="mask", dtype="int64", shape=("n", "length"))


def test_an_input_that_is_left_out_is_one_random_row() -> None:
    arrays = inputs_of([X], [], seed=1)
    assert arrays["x"].shape == (1, 3, 4)
    assert arrays["x"].dtype == np.float32
    assert np.array_equal(arrays["x"], inputs_of([X], ["x=random"], seed=1)["x"])
    assert not np.array_equal(arrays["x"], inputs_of([X], [], seed=2)["x"])


def test_sizes_can_be_given() -> None:
    assert inputs_of([MASK], ["mask=random[2,7]"], seed=0)["mask"].shape == (2, 7)


def test_a_file_is_read(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.save(tmp_path / "a.npy", array)
    assert np.array_equal(inputs_of([X], [f"x=@{tmp_path / 'a.npy'}"], seed=0)["x"], array)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["x"], "'x' is not NAME=VALUE"),
        (["y=random"], "no input 'y'"),
        (["x=random", "x=random"], "given twice"),
        (["x=zeros"], "neither @FILE.npy nor random"),
        (["x=random[2,3]"], r"takes \[\?,3,4\], not \[2, 3\]"),
        (["x=random[2,3,5]"], r"not \[2, 3, 5\]"),
        (["x=@absent.npy"], "cannot be read"),
    ],
)
def test_a_wrong_input_is_named(texts: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        inputs_of([X], texts, seed=0)
    assert caught.value.fix


def test_open_sizes_have_to_be_given() -> None:
    with pytest.raises(InputError, match="more sizes than the first are open"):
        inputs_of([MASK], [], seed=0)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (np.zeros((1, 3, 4), np.float64), r"x takes float32 \[\?,3,4\], .* holds float64"),
        (np.zeros((1, 3, 5), np.float32), r"holds float32 \[1, 3, 5\]"),
        (np.array([{"a": 1}], dtype=object), "is not a .npy file"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, content: np.ndarray, says: str) -> None:
    np.save(tmp_path / "a.npy", content, allow_pickle=True)
    with pytest.raises(InputError, match=says):
        inputs_of([X], [f"x=@{tmp_path / 'a.npy'}"], seed=0)


def test_a_file_cut_short_and_an_archive_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((9, 3, 4), np.float32))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:200])
    np.savez(tmp_path / "b.npz", x=np.zeros(3))
    for name in ("cut.npy", "b.npz"):
        with pytest.raises(InputError):
            inputs_of([X], [f"x=@{tmp_path / name}"], seed=0)
