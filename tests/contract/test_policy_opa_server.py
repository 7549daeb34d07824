"""What a server of OPA can do to a check, and what a check does to a server."""

from __future__ import annotations

import datetime as dt
import os
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.certificates import authority, issue
from tests.support.opa_server import FaultyServer, refusing_port, running_opa
from tests.support.policies import OWNER, document, opa_binary, repository, write, write_rule
from trtops.errors import Undecided
from trtops.policy.bundle import bundle
from trtops.policy.gate import Gate, Subject
from trtops.policy.loader import load_policies
from trtops.policy.opa import connect, start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtops.policy.opa import OpaEngine
    from trtops.policy.port import PolicySet

pytestmark = pytest.mark.service

TODAY = dt.date(2026, 1, 1)


def judge(policies: PolicySet, engine: OpaEngine, *documents: dict[str, Any]) -> list[str]:
    subjects = [Subject("e", "e", entry) for entry in documents or (document(owner="a"),)]
    return [verdict.decision for verdict in Gate(policies, engine, "local", TODAY).judge_all("spec", subjects)]


@contextmanager
def faulty(policies: PolicySet, fault: str) -> Iterator[str]:
    server = FaultyServer(str(policies.digest), fault)
    try:
        yield server.url
    finally:
        server.close()


def test_the_faulty_server_can_answer(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path))
    with faulty(policies, "none") as url, closing(connect(policies, url)) as engine:
        assert judge(policies, engine) == ["allow"]
        assert engine.version == "opa 1.22.3"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("slow", "did not answer within 2 s"),
        ("error", "said 500: the disk is full"),
        ("refused", "said 401: request rejected"),
        ("truncated", "cannot be asked"),
        ("not-json", "cannot be asked"),
        ("empty", "undefined"),
        ("short", "did not answer for each document"),
        ("malformed", "malformed"),
        ("list", "malformed"),
        ("edited", "changed while the check ran"),
        ("missing-rule", "spec.workspace_bounded: the decision is undefined"),
        ("unknown-rule", "unknown rules: spec.other"),
    ],
)
def test_a_server_that_misbehaves_never_passes(tmp_path: Path, fault: str, words: str) -> None:
    policies = load_policies(repository(tmp_path))
    timeout = 2 if fault == "slow" else 10
    with faulty(policies, fault) as url, closing(connect(policies, url, timeout=timeout)) as engine:
        with pytest.raises(Undecided) as caught:
            judge(policies, engine)
        assert words in caught.value.what
        assert caught.value.exit_code == 2


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path))
    with refusing_port() as port:
        url = f"http://127.0.0.1:{port}"
        with closing(connect(policies, url)) as engine, pytest.raises(Undecided, match="Connection refused") as caught:
            judge(policies, engine)
    assert caught.value.where == url


def test_a_server_that_ends_while_it_is_used(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path))
    with running_opa(opa_binary()) as url:
        engine = connect(policies, url)
        assert judge(policies, engine) == ["allow"]
    with closing(engine), pytest.raises(Undecided, match="cannot be asked"):
        judge(policies, engine)


def test_a_server_whose_rule_is_edited_meanwhile(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path / "a"))
    lax = load_policies(
        repository(tmp_path / "b", {"owner_present": OWNER.replace("not ", ""), "workspace_bounded": OWNER})
    )
    with running_opa(opa_binary()) as url, closing(connect(policies, url)) as mine, closing(connect(lax, url)) as other:
        assert judge(policies, mine, document()) == ["deny"]
        assert judge(lax, other, document(owner="a")) == ["deny"]
        with pytest.raises(Undecided, match="changed while the check ran"):
            judge(policies, mine, document())


def test_a_server_whose_data_is_edited_meanwhile(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path / "a"))
    write(repository(tmp_path / "b"), {"policies/data/limits.yaml": "workspace: 1000000\n"})
    raised = load_policies(tmp_path / "b")
    large = document(owner="a", memory={"workspace": 5000})
    with (
        running_opa(opa_binary()) as url,
        closing(connect(policies, url)) as mine,
        closing(connect(raised, url)) as other,
    ):
        assert judge(policies, mine, large) == ["deny"]
        assert judge(raised, other, large) == ["allow"]
        with pytest.raises(Undecided, match="changed while the check ran"):
            judge(policies, mine, large)


def test_a_server_keeps_no_rule_of_an_older_set(tmp_path: Path) -> None:
    root = repository(tmp_path)
    write(root, {"policies/lib/names/names.rego": 'package trtops.lib.names\n\nbad(name) if name == "root"\n'})
    write_rule(
        root,
        """\
    import data.trtops.lib.names
    findings contains {"message": "root", "path": ["owner"]} if names.bad(input.document.owner)
    """,
    )
    before = load_policies(root)
    with running_opa(opa_binary()) as url:
        with closing(connect(before, url)) as engine:
            assert judge(before, engine, document(owner="root")) == ["deny"]
        for path in ("policies/lib/names/names.rego", "policies/spec/probe/rule.rego"):
            (root / path).unlink()
            (root / path).parent.rmdir()
        after = load_policies(root)
        with closing(connect(after, url)) as engine:
            assert judge(after, engine, document(owner="root")) == ["allow"]


def test_a_server_with_our_bundle_is_used_as_it_is(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path))
    packed = tmp_path / "bundle.tar.gz"
    packed.write_bytes(bundle(policies))
    with running_opa(opa_binary(), "--bundle", str(packed)) as url, closing(connect(policies, url)) as engine:
        assert judge(policies, engine, document(owner="a"), document()) == ["allow", "deny"]
        assert engine.version == "opa 1.22.3"


