from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trtops.errors import InputError
from trtops.settings import Settings, find_root, resolve, with_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"TRTOPS_{name.upper()}", raising=False)
    (tmp_path / "trtops.toml").write_text("")
    return tmp_path


def test_the_strongest_source_wins_and_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "trtops.toml").write_text('environment = "dev"\nbuild_timeout = 60\nengine = "embedded"\n')
    monkeypatch.setenv("TRTOPS_ENVIRONMENT", "staging")
    monkeypatch.setenv("TRTOPS_ENGINE", "opa")
    resolved = resolve(root, {"environment": "prod", "engine": None})
    assert resolved.settings.environment == "prod"
    assert resolved.settings.engine == "opa"
    assert resolved.settings.build_timeout == 60.0
    assert resolved.sources["environment"] == "flag --environment"
    assert resolved.sources["engine"] == "environment TRTOPS_ENGINE"
    assert resolved.sources["build_timeout"] == "file trtops.toml"
    assert resolved.sources["home"] == "default"


def test_relative_places_stand_below_the_root(root: Path) -> None:
    (root / "trtops.toml").write_text('home = "state"\nregistry = "file:shared"\n')
    resolved = resolve(root, {})
    assert resolved.store == str(root / "state" / "store")
    assert resolved.registry == f"file:{root / 'shared'}"


def test_a_url_is_left_as_it_is(root: Path) -> None:
    assert resolve(root, {"store": "s3://bucket/engines"}).store == "s3://bucket/engines"


def test_a_secret_is_not_shown(root: Path) -> None:
    shown = {name: value for name, value, _ in resolve(root, {"opa_token": "hush"}).rows()}
    assert shown["opa_token"] == "(set)"
    assert "hush" not in repr(resolve(root, {"opa_token": "hush"}))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("enviroment = 'dev'", "unknown setting 'enviroment'"),
        ("engine = 'rego'", "engine: "),
        ("engine = ", "cannot be read"),
        ("build_timeout = -1", "build_timeout"),
    ],
)
def test_a_wrong_file_is_a_clear_error(root: Path, text: str, says: str) -> None:
    (root / "trtops.toml").write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        resolve(root, {})
    assert caught.value.fix


def test_a_wrong_environment_variable_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTOPS_BUILD_TIMEOUT", "soon")
    with pytest.raises(InputError, match="TRTOPS_BUILD_TIMEOUT"):
        resolve(root, {})


def test_the_root_is_the_nearest_folder_upward(root: Path) -> None:
    deep = root / "engines" / "x"
    deep.mkdir(parents=True)
    assert find_root(deep) == root


def test_no_root_is_an_error_not_an_empty_set_of_policies(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no trtops\.toml") as caught:
        find_root(tmp_path)
    assert caught.value.exit_code == 2


def test_flags_and_environment_hold_over_another_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "trtops.toml").write_text('opa_url = "http://mine"\nhome = "mine"\nexpires = 7\n')
    monkeypatch.setenv("TRTOPS_ENGINE", "opa")
    base = with_file(
        resolve(root, {"environment": "prod"}),
        b'engine = "embedded"\nenvironment = "dev"\nexpires = 30\n',
        "main:trtops.toml",
    )
    assert base.settings.model_dump(exclude_defaults=True) == {"environment": "prod", "engine": "opa", "expires": 30}
    assert base.sources["expires"] == "file main:trtops.toml"
    assert base.sources["engine"] == "environment TRTOPS_ENGINE"
    assert (base.sources["opa_url"], base.home) == ("default", root / ".trtops")
    with pytest.raises(InputError, match="unknown setting 'x'") as caught:
        with_file(base, b"x = 1\n", "main:trtops.toml")
    assert caught.value.where == "file main:trtops.toml"
