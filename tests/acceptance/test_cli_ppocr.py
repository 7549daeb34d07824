"""The README's command on the shipped engine: its real model, out of a wheel."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.builds import PPOCR_SHA256, ppocr
from tests.support.repository import CHECKOUT, Repository, make_repository
from trtops.digest import Digest

pytestmark = [pytest.mark.service, pytest.mark.network]


@pytest.fixture
def wheel(request: pytest.FixtureRequest) -> Path:
    """A folder with the engine's wheel, kept across runs of the suite: an index is asked once."""
    cache = request.config.cache
    assert cache is not None
    folder = cache.mkdir("trtops-wheels")
    assert Digest.of_file(ppocr(folder)).value == PPOCR_SHA256
    return Path(folder)


def test_ship_twice(wheel: Path, folder: Path) -> None:
    repo: Repository = make_repository(folder / "repo", engine=False)
    shutil.copytree(CHECKOUT / "engines" / "ppocr-cls", repo.root / "engines" / "ppocr-cls")
    # pip takes the wheel from the folder, as it would from an index.
    offline: Any = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = ("ship", "engines/ppocr-cls", "--smoke")
    first = repo.run(*command, **offline)
    first.says(0, "generation 1 signed and published", "answered by generation 1")
    assert "float32[1, 2]" in first.out
    second = repo.run(*command, **offline).says(0, "evidence reused", "nothing new: generation 1 says the same")
    assert "answered by generation 1" in second.out
    assert " built " not in second.out
    evidence = json.loads(repo.call("verify", "ppocr-cls", "--json").says(0).out)
    assert evidence["evidence"][0]["accuracy"]["passed"]
    repo.call("build", "ppocr-cls").says(0, "the model was changed before the build")
