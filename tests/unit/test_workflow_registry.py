"""Which registry settings name, and as whom it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trtops.errors import InputError, StorageError, TrustError
from trtops.registry.file import FileRegistry
from trtops.registry.nacos.registry import NacosRegistry
from trtops.settings import Settings, resolve
from trtops.workflow.registry import credentials, open_registry, password_file
from trtops.workflow.workspace import Workspace

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.settings import Resolved

URL = "nacos://127.0.0.1:1"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"TRTOPS_{name.upper()}", raising=False)
    (tmp_path / "trtops.toml").write_text("")
    return tmp_path


def _settings(root: Path, **flags: Any) -> Resolved:
    return resolve(root, {"registry": URL, **flags})


def _write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_url_chooses(root: Path) -> None:
    assert isinstance(open_registry(resolve(root, {}), "dev"), FileRegistry)
    nacos = open_registry(_settings(root), "dev")
    assert isinstance(nacos, NacosRegistry)
    assert repr(nacos) == "NacosRegistry('nacos://127.0.0.1:1', 'dev', user=None)"


def test_a_workspace_has_one_registry_an_environment(root: Path) -> None:
    workspace = Workspace(_settings(root, environment="dev"))
    assert workspace.registry() is workspace.registry("dev")
    assert workspace.registry("prod") is not workspace.registry()


@pytest.mark.parametrize("url", ["etcd://a:1", "a folder", "nacos:a"])
def test_an_unknown_kind_is_told_with_its_source(root: Path, url: str) -> None:
    with pytest.raises(InputError, match="unknown kind of registry") as caught:
        open_registry(resolve(root, {"registry": url}), "dev")
    assert caught.value.where == "flag --registry"
    assert "nacos://HOST:PORT" in str(caught.value.fix)


def test_a_password_in_the_url_is_not_shown(root: Path) -> None:
    for url in ("nacos://me:hunter2@a:1", "etcd://me:hunter2@a:1"):
        with pytest.raises(InputError) as caught:
            open_registry(resolve(root, {"registry": url}), "dev")
        assert "hunter2" not in str(caught.value)


def test_the_password_comes_from_the_setting_its_file_or_this_home(root: Path) -> None:
    given = credentials(_settings(root, nacos_user="me", nacos_password="one"), "dev")
    assert given is not None
    assert (given.user, given.password) == ("me", "one")
    assert "one" not in repr(given)
    _write(root / "secret", "two\n")
    given = credentials(_settings(root, nacos_user="me", nacos_password_file="secret"), "dev")
    assert given is not None
    assert given.password == "two"
    settings = _settings(root, nacos_user="me")
    _write(password_file(settings, "me"), "three")
    given = credentials(settings, "dev")
    assert given is not None
    assert given.password == "three"


def test_a_home_that_set_the_environment_up_needs_no_setting(root: Path) -> None:
    settings = _settings(root)
    assert credentials(settings, "dev") is None
    _write(password_file(settings, "trtops-dev-service"), "s")
    given = credentials(settings, "dev")
    assert given is not None
    assert given.user == "trtops-dev-service"
    _write(password_file(settings, "trtops-dev-publisher"), "p")
    given = credentials(settings, "dev")
    assert given is not None
    assert given.user == "trtops-dev-publisher"
    assert credentials(settings, "prod") is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"nacos_user": "me"}, "there is no password of the user me"),
        ({"nacos_password": "hunter2"}, "nacos_password is set and nacos_user is not"),
        ({"nacos_password_file": "secret"}, "nacos_password_file is set and nacos_user is not"),
    ],
)
def test_half_a_login_is_refused(root: Path, flags: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        credentials(_settings(root, **flags), "dev")
    assert "hunter2" not in str(caught.value)
    assert caught.value.where == f"flag --{next(iter(flags)).replace('_', '-')}"


def test_a_bad_password_file_is_told_without_its_content(root: Path) -> None:
    flags = {"nacos_user": "me", "nacos_password_file": "secret"}
    with pytest.raises(StorageError, match="cannot be read"):
        credentials(_settings(root, **flags), "dev")
    _write(root / "secret", "hunter2", 0o644)
    with pytest.raises(TrustError, match="others than its owner may read") as caught:
        credentials(_settings(root, **flags), "dev")
    assert "hunter2" not in str(caught.value)
    for text in ("", "\n", "x" * 5000):
        _write(root / "secret", text)
        with pytest.raises(InputError, match="holds no password"):
            credentials(_settings(root, **flags), "dev")
    (root / "secret").write_bytes(b"\xff")
    with pytest.raises(InputError, match="no text"):
        credentials(_settings(root, **flags), "dev")