def test_a_server_owned_by_another_bundle_is_refused(tmp_path: Path) -> None:
    older = load_policies(repository(tmp_path / "a", {"owner_present": OWNER}))
    packed = tmp_path / "bundle.tar.gz"
    packed.write_bytes(bundle(older))
    policies = load_policies(repository(tmp_path / "b"))
    with running_opa(opa_binary(), "--bundle", str(packed)) as url, closing(connect(policies, url)) as engine:
        with pytest.raises(Undecided) as caught:
            judge(policies, engine)
        assert str(older.digest) in caught.value.what
        assert str(policies.digest) in str(caught.value.fix)


def test_our_own_server_takes_orders_from_nobody_else(tmp_path: Path) -> None:
    import requests

    policies = load_policies(repository(tmp_path))
    with closing(start(policies, opa_binary())) as engine:
        assert judge(policies, engine, document()) == ["deny"]
        process = engine._process
        assert process is not None
        base = f"http://127.0.0.1:{process.port}/v1"
        with requests.Session() as session:
            session.trust_env = False
            for method, path in (("PUT", "policies/x"), ("DELETE", "policies/policies/gate.rego"), ("GET", "data")):
                assert session.request(method, f"{base}/{path}", data="package x", timeout=10).status_code == 401
            assert session.get(f"{base}/data", headers={"Authorization": "Bearer guess"}, timeout=10).status_code == 401
        assert judge(policies, engine, document()) == ["deny"]


def test_our_own_server_is_stopped_by_its_pid(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path))
    engine = start(policies, opa_binary())
    judge(policies, engine)
    process = engine._process
    assert process is not None
    pid, folder = process.pid, Path(process._folder.name)
    assert folder.is_dir()
    engine.close()
    engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not folder.exists()


def test_our_own_server_starts_beside_others(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path))
    seen: list[list[str]] = []

    def run() -> None:
        with closing(start(policies, opa_binary())) as engine:
            seen.append(judge(policies, engine, document()))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [["deny"]] * 3


@pytest.mark.parametrize(
    ("script", "words", "timeout"),
    [
        ("exit 3", "it said nothing", 60),
        ("echo 'unknown command run' >&2; exit 1", "unknown command run", 60),
        ("exec sleep 30", "did not start in time", 1),
    ],
)
def test_a_binary_that_is_no_opa(tmp_path: Path, script: str, words: str, timeout: float) -> None:
    binary = tmp_path / "opa"
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    policies = load_policies(repository(tmp_path))
    with closing(start(policies, binary, timeout=timeout)) as engine, pytest.raises(Undecided, match=words):
        judge(policies, engine)


def test_a_binary_that_cannot_be_run(tmp_path: Path) -> None:
    binary = tmp_path / "opa"
    binary.write_bytes(b"\x7fELF no")
    binary.chmod(0o755)
    policies = load_policies(repository(tmp_path))
    with closing(start(policies, binary)) as engine, pytest.raises(Undecided, match="cannot be started"):
        judge(policies, engine)


@pytest.mark.parametrize(
    "url", ["opa.example", "ftp://opa.example", "http://", "http://opa.example/path", "http://opa.example:port"]
)
def test_a_url_that_is_none(tmp_path: Path, url: str) -> None:
    with pytest.raises(Undecided):
        connect(load_policies(repository(tmp_path)), url)


def test_a_url_holds_no_credentials(tmp_path: Path) -> None:
    with pytest.raises(Undecided) as caught:
        connect(load_policies(repository(tmp_path)), "http://user:hunter2@opa.example:8181")
    assert "hunter2" not in str(caught.value)


def test_a_token_is_needed_and_sent(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path))
    gate = tmp_path / "authz.rego"
    gate.write_text('package system.authz\n\ndefault allow := false\n\nallow if input.identity == "s3cret"\n')
    arguments = ("--authentication=token", "--authorization=basic", str(gate))
    with running_opa(opa_binary(), *arguments) as url:
        with closing(connect(policies, url, token="s3cret")) as engine:
            assert judge(policies, engine) == ["allow"]
        with closing(connect(policies, url)) as engine, pytest.raises(Undecided, match="401"):
            judge(policies, engine)


@pytest.mark.parametrize("bundle_of_environment", [True, False])
def test_a_server_with_tls_is_trusted_by_its_authority_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bundle_of_environment: bool,
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    if bundle_of_environment:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "foreign.pem"))
    policies = load_policies(repository(tmp_path))
    ours, foreign = authority(), authority()
    certificate, key = issue(ours, "127.0.0.1")
    for name, text in {
        "cert": certificate,
        "key": key,
        "ours": ours.certificate,
        "foreign": foreign.certificate,
    }.items():
        (tmp_path / f"{name}.pem").write_bytes(text)
    files = (f"--tls-cert-file={tmp_path / 'cert.pem'}", f"--tls-private-key-file={tmp_path / 'key.pem'}")
    with running_opa(opa_binary(), *files) as plain:
        url = plain.replace("http://", "https://")
        with closing(connect(policies, url, ca=tmp_path / "ours.pem")) as engine:
            assert judge(policies, engine) == ["allow"]
        for ca in (None, tmp_path / "foreign.pem"):
            with closing(connect(policies, url, ca=ca)) as engine, pytest.raises(Undecided, match="verify failed"):
                judge(policies, engine)
        with closing(connect(policies, plain)) as engine, pytest.raises(Undecided, match="OPA server"):
            judge(policies, engine)
    with pytest.raises(Undecided, match="authority's file does not exist"):
        connect(policies, url, ca=tmp_path / "none.pem")
