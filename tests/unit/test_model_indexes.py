from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trtops.model.indexes import DEFAULT, package_indexes

if TYPE_CHECKING:
    from pathlib import Path


def test_pip_asks_its_own_index_where_nothing_is_set() -> None:
    assert package_indexes({}, files=()) == (DEFAULT,)


def test_the_environment_is_stronger_than_files_and_extra_indexes_count(tmp_path: Path) -> None:
    weak, strong = tmp_path / "weak", tmp_path / "strong"
    weak.write_text(
        "[global]\nindex-url = https://weak.test/simple\nextra-index-url =\n  https://a.test\n  https://b.test\n"
    )
    strong.write_text("[global]\nindex-url = https://strong.test/simple\n")
    files = (weak, strong)
    assert package_indexes({}, files=files) == ("https://strong.test/simple", "https://a.test", "https://b.test")
    given = {"PIP_INDEX_URL": "https://env.test", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "/opt/w https://c.test"}
    assert package_indexes(given, files=files) == (
        "https://env.test",
        "https://a.test",
        "https://b.test",
        "/opt/w",
        "https://c.test",
    )


def test_without_an_index_only_links_are_asked() -> None:
    assert package_indexes({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/opt/w"}, files=()) == ("/opt/w",)


def test_a_section_of_download_is_stronger_than_global(tmp_path: Path) -> None:
    path = tmp_path / "pip.conf"
    path.write_text("[download]\nindex-url = https://download.test\n[global]\nindex-url = https://global.test\n")
    assert package_indexes({}, files=(path,)) == ("https://download.test",)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"no section\n", b"[global\n"])
def test_a_broken_file_is_left_to_pip(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pip.conf"
    path.write_bytes(content)
    assert package_indexes({}, files=(path,)) == (DEFAULT,)


def test_the_file_that_the_environment_names_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pip.conf"
    path.write_text("[global]\nindex-url = https://named.test\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert package_indexes({"PIP_CONFIG_FILE": str(path), "XDG_CONFIG_HOME": str(tmp_path)}) == ("https://named.test",)
