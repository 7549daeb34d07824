"""The interface is a contract: what breaks a client needs a new major version, and a service says what it knows."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import onnx
import pytest

from trtops.digest import Digest

if TYPE_CHECKING:
    from tests.support.repository import Repository

pytestmark = pytest.mark.service


def _rename_output(repo: Repository, name: str) -> None:
    """Another name for what clients ask for: the same numbers, and a break."""
    path = repo.engine / "model.onnx"
    before = Digest.of_file(path).value
    model = onnx.load(path)
    old = model.graph.output[0].name
    model.graph.output[0].name = name
    for node in model.graph.node:
        for index, output in enumerate(node.output):
            if output == old:
                node.output[index] = name
    onnx.save(model, path)
    repo.edit(before, Digest.of_file(path).value)


def test_a_break_needs_a_new_major_version(shipped: Repository) -> None:
    _rename_output(shipped, "z")
    shipped.call("ship", "tiny").says(1, "release.interface_compatible", "output y is gone", "no new major version")
    shipped.edit("version: 1.0.0", "version: 1.1.0")
    shipped.call("ship", "tiny").says(1, "1.1.0 after 1.0.0 is no new major version")
    assert shipped.generations() == [1]
    shipped.edit("version: 1.1.0", "version: 2.0.0")
    shipped.call("ship", "tiny").says(0, "generation 2 signed and published")


def test_a_pull_request_is_held_to_what_is_released(shipped: Repository) -> None:
    """Before anything is built, and with no registry at hand: the promise is a committed file."""
    shipped.call("interface", "lock", "--check").says(
        1, "not what local has released", "governance/interfaces/tiny.yaml"
    )
    shipped.call("interface", "lock").says(0, "interface 1.0.0 of tiny in local, written")
    shipped.call("interface", "lock", "tiny").says(0, "as it was")
    shipped.call("interface", "lock", "engines/tiny", "--check").says(0, "as it was")
    shipped.call("check", "tiny").says(0)
    _rename_output(shipped, "z")
    place = shipped.edit("version: 1.0.0", "version: 1.1.0", at="1.1.0")
    (shipped.home / "registry").rename(shipped.home / "away")
    done = shipped.call("check", "tiny").says(1, f"{place}: denied spec.interface_compatible:")
    assert "version 1.1.0 after the released 1.0.0 is no new major version" in done.out
    assert "output y is gone; output z is new" in done.out
    shipped.edit("version: 1.1.0", "version: 2.0.0")
    shipped.call("check", "tiny").says(0)
    (shipped.home / "away").rename(shipped.home / "registry")
    shipped.call("ship", "tiny").says(0, "generation 2 signed and published")
    shipped.call("interface", "lock").says(0, "interface 2.0.0 of tiny in local, written")


def test_nobody_takes_back_a_promise_in_the_same_change(shipped: Repository) -> None:
    """The base branch's file counts where the base branch's policies judge."""
    for words in (("init", "-q", "-b", "main"), ("add", "policies", "governance", "engines", "trtops.toml")):
        _git(shipped, *words)
    shipped.call("interface", "lock").says(0)
    _git(shipped, "add", "governance")
    _git(shipped, "commit", "-q", "-m", "base")
    _rename_output(shipped, "z")
    (shipped.root / "governance" / "interfaces" / "tiny.yaml").unlink()
    shipped.call("check", "tiny").says(0)
    shipped.call("check", "tiny", "--policies-from", "main").says(1, "denied spec.interface_compatible:")


def _git(repo: Repository, *words: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *who, *words], cwd=repo.root, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("[", "governance/interfaces/tiny.yaml"),
        ("apiVersion: trtops/v1", "`engine`: Field required"),
        (None, "this is the interface of other, not of tiny"),
    ],
)
def test_a_promise_that_cannot_be_read_is_not_taken_for_absent(
    shipped: Repository, body: str | None, says: str
) -> None:
    shipped.call("interface", "lock").says(0)
    path = shipped.root / "governance" / "interfaces" / "tiny.yaml"
    path.write_text(path.read_text().replace("engine: tiny", "engine: other") if body is None else body)
    shipped.call("check", "tiny").says(2, says, "trtops interface lock" if body != "[" else "")
    shipped.call("interface", "lock").says(0, "written")
    shipped.call("check", "tiny").says(0)


def test_what_is_not_released_has_no_promise(repo: Repository) -> None:
    repo.call("interface", "lock", "tiny").says(2, "tiny is not released in the environment local")
    repo.call("interface", "lock").says(2, "anything is not released")


def test_a_service_takes_no_interface_that_its_clients_do_not_know(shipped: Repository) -> None:
    with shipped.serve("tiny", "--accepts", "tiny=1.0.0") as server:
        assert server.ready["engines"]["tiny"]["generation"] == 1
        server.stop()
    with shipped.serve("tiny", "--accepts", "tiny=1.1.0") as server:
        engine = server.ready["engines"]["tiny"]
        assert "interface 1.0.0 of tiny does not serve clients of 1.1.0" in engine["reason"], json.dumps(engine)
        server.stop()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["tiny"], "write ENGINE=1.2.0"),
        (["tiny=1.2"], "write ENGINE=1.2.0"),
        (["tiny=01.2.0"], "write ENGINE=1.2.0"),
        (["det=1.2.0"], "det is not served here"),
        (["tiny=1.0.0", "tiny=1.1.0"], "tiny is given twice"),
    ],
)
def test_mistakes_are_told(shipped: Repository, given: list[str], says: str) -> None:
    words = [word for one in given for word in ("--accepts", one)]
    shipped.call("serve", "tiny", *words).says(2, says)
