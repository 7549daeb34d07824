"""A socket at a path that is unfit: what is wrong with it, and what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtops.errors import StorageError, Unavailable
from trtops.transport.listening import listen


def test_a_folder_that_is_not_there_is_to_be_made(tmp_path: Path) -> None:
    folder = tmp_path / "not there"
    with pytest.raises(StorageError, match="there is no folder") as caught:
        listen(folder / "x.sock", 0o600)
    assert caught.value.fix == f"make it: mkdir -p '{folder}'"
    folder.mkdir()
    listen(folder / "x.sock", 0o600).close()


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file is no folder"):
        listen(tmp_path / "file" / "x.sock", 0o600)


def test_a_path_that_is_too_long_says_how_long(tmp_path: Path) -> None:
    folder = tmp_path / ("n" * 100)
    folder.mkdir()
    path = folder / "x.sock"
    with pytest.raises(StorageError, match=f"the path has {len(os.fsencode(path))} bytes, and 107 are the most"):
        listen(path, 0o600)
    fits = Path(os.path.relpath(tmp_path)) / ("n" * (107 - len(os.path.relpath(tmp_path)) - 1))
    if len(os.path.relpath(tmp_path)) < 100:
        listen(fits, 0o600).close()
        fits.unlink()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_this_user_may_not_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="no right to write"):
        listen(tmp_path / "x.sock", 0o600)


def test_a_server_that_is_there(tmp_path: Path) -> None:
    with listen(tmp_path / "x.sock", 0o600), pytest.raises(Unavailable, match="another server"):
        listen(tmp_path / "x.sock", 0o600)
