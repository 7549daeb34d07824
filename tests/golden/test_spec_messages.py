"""The words of errors in documents are part of the product: a change of them has to be seen in review.

To accept new words: ``TRTOPS_GOLDEN=write pytest tests/golden/test_spec_messages.py``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trtops.errors import InputError
from trtops.spec.load import load_engine, load_runtime

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent / "spec"


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("bad_engine.txt", lambda: load_engine(Path("bad_engine.yaml"))),
        ("bad_runtime.txt", lambda: load_runtime(Path(), "prod")),
    ],
)
def test_the_words_of_every_problem(name: str, load: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    with pytest.raises(InputError) as caught:
        load()
    said = "".join(f"{problem}\n    {problem.fix}\n" for problem in caught.value.problems)
    expected = HERE / name
    if os.environ.get("TRTOPS_GOLDEN") == "write":
        expected.write_text(said)
    assert said == expected.read_text()
    assert "hunter2" not in said
    assert "hunter2" not in str(caught.value)
