"""Releases on a real Nacos, as a user meets them: set up, release, serve, go back; and what goes wrong."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.nacos_server import ADMINISTRATOR

if TYPE_CHECKING:
    from tests.support.nacos_server import NacosServer
    from tests.support.repository import Done, Repository, Server

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

ENVIRONMENT = "local"  # what the test's policies let a self-made key release to
SECONDS = 60.0


def _admin(nacos: NacosServer) -> dict[str, str]:
    return {
        "TRTOPS_REGISTRY": nacos.url,
        "TRTOPS_NACOS_USER": ADMINISTRATOR.user,
        "TRTOPS_NACOS_PASSWORD": ADMINISTRATOR.password,
    }


def _fresh(nacos: NacosServer) -> None:
    """The environment as if it had never been: users and rights, too."""
    for role in ("publisher", "service"):
        nacos.ask("DELETE", "/v3/auth/user", {"username": f"trtops-{ENVIRONMENT}-{role}"})
        nacos.ask("DELETE", "/v3/auth/role", {"role": f"trtops-{ENVIRONMENT}-{role}"})
    listed = {"pageNo": "1", "pageSize": "500", "namespaceId": ENVIRONMENT, "groupName": "TRTOPS"}
    answer = nacos.ask("GET", "/v3/admin/cs/config/list", {**listed, "dataId": "*", "search": "blur"})
    for item in answer.data["pageItems"]:
        nacos.remove(ENVIRONMENT, item["dataId"])


@pytest.fixture
def online(nacos: NacosServer, shipped: Repository) -> tuple[Repository, dict[str, str]]:
    """A repository whose engine is built, beside a Nacos that was set up for it; the settings that it needs."""
    _fresh(nacos)
    shipped.call("registry", "init", "nacos", **_admin(nacos)).says(0, "mark the namespace as local")
    return shipped, {"TRTOPS_REGISTRY": nacos.url}


def _answering(server: Server, generation: int) -> dict[str, Any]:
    end = time.monotonic() + SECONDS
    told: dict[str, Any] = {}
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{server.ready['control_url']}/v2/trtops/status", timeout=10) as answer:  # noqa: S310
            told = json.load(answer)
        if told["engines"]["tiny"].get("generation") == generation:
            return told
        time.sleep(0.2)
    raise AssertionError(told)


def _no_secret(*done: Done) -> None:
    for one in done:
        assert ADMINISTRATOR.password not in one.out + one.err


def test_setting_up_tells_first_does_then_and_is_done_once(nacos: NacosServer, repo: Repository) -> None:
    _fresh(nacos)
    admin = _admin(nacos)
    dry = repo.call("registry", "init", "nacos", "--dry-run", **admin).says(
        0, "would make the user trtops-local-service"
    )
    assert "did" not in dry.out
    again = repo.call("registry", "init", "nacos", "--dry-run", **admin)
    assert again.out == dry.out
    done = repo.call("registry", "init", "nacos", **admin).says(0, "did make the user trtops-local-publisher")
    kept = repo.home / "nacos" / "trtops-local-publisher.password"
    assert kept.stat().st_mode & 0o077 == 0
    assert kept.read_text() not in done.out
    assert f"its password is in {kept}" in done.out
    last = repo.call("registry", "init", "nacos", **admin).says(0, f"nothing to do: local is set up on {nacos.url}")
    _no_secret(dry, done, last, repo.call("settings", "show", **admin).says(0, "nacos_password", "(set)"))


def test_the_whole_path(online: tuple[Repository, dict[str, str]]) -> None:
    repo, there = online
    repo.call("status", **there).says(0, "nothing is released yet")
    repo.call("release", "tiny", **there).says(0, "generation 1")
    repo.call("release", "tiny", **there).says(0)
    repo.call("status", **there).says(0, "tiny")
    with repo.serve("tiny", **there) as server:
        _answering(server, 1)
        (repo.engine / "runtime.yaml").write_text(
            (repo.engine / "runtime.yaml").read_text().replace("scores: true", "scores: false")
        )
        repo.call("release", "tiny", **there).says(0, "generation 2")
        _answering(server, 2)
        repo.call("rollback", "tiny", **there).says(0, "generation 3")
        _answering(server, 3)
        assert server.stop() == 0
    assert server.log.read_text() == ""
    # No password gets anywhere but into its own file.
    kept = sorted((repo.home / "nacos").glob("*.password"))
    assert [path.name for path in kept] == ["trtops-local-publisher.password", "trtops-local-service.password"]
    for path in (path for path in repo.root.rglob("*") if path.is_file() and path not in kept):
        assert not [one for one in kept if one.read_bytes() in path.read_bytes()], path
    history = json.loads(repo.call("history", "tiny", "--json", **there).says(0).out)
    assert [binding["generation"] for binding in history["bindings"]] == [3, 2, 1]


def test_a_service_starts_from_what_it_kept(nacos: NacosServer, online: tuple[Repository, dict[str, str]]) -> None:
    repo, there = online
    repo.call("release", "tiny", **there).says(0)
    with repo.serve("tiny", **there) as server:
        _answering(server, 1)
        server.stop()
    nacos.stop()
    try:
        with repo.serve("tiny", **there) as server:
            _answering(server, 1)
            server.stop()
        repo.call("release", "tiny", **there).says(2, "Nacos cannot be reached", "start it, or wait")
        repo.call("status", **there).says(2, "Nacos cannot be reached")
    finally:
        nacos.start()


def test_wrong_logins(nacos: NacosServer, online: tuple[Repository, dict[str, str]]) -> None:
    repo, there = online
    wrong = {**there, "TRTOPS_NACOS_USER": "trtops-local-publisher", "TRTOPS_NACOS_PASSWORD": "hunter2-hunter2"}
    done = repo.call("status", **wrong).says(2, "refused the login of the user trtops-local-publisher", "nacos_user")
    assert "hunter2-hunter2" not in done.err
    service = {**there, "TRTOPS_NACOS_USER": "trtops-local-service"}
    repo.call("status", **service).says(0)
    repo.call("release", "tiny", **service).says(2, "does not let the user trtops-local-service write")
    nobody = {"TRTOPS_REGISTRY": nacos.url, "TRTOPS_HOME": str(repo.root / "other-home")}
    repo.call("status", **nobody).says(2, "does not let somebody without a login")
    repo.call("status", "--env", "elsewhere", **_admin(nacos)).says(2, "registry init nacos --env elsewhere")
    repo.call("registry", "init", "nacos", **there).says(2, "takes an administrator", "TRTOPS_NACOS_USER")
    repo.call("registry", "init", "nacos", "--env", "public", **_admin(nacos)).says(2, "everybody may be in it")


def test_doctor_tells_rights(nacos: NacosServer, online: tuple[Repository, dict[str, str]]) -> None:
    repo, there = online
    repo.call("doctor", **there).says(0, "0 channels in local", "it may publish", "changes are pushed")
    service = {**there, "TRTOPS_NACOS_USER": "trtops-local-service"}
    repo.call("doctor", **service).says(0, "it may serve, not publish", "changes are pushed")
    listening = {"role": "trtops-local-service", "resource": "local:[*]:config/[*]", "action": "r"}
    nacos.ask("DELETE", "/v3/auth/permission", listening)
    repo.call("doctor", **service).says(2, "this user may not listen", "registry init nacos --env local")
    repo.call("registry", "init", "nacos", **_admin(nacos)).says(
        0, "let trtops-local-service read local:[*]:config/[*]"
    )
    repo.call("doctor", **service).says(0, "changes are pushed")
    nobody = {**there, "TRTOPS_HOME": str(repo.root / "other-home")}
    repo.call("doctor", **nobody).says(2, "does not let somebody without a login", "backends")
