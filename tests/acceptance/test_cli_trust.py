"""Keys that are made, replaced, stolen and counted, as those meet them who hold them and those who serve."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.repository import Repository

pytestmark = pytest.mark.service


def _root(repo: Repository, **environment: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(repo.call("trust", "show", "--json", **environment).says(0).out)
    return shown


def _key(repo: Repository, role: str, number: int = 0) -> str:
    return str(_root(repo)["root"]["roles"][role]["keys"][number])


def _change(repo: Repository) -> None:
    """Something to release: another batch limit."""
    repo.edit("max_size: 512", "max_size: 500")


@pytest.fixture
def trusted(shipped: Repository) -> Repository:
    """A repository with a root that can be followed."""
    shipped.call("trust", "init").says(0, "root version 2 is signed, trusted here and published in local", "offline")
    return shipped


@pytest.mark.parametrize("yes", [(), ("--yes",)])
def test_who_holds_no_root_key_sees_what_hangs_on_one(trusted: Repository, yes: tuple[str, ...]) -> None:
    """A home with a root document, a registry to read and no private key."""
    held, registry = trusted.home / "keys", trusted.home / "registry"
    key = _key(trusted, "channel")
    shutil.rmtree(held)
    before = {path: path.read_bytes() for path in registry.rglob("*.json")}
    done = trusted.call("trust", "revoke", key[:12], *yes).says(2, "there is no root key here")
    for words in ("(channel)", "tiny/stable", "runs there", "pointer"):
        assert words in done.out, done.out
    assert "does it" not in done.err
    assert not list(held.glob("*.pem"))
    assert {path: path.read_bytes() for path in registry.rglob("*.json")} == before
    (trusted.home / "root.json").unlink()
    trusted.call("trust", "revoke", key[:12], *yes).says(2, "there is no root document", "copy root.json")
    assert not list(held.glob("*.pem"))


def test_a_root_is_made_once_and_shown(shipped: Repository) -> None:
    shipped.call("trust", "show").says(0, "version 1, never expires", "nothing can follow it: trtops trust init")
    shipped.call("trust", "rotate", "channel").says(2, "has no root keys", "trtops trust init")
    shipped.call("trust", "init", "--expires", "30").says(0)
    shipped.call("trust", "init").says(2, "a root of version 2 that can be followed")
    shown = shipped.call("trust", "show").says(0, "expires in", "the registry has version 2").out
    assert shown.count("here") == 5
    shipped.call("status").says(0, "tiny")
    shipped.call("ship", "tiny").says(0)  # keys that were made on first use still count as such
    shipped.call("doctor").says(0)


def test_a_rotated_key_signs_and_the_old_one_still_counts(trusted: Repository) -> None:
    old = _key(trusted, "channel")
    trusted.call("trust", "rotate", "channel").says(0, "root version 3")
    trusted.call("status").says(0, "tiny")
    _change(trusted)
    trusted.call("ship", "tiny").says(0, "generation 2 signed and published")
    moved = json.loads(trusted.call("history", "tiny", "--json").says(0).out)["bindings"]
    assert [binding["actor"] for binding in moved] == [_key(trusted, "channel", 1), old]


@pytest.mark.parametrize("role", ["channel", "release", "builder"])
def test_a_stolen_key_is_revoked_and_the_same_is_released_again(trusted: Repository, role: str) -> None:
    stolen = _key(trusted, role)
    trusted.call("trust", "revoke", stolen[:12], "--yes").says(0, "root version 3", "trtops release ENGINE")
    trusted.call("verify-release", "tiny").says(2, "FAILS", f"signed by key {stolen[:12]}, which was revoked")
    trusted.call("trust", "show").says(0, "revoked", stolen[:12])
    if role == "channel":
        told = trusted.call("history", "tiny").says(2, f"{stolen[:12]} (revoked)", "which was revoked", "trust show")
        assert told.out.splitlines()[1].split()[0] == "1"
        (marked,) = json.loads(trusted.call("history", "tiny", "--json").says(2).out)["revoked"]
        assert marked["generation"] == 1
    trusted.call("ship", "tiny").says(0, "signed and published")
    done = trusted.call("verify-release", "tiny").says(0)
    assert "FAILS" not in done.out
    trusted.call("history", "tiny").says(0)
    trusted.call("trust", "revoke", stolen[:12]).says(2, "no trusted key starts with")


def test_what_hangs_on_a_key_is_listed_before_it_is_revoked(trusted: Repository) -> None:
    (trusted.engine / "runtime.yaml").write_text(RUNTIME)
    trusted.call("secret", "seal", "tiny", "db/password", stdin="value").says(0)
    before, held = _root(trusted), trusted.files()
    done = trusted.call("trust", "revoke", _key(trusted, "release")[:12]).says(
        2, "nothing is revoked yet", "--yes does it"
    )
    for words in (
        "(release)",
        "tiny/stable",
        "runs there",
        "engine release, config release, verdict",
        "tiny/db/password",
    ):
        assert words in done.out, done.out
    assert (_root(trusted), trusted.files()) == (before, held), "not even a key was made"
    done = trusted.call("trust", "revoke", _key(trusted, "channel")).says(2, "runs there", "pointer")
    assert "engine release" not in done.out
    trusted.call("trust", "revoke", _key(trusted, "refresh")).says(2, "snapshot of all channels")
    trusted.call("trust", "revoke", _key(trusted, "root")).says(2, "nothing hangs on it in any environment")
    away = {"TRTOPS_REGISTRY": "nacos://127.0.0.1:9"}
    done = trusted.call("trust", "revoke", _key(trusted, "release"), **away).says(2, "could not be looked at")
    assert "prod could not be looked at" in done.out
    trusted.call("trust", "revoke", _key(trusted, "release"), "--yes").says(0, "runs there", "root version 3")


def test_what_a_stolen_key_signed_is_replaced_and_no_candidate_runs_beside_it(trusted: Repository) -> None:
    runtime = trusted.engine / "runtime.yaml"
    runtime.write_text(
        f"{runtime.read_text('utf-8')}rollout: {{steps: [{{weight: 20}}, {{pause: manual}}]}}\n", "utf-8"
    )
    trusted.call("trust", "revoke", _key(trusted, "release")[:12], "--yes").says(0)
    _change(trusted)
    trusted.call("ship", "tiny").says(0, "generation 2 signed and published")
    (binding, *_) = json.loads(trusted.call("history", "tiny", "--json").says(0).out)["bindings"]
    assert binding["weights"] == {"stable": 100}
    trusted.call("verify-release", "tiny").says(0)
    trusted.edit("max_size: 500", "max_size: 499")
    trusted.call("ship", "tiny").says(0, "runs beside the stable release")


def test_a_pointer_of_a_stolen_key_stops_nothing_that_needs_only_others(trusted: Repository) -> None:
    trusted.call("trust", "rotate", "channel").says(0)
    _change(trusted)
    trusted.edit("port: 8000", "port: 8123", file=trusted.engine / "runtime.yaml")
    trusted.call("ship", "tiny").says(0, "generation 2 signed and published")
    stolen = _key(trusted, "channel", 1)
    trusted.call("trust", "revoke", stolen[:12], "--yes").says(0)
    told = f"signed by key {stolen[:12]}, which was revoked"
    trusted.call("config", "diff", "tiny", "local", "+local").says(2, told)  # what runs there, nobody can tell
    trusted.call("config", "diff", "tiny", "local@1", "+local").says(0, told, "passed over", "server.port", "8123")
    trusted.call("registry", "prune", "--yes", "--after", "0").says(0, told, "kept", "everything in local")
    trusted.call("rollback", "tiny", "--reject", "wrong").says(2, "leave --reject out")
    trusted.call("rollback", "tiny").says(0, told, "passed over", "generation 2 in local (rollback to generation 1)")
    trusted.call("verify-release", "tiny").says(0, "2 generations")
    trusted.call("history", "tiny").says(0)


def test_a_release_of_a_stolen_key_is_passed_over(trusted: Repository) -> None:
    trusted.call("trust", "rotate", "release").says(0)
    _change(trusted)
    trusted.call("ship", "tiny").says(0, "generation 2 signed and published")
    stolen = _key(trusted, "release", 1)
    trusted.edit("max_size: 500", "max_size: 499")
    trusted.call("trust", "revoke", stolen[:12], "--yes").says(0)
    trusted.call("ship", "tiny").says(0, "generation 3 signed and published")
    told = f"signed by key {stolen[:12]}, which was revoked"
    before = trusted.files()
    trusted.call("registry", "prune", "--yes", "--after", "0").says(0, told, "what it names is kept")
    assert [name for name in before if name not in trusted.files()] == []
    trusted.call("registry", "prune", "--revoked").says(0, told, "what it names may go", "kept for 24 h", "evidence/")
    trusted.call("rollback", "tiny", "--to", "2").says(2, told)
    trusted.call("rollback", "tiny").says(0, told, "passed over", "rollback to generation 1")
    trusted.call("registry", "prune", "--yes", "--after", "0", "--revoked").says(0, "removed")
    trusted.call("verify-release", "tiny").says(0)


def test_services_follow_the_root_and_keep_serving(trusted: Repository) -> None:
    """A channel key is stolen while a service runs: it goes on, follows the root, and takes the next release."""
    with trusted.serve("tiny") as server:
        control = f"http://127.0.0.1:{server.ready['control_port']}/v2/trtops/status"
        stolen = _key(trusted, "channel")
        trusted.call("trust", "revoke", stolen, "--yes").says(0)
        _change(trusted)
        trusted.call("ship", "tiny").says(0, "signed and published")
        end = time.monotonic() + 60
        while "max_size" not in json.dumps(_release_of(trusted, control)) and time.monotonic() < end:
            time.sleep(0.2)
        assert _release_of(trusted, control)["batching"]["queue"]["max_size"] == 500
        with urllib.request.urlopen(control, timeout=10) as answer:
            told = json.loads(answer.read())["trust"]
        assert told["root"] == 3
        assert told["snapshot"] > 0
        assert server.stop() == 0
    kept = json.loads((trusted.home / "serve" / "local" / "local" / "root.json").read_text())
    assert kept["root"]["version"] == 3
    assert stolen in kept["root"]["revoked"]


def _release_of(repo: Repository, url: str) -> dict[str, Any]:
    """The engine release that a service says it runs, as the registry has it."""
    import base64

    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - loopback
        digest = json.loads(answer.read())["engines"]["tiny"]["engine_release"].replace(":", "-")
    folder = repo.home / "registry" / "local" / "engines" / "tiny" / "releases"
    payload = json.loads((folder / f"{digest}.json").read_bytes())["payload"]
    found: dict[str, Any] = json.loads(base64.b64decode(payload))["predicate"]
    return found if found["batching"]["queue"]["max_size"] == 500 else {}


def test_root_keys_of_two_machines(trusted: Repository, folder: Path) -> None:
    """Two root keys have to sign: a version waits in a file, goes to the other machine, and takes effect signed."""
    other = folder / "other-home"
    shutil.copytree(trusted.home, other, ignore=shutil.ignore_patterns("keys", "serve"))
    bob = {"TRTOPS_HOME": str(other), "TRTOPS_REGISTRY": f"file:{trusted.home / 'registry'}"}
    public = trusted.call("trust", "show", "--json", **bob).says(0)
    assert json.loads(public.out)["held"] == []
    trusted.call("approve", "tiny", "--as", "bob", **bob).says(0)  # makes Bob's key
    pem = other / "keys" / "approver-bob.pem"
    trusted.call("trust", "rotate", "root", "--key", _public(pem)).says(0, "root version 3")
    trusted.call("trust", "set", "--threshold", "2").says(2, "root version 4 is not trusted yet", "it takes 2")
    waits = trusted.home / "roots" / "4.unsigned.json"
    trusted.call("trust", "publish", str(waits)).says(2, "it takes 2")
    trusted.call("trust", "update", **bob).says(0, "root version 3: was 2")
    looked = trusted.call("trust", "show", str(waits), **bob).says(0, "root version 4; version 3 is trusted here")
    assert "root: takes 2 of 2 keys, not 1" in looked.out
    signed = trusted.call("trust", "sign", str(waits), "--as", "bob", **bob).says(0, "enough have signed")
    assert "root: takes 2 of 2 keys, not 1" in signed.out
    trusted.call("trust", "publish", str(waits)).says(0, "root version 4 published in local")
    trusted.call("trust", "publish", str(waits)).says(2)
    trusted.call("trust", "update", **bob).says(0, "root version 4: was 3")
    trusted.call("trust", "update", **bob).says(0, "nothing newer")
    builder = _key(trusted, "builder")
    trusted.call("trust", "rotate", "builder").says(2, "it takes 2")
    trusted.call("doctor").says(0, f"builder: {builder[:12]}")  # until it takes effect, the old key signs


def test_a_release_that_takes_two_keys(trusted: Repository) -> None:
    """A gold engine: what is to be signed lies in the registry, nothing points to it, and another key signs it."""
    trusted.call("approve", "tiny", "--as", "bob").says(0)
    bob = trusted.home / "keys" / "approver-bob.pem"
    trusted.call("trust", "rotate", "release", "--key", _public(bob)).says(0)
    trusted.call("trust", "set", "--tier", "gold=3").says(2, "tier gold needs 3 release keys and there are 2")
    trusted.call("trust", "set", "--tier", "gold=2:tiny").says(0)
    trusted.call("trust", "show").says(0, "tier gold: 2 release keys; also tiny")
    trusted.call("verify-release", "tiny").says(2, "1 of the 2 release keys that it takes have signed")
    _change(trusted)
    for _ in range(2):  # what runs, which the new one is compared with; then the new one
        done = trusted.call("ship", "tiny").says(2, "1 of the 2 release keys that it takes have signed")
        release = next(word for word in done.err.split() if word.startswith("tiny@sha256:"))
        assert f"trtops trust sign {release} --as KEY" in done.err
        assert trusted.generations() == [1]
        trusted.call("trust", "sign", release, "--as", "builder").says(2, "is no release key")
        trusted.call("trust", "sign", release, "--as", "bob").says(0, "2 of 2")
    trusted.call("trust", "sign", f"tiny@sha256:{'0' * 64}", "--as", "bob").says(2, "there is no such release")
    trusted.call("ship", "tiny").says(0, "generation 2 signed and published")
    trusted.call("verify-release", "tiny").says(0)


def test_a_release_is_verified_offline_from_the_root_of_long_ago(trusted: Repository, folder: Path) -> None:
    """Copies of registry and store, and the root that a service was handed before keys changed."""
    handed = folder / "handed.json"
    shutil.copy2(trusted.home / "root.json", handed)
    (trusted.engine / "runtime.yaml").write_text(RUNTIME)
    trusted.call("trust", "rotate", "channel").says(0)
    trusted.call("trust", "revoke", _key(trusted, "release")[:12], "--yes").says(0)
    trusted.call("secret", "seal", "tiny", "db/password", stdin="value").says(0)
    trusted.call("ship", "tiny").says(0, "signed and published")
    copy = folder / "copy"
    shutil.copytree(trusted.root, copy, ignore=shutil.ignore_patterns("keys", "root.json", "roots", "serve"))
    shutil.copytree(trusted.home / "registry" / "local" / "roots", copy / "home" / "registry" / "local" / "roots")
    there = {"TRTOPS_HOME": str(copy / "home")}
    done = trusted.call("verify-release", "tiny", "--root", str(handed), **there).says(0)
    for words in ("version 4, followed from version 2, 1 keys revoked", "snapshot", "secret db/password", "generation"):
        assert words in done.out, done.out
    registry = copy / "home" / "registry" / "local"
    sealed = registry / "secrets" / "tiny" / "db" / "password.json"
    sealed.write_bytes(sealed.read_bytes().replace(b'"sig":"', b'"sig":"AAAA'))
    trusted.call("verify-release", "tiny", "--root", str(handed), **there).says(2, "FAILS", "secrets/tiny/db/password")
    (registry / "snapshot.json").unlink()
    trusted.call("verify-release", "tiny", "--root", str(handed), **there).says(2, "no snapshot of the channels")


def test_another_environment_gets_the_root_with_its_first_release(trusted: Repository) -> None:
    trusted.call("trust", "rotate", "channel").says(0)
    trusted.call("trust", "publish").says(0, "nothing to do: local has every version")
    trusted.call("trust", "publish", "--env", "dev").says(0, "root version 2 published in dev", "root version 3")
    (trusted.home / "registry" / "dev" / "roots" / "3.json").unlink()
    trusted.call("registry", "refresh", "--env", "dev").says(0, " of dev: 0 channels and 0 secrets")
    assert (trusted.home / "registry" / "dev" / "roots" / "3.json").exists()


def test_without_a_root_key_nothing_is_changed(trusted: Repository, folder: Path) -> None:
    """It was taken offline; a copy of it, under any name, is enough to bring it back."""
    root = trusted.home / "keys" / "root.pem"
    root.rename(folder / "offline.pem")
    before = sorted(path.name for path in (trusted.home / "keys").iterdir())
    for words in (("rotate", "channel"), ("revoke", _key(trusted, "channel")), ("set", "--expires", "9")):
        trusted.call("trust", *words).says(2, "there is no root key here")
    assert sorted(path.name for path in (trusted.home / "keys").iterdir()) == before
    _change(trusted)
    trusted.call("ship", "tiny").says(0, "generation 2 signed and published")  # nothing else needs it
    shutil.copy2(folder / "offline.pem", trusted.home / "keys" / "from-the-safe.pem")
    trusted.call("trust", "rotate", "channel").says(0, "root version 3")


def test_two_who_change_the_root_at_once(trusted: Repository, folder: Path) -> None:
    """One wins; the other is told, follows, and does it again."""
    other = folder / "other"
    shutil.copytree(trusted.home, other)
    there = {"TRTOPS_HOME": str(other), "TRTOPS_REGISTRY": f"file:{trusted.home / 'registry'}"}
    trusted.call("trust", "rotate", "channel").says(0, "root version 3")
    trusted.call("trust", "rotate", "builder", **there).says(3, "another root of version 3", "trtops trust update")
    trusted.call("trust", "update", **there).says(0, "root version 3: was 2")
    trusted.call("trust", "rotate", "builder", **there).says(0, "root version 4")
    trusted.call("trust", "update").says(0, "root version 4: was 3")


def test_a_change_that_was_cut_off_after_it_was_published(trusted: Repository) -> None:
    before = (trusted.home / "root.json").read_bytes()
    trusted.call("trust", "rotate", "channel").says(0)
    (trusted.home / "root.json").write_bytes(before)
    (trusted.home / "roots" / "3.json").unlink()
    trusted.call("trust", "rotate", "channel").says(3, "trtops trust update")
    trusted.call("trust", "update").says(0, "root version 3: was 2")
    _change(trusted)
    trusted.call("ship", "tiny").says(0, "generation 2 signed and published")


def test_secrets_of_a_stolen_release_key_are_sealed_anew(trusted: Repository) -> None:
    """Whoever has the key could have chosen the value: it is not taken over, not even to seal it again."""
    (trusted.engine / "runtime.yaml").write_text(RUNTIME)
    trusted.call("secret", "seal", "tiny", "db/password", stdin="value").says(0)
    trusted.call("trust", "revoke", _key(trusted, "release"), "--yes").says(0, "trtops secret seal ENGINE PATH")
    for words in (("open", "tiny", "db/password"), ("rotate", "tiny")):
        trusted.call("secret", *words).says(2, "which was revoked")
    trusted.call("secret", "audit", "tiny").says(1, "which was revoked")
    trusted.call("secret", "seal", "tiny", "db/password", stdin="another").says(0)
    trusted.call("secret", "audit", "tiny").says(0)
    assert trusted.call("secret", "open", "tiny", "db/password").out == "another"


def test_the_doctor_looks_at_trust(trusted: Repository) -> None:
    trusted.call("doctor").says(0, "the snapshot of the channels never expires", "root:", "refresh:")
    trusted.call("registry", "refresh", TRTOPS_EXPIRES="2").says(0)
    trusted.call("doctor").says(0, "of the channels is fresh for 4")
    (trusted.home / "registry" / "local" / "snapshot.json").unlink()
    trusted.call("doctor").says(2, "services load nothing new", "trtops registry refresh")


RUNTIME = """\
apiVersion: trtops/v1
kind: Runtime
database: {url: "postgresql://db/ocr", password: "secret:db/password"}
"""


def test_an_online_key_refreshes_and_moves_nothing(trusted: Repository, folder: Path) -> None:
    """Only the refresh key is on the machine that does it on schedule."""
    online = folder / "online-home"
    (online / "keys").mkdir(parents=True)
    shutil.copy2(trusted.home / "keys" / "refresh.pem", online / "keys")
    shutil.copy2(trusted.home / "root.json", online)
    there = {"TRTOPS_HOME": str(online), "TRTOPS_REGISTRY": f"file:{trusted.home / 'registry'}", "TRTOPS_EXPIRES": "1"}
    done = trusted.call("registry", "refresh", **there).says(0, " of local: 1 channel and 0 secrets")
    assert "expires in 24 h" in done.out
    assert trusted.generations() == [1]
    assert [path.name for path in (online / "keys").glob("*.pem")] == ["refresh.pem"]
    trusted.call("registry", "refresh", "tiny", **there).says(2, "one snapshot keeps all channels fresh")
    (online / "keys" / "refresh.pem").unlink()
    trusted.call("registry", "refresh", **there).says(2, "there is no refresh key here")


def test_an_expired_snapshot_is_told_and_refreshed(trusted: Repository) -> None:
    """``status`` says what a service would think; refreshing brings it back."""
    name = trusted.home / "registry" / "local" / "snapshot.json"
    before = name.read_bytes()
    name.unlink()
    trusted.call("status").says(2, "there is no snapshot of the channels", "trtops registry refresh")
    name.write_bytes(before.replace(b'"payload":"', b'"payload":"AAAA'))
    trusted.call("status").says(2, "snapshot")
    trusted.call("registry", "refresh").says(2, "snapshot: error:", " of local: 1 channel")  # replaced, and told
    trusted.call("registry", "refresh").says(0, " of local: 1 channel")
    done = trusted.call("status").says(0, "tiny")
    assert "snapshot" not in done.out + done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("rotate", "release", "--key", "nonsense"), "not a public key"),
        (("rotate", "nobody"), "nobody"),
        (("revoke", "0000"), "no trusted key starts with '0000'"),
        (("revoke", "a"), "no trusted key starts with"),
        (("set",), "nothing is to change"),
        (("set", "--threshold", "0"), "--threshold"),
        (("set", "--threshold", "9"), "role root needs 9 keys and has 1"),
        (("set", "--tier", "gold"), "not a tier and a number"),
        (("sign", "absent.json", "--as", "release"), "there is no such file"),
        (("publish", "absent.json"), "there is no such file"),
        (("sign", "tiny@nonsense", "--as", "release"), "not the digest of a release"),
    ],
)
def test_mistakes_are_told(trusted: Repository, words: tuple[str, ...], says: str) -> None:
    before = _root(trusted)
    trusted.call("trust", *words).says(2, says)
    assert _root(trusted) == before


def _public(pem: Path) -> str:
    from trtops.release.keys import signer_at

    return signer_at(pem).public.public
