"""The reports of ``trtops check``: to files, in every format, whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.changes import privileged
from trtops.errors import InputError, StorageError
from trtops.report.checks import CheckReport
from trtops.workflow.outputs import Output, parse_outputs, render, write_outputs

if TYPE_CHECKING:
    from tests.support.repository import Repository

pytestmark = pytest.mark.service


@pytest.fixture
def repo(proposing: Repository) -> Repository:
    return proposing


def test_reports_go_to_files_in_every_format(repo: Repository) -> None:
    names = ("text", "json", "sarif", "junit", "github", "markdown")
    options = [word for name in names for word in ("--output", f"{name}=out/deep/{name}")]
    privileged(repo)
    repo.call("check", *options).says(1, "denied")
    for name in names:
        assert "server_port_unprivileged" in (repo.root / "out" / "deep" / name).read_text("utf-8").replace(
            "&#95;", "_"
        )
    assert json.loads((repo.root / "out" / "deep" / "json").read_text("utf-8"))["exit_code"] == 1


def test_an_error_goes_to_files_too(repo: Repository) -> None:
    repo.call("check", "nobody", "--output", "junit=x.xml", "-f", "github").says(2, "::error")
    assert "there is no engine" in (repo.root / "x.xml").read_text("utf-8")
    (repo.root / "trtops.toml").write_text("engine = 'other'\n")
    repo.call("check", "--output", "json=x.json", TRTOPS_ENGINE="nothing").says(2)
    assert json.loads((repo.root / "x.json").read_text("utf-8"))["errors"][0]["error"] == "InputError"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("yaml=x", "unknown format 'yaml'"),
        ("jsn=x", "did you mean json?"),
        ("json", "names no file"),
        ("json=", "names no file"),
        ("=x", "unknown format ''"),
        ("json=.", "is a folder"),
    ],
)
def test_options_that_name_no_report(repo: Repository, word: str, says: str) -> None:
    repo.call("check", "--output", word).says(2, says)


def test_two_reports_in_one_file() -> None:
    with pytest.raises(InputError, match="two reports"):
        parse_outputs(["json=a", "sarif=./a"])


def test_a_report_that_cannot_be_written_hinders_no_other(repo: Repository) -> None:
    (repo.root / "file").touch()
    done = repo.call("check", "tiny", "--output", "json=file/x", "--output", "sarif=y.sarif")
    done.says(2, "the report cannot be written: ", "tiny: allowed")
    assert (repo.root / "y.sarif").is_file()


def test_an_old_report_stands_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, os.strerror(28), descriptor)

    monkeypatch.setattr(os, "fsync", full)
    (error,) = write_outputs(CheckReport(), [Output("json", path)])
    assert isinstance(error, StorageError)
    assert "No space left" in error.what
    assert "store" not in error.what
    assert (path.read_text(), [*tmp_path.iterdir()]) == ("old", [path])


def test_a_report_goes_into_a_pipe_and_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    outputs = parse_outputs([f"json={os.devnull}", f"json={tmp_path}/link"])
    assert write_outputs(CheckReport(), outputs) == ()
    assert Path(os.devnull).is_char_device()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == render(CheckReport(), "json")
