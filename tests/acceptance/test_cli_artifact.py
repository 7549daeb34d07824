"""One release from machines of two kinds: each builds and measures its own target, a third one signs."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.repository import SPEC, Repository, make_repository, write_engine
from trtops.digest import Digest
from trtops.evidence import Evidence
from trtops.release.documents import Provenance
from trtops.release.envelope import read_unverified, sign
from trtops.release.keys import Signer, signer_at

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.repository import Done

pytestmark = pytest.mark.service

TARGETS = "".join(
    f'  - {{backend: fake, gpu: {{name: {name}, compute_capability: "0.0"}}}}\n' for name in ("T4", "A10")
)
HAND = "fake-t4", "fake-a10"


def _sums() -> onnx.ModelProto:
    """y [n, 3]: the sum of a row of x [n, 4], three times; what the fake backend answers."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "sums",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(np.ones((4, 3), np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@dataclass
class Fleet:
    """A repository, two machines with a GPU each, and one that signs and has none."""

    root: Path
    store: dict[str, str] = field(default_factory=dict)

    def at(self, machine: str) -> Repository:
        return Repository(self.root, self.root / f"home-{machine}")

    def call(self, machine: str, *words: str) -> Done:
        """A command on a machine: T4 and A10 have that GPU, the signing one has none."""
        plays = {"gone": True} if machine == "signer" else {"device_name": machine}
        return self.at(machine).call(*words, TRTOPS_FAKE=json.dumps(plays), **self.store)

    def measured(self, machine: str) -> None:
        for verb in ("verify", "bench"):
            self.call(machine, verb, "tiny", "--target", f"fake-{machine.lower()}").says(0)

    def exported(self, machine: str) -> Path:
        self.measured(machine)
        out = self.root / f"out-{machine}"
        self.call(machine, "artifact", "export", "tiny", "--out", str(out)).says(0, f"tiny/fake-{machine.lower()}")
        return out

    @property
    def release(self) -> dict[str, Any]:
        """The engine release in the registry."""
        import base64

        (path,) = (self.at("signer").home / "registry" / "local" / "engines" / "tiny" / "releases").glob("*.json")
        found: dict[str, Any] = json.loads(base64.b64decode(json.loads(path.read_bytes())["payload"]))["predicate"]
        return found


@pytest.fixture(scope="module")
def template(memory: Path) -> Path:
    root = memory / "fleet"
    make_repository(root, engine=False)
    repo = Repository(root, root / "home-signer")
    write_engine(repo.engine, SPEC.replace("  - backend: onnxruntime\n", TARGETS))
    onnx.save(_sums(), repo.engine / "model.onnx")
    repo.edit(
        repo.spec.read_text().split("sha256: ")[1].split("\n")[0], Digest.of_file(repo.engine / "model.onnx").value
    )
    levels = root / "governance" / "enforcement.yaml"
    levels.write_text(levels.read_text().replace("level: soft\n", "level: soft\nrules: {spec.gpu_allowed: advisory}\n"))
    repo.call("trust", "init").says(0)
    for machine in ("T4", "A10"):
        keys = root / f"home-{machine}" / "keys"
        keys.mkdir(parents=True)
        shutil.copy2(repo.home / "root.json", keys.parent)
        shutil.copy2(repo.home / "keys" / "builder.pem", keys)
    return root


@pytest.fixture
def fleet(template: Path, folder: Path) -> Fleet:
    shutil.copytree(template, folder / "fleet")
    return Fleet(folder / "fleet")


def test_a_release_for_two_kinds_of_machines_is_joined_where_it_is_signed(fleet: Fleet) -> None:
    outs = [fleet.exported(machine) for machine in ("T4", "A10")]
    fleet.call("signer", "release", "tiny").says(1, "no target of tiny can be released", "Fake GPU is gone")
    done = fleet.call("signer", "artifact", "import", *map(str, outs)).says(0)
    assert done.out.count("imported") == 2
    plan = json.loads(fleet.call("signer", "plan", "tiny", "--format", "json").says(0).out)
    assert [one["build"] for one in plan["engines"][0]["targets"]] == ["reuse", "reuse"]
    done = fleet.call("signer", "release", "tiny").says(
        0, "generation 1 signed and published", "taken over from builder"
    )
    assert [(one["target"], one["sidecar"]["device"]["name"]) for one in fleet.release["artifacts"]] == [
        ("fake-a10", "A10"),
        ("fake-t4", "T4"),
    ]
    assert fleet.release["skipped"] == {}
    fleet.call("signer", "verify-release", "tiny").says(0)
    fleet.call("signer", "release", "tiny").says(0, "nothing new: generation 1 says the same")
    again = fleet.call("signer", "artifact", "import", *map(str, outs)).says(0)
    assert again.out.count("what is here is as new") == 2


def test_machines_that_share_a_store_carry_nothing(fleet: Fleet) -> None:
    fleet.store = {"TRTOPS_STORE": str(fleet.root / "store")}
    for machine in ("T4", "A10"):
        fleet.measured(machine)
    fleet.call("signer", "release", "tiny").says(0, "generation 1 signed and published")
    assert [one["target"] for one in fleet.release["artifacts"]] == ["fake-a10", "fake-t4"]
    # Where one machine has not built its own yet, the release goes without, and says so.
    fleet.at("T4").edit("max_size: 512", "max_size: 500")
    fleet.measured("T4")
    fleet.call("signer", "release", "tiny").says(0, "generation 2", "skipped: Fake GPU is gone")


def test_a_machine_takes_its_own_before_what_others_hand_on(fleet: Fleet) -> None:
    """Where it can build and load a target, it releases what it has built and measured itself."""
    out = fleet.exported("A10")
    home = fleet.at("A10").home
    shutil.rmtree(home / "store")
    fleet.call("A10", "artifact", "import", str(out)).says(0, "imported")
    done = fleet.call("A10", "release", "tiny", "--target", "fake-a10", "--dry-run").says(0, "build fake-a10")
    assert "taken over" not in done.out


def test_what_was_handed_on_for_another_spec_is_not_taken(fleet: Fleet) -> None:
    out = fleet.exported("T4")
    fleet.at("signer").edit("max_size: 512", "max_size: 500")
    fleet.call("signer", "artifact", "import", str(out)).says(0)
    fleet.call("signer", "release", "tiny").says(1, "no target of tiny can be released")
    fleet.call("T4", "artifact", "export", "tiny", "--out", str(fleet.root / "none")).says(2, "trtops verify tiny")


def _handover(folder: Path) -> Path:
    (found,) = folder.glob("*.handover.json")
    return found


def _change(folder: Path, **changes: Any) -> None:
    path = _handover(folder)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _word(folder: Path, name: str, kind: type[Any]) -> Any:
    return read_unverified(json.loads(_handover(folder).read_text())[name].encode(), kind).value


@pytest.mark.parametrize("name", ["provenance", "evidence"])
def test_arbitrary_software_what_no_trusted_builder_signed_is_not_imported(fleet: Fleet, name: str) -> None:
    out, mallory = fleet.exported("T4"), Signer.generate()
    kind: type[Any] = Provenance if name == "provenance" else Evidence
    value = _word(out, name, kind)
    if name == "provenance":
        value = value.model_copy(update={"builder": mallory.key_id})
    _change(out, **{name: sign(value, [mallory]).decode()})
    before = fleet.at("signer").files()
    fleet.call("signer", "artifact", "import", str(out)).says(2, "0 of the 1 builder keys that are trusted here signed")
    assert [one for one in fleet.at("signer").files() if one not in before] == []


def test_arbitrary_software_an_engine_that_was_changed_is_not_imported(fleet: Fleet) -> None:
    out = fleet.exported("T4")
    (blob,) = (out / "blobs").iterdir()
    blob.write_bytes(blob.read_bytes()[:-1] + b" ")
    fleet.call("signer", "artifact", "import", str(out)).says(2, "not the bytes of", "that the builder signed")
    blob.write_bytes(blob.read_bytes() * 2)
    fleet.call("signer", "artifact", "import", str(out)).says(2, "not the bytes of")
    blob.unlink()
    fleet.call("signer", "artifact", "import", str(out)).says(2, "the engine is not in the folder")
    fleet.call("signer", "release", "tiny").says(1, "no target of tiny can be released")


def test_mix_and_match_words_of_two_targets_do_not_go_together(fleet: Fleet) -> None:
    """Genuine, both of them; the numbers are another machine's."""
    first, second = (fleet.exported(machine) for machine in ("T4", "A10"))
    other = json.loads(_handover(second).read_text())
    mine = json.loads(_handover(first).read_text())
    for field_, says in (("evidence", "the evidence is of another build"), ("provenance", "the provenance is of")):
        _change(first, **{field_: other[field_]})
        fleet.call("signer", "artifact", "import", str(first)).says(2, says)
        _change(first, **{field_: mine[field_]})
    side = mine["sidecar"] | {"extra": {"libraries": "sha256:" + "0" * 64}}
    _change(first, sidecar=side)
    fleet.call("signer", "artifact", "import", str(first)).says(2, "the provenance is of another build")
    _change(first, sidecar=mine["sidecar"], spec="sha256:" + "0" * 64)
    fleet.call("signer", "artifact", "import", str(first)).says(2, "the evidence is of another build")


def test_key_compromise_what_a_revoked_builder_signed_is_taken_no_more(fleet: Fleet) -> None:
    out = fleet.exported("T4")
    fleet.call("signer", "artifact", "import", str(out)).says(0)
    key = json.loads(fleet.call("signer", "trust", "show", "--json").out)["root"]["roles"]["builder"]["keys"][0]
    fleet.call("signer", "trust", "revoke", key, "--yes").says(0)
    fleet.call("signer", "artifact", "import", str(out)).says(2, "which was revoked")
    fleet.call("signer", "release", "tiny").says(1, "no target of tiny can be released", "which was revoked")


def _record(fleet: Fleet, machine: str, target: str) -> Path:
    (found,) = (fleet.at(machine).home / "store" / "records" / "handover").glob(f"tiny.{target}.*")
    return found


@pytest.mark.parametrize("word", ["no JSON", "forged"])
def test_one_bad_handover_stops_no_other_target(fleet: Fleet, word: str) -> None:
    """Whoever writes to the store can spoil a record; that target is left out, and the reason is told."""
    outs = [fleet.exported(machine) for machine in ("T4", "A10")]
    fleet.call("signer", "artifact", "import", *map(str, outs)).says(0)
    record = _record(fleet, "signer", "fake-t4")
    body = json.loads(record.read_bytes())
    envelope = sign(_word(outs[0], "evidence", Evidence), [Signer.generate()]).decode()
    record.write_text("{" if word == "no JSON" else json.dumps(body | {"evidence": envelope}))
    says = "this is no handover" if word == "no JSON" else "0 of the 1 builder keys"
    plan = json.loads(fleet.call("signer", "plan", "tiny", "--format", "json").says(0).out)
    found = {one["target"]: (one["build"], one["reason"]) for one in plan["engines"][0]["targets"]}
    assert found["fake-a10"] == ("reuse", None)
    assert found["fake-t4"][0] == "elsewhere"
    assert f"what another machine handed on is not taken: {says}" in found["fake-t4"][1]
    fleet.call("signer", "plan", "tiny").says(0, "what another machine handed on is not taken")
    done = fleet.call("signer", "release", "tiny", "--json").says(0)
    assert (done.stages["build fake-t4"]["outcome"], done.stages["build fake-a10"]["outcome"]) == ("warned", "reused")
    assert "what another machine handed on is not taken" in done.stages["build fake-t4"]["result"]
    assert [one["target"] for one in fleet.release["artifacts"]] == ["fake-a10"]
    assert says in fleet.release["skipped"]["fake-t4"]


def test_a_damaged_engine_is_not_released_and_an_import_repairs_it(fleet: Fleet) -> None:
    out = fleet.exported("T4")
    fleet.call("signer", "artifact", "import", str(out)).says(0)
    (blob,) = (out / "blobs").iterdir()
    kept = fleet.at("signer").home / "store" / "sha256" / blob.name[:2] / blob.name
    for damage in (lambda: kept.write_bytes(kept.read_bytes()[:-1] + b" "), kept.unlink):
        damage()
        done = fleet.call("signer", "release", "tiny").says(1, "no target of tiny can be released")
        assert "what another machine handed on is not taken" in done.out + done.err
        plan = json.loads(fleet.call("signer", "plan", "tiny", "--format", "json").says(1).out)
        assert [one["build"] for one in plan["engines"][0]["targets"]] == ["elsewhere", "elsewhere"]
        fleet.call("signer", "artifact", "import", str(out)).says(0, "imported")
        assert kept.read_bytes() == blob.read_bytes()
    fleet.call("signer", "release", "tiny").says(0, "generation 1 signed and published")


def test_a_builder_that_is_not_trusted_replaces_nothing(fleet: Fleet) -> None:
    """In a shared store, the word of a trusted builder stays where a machine without its key measures the same."""
    fleet.store = {"TRTOPS_STORE": str(fleet.root / "store")}
    fleet.measured("T4")
    (record,) = (fleet.root / "store" / "records" / "handover").iterdir()
    (evidence,) = (fleet.root / "store" / "records" / "evidence").iterdir()
    before = record.read_bytes(), evidence.read_bytes()
    key = fleet.at("T4").home / "keys" / "builder.pem"
    key.unlink()
    fleet.call("T4", "verify", "tiny", "--target", "fake-t4", "--fresh").says(0)
    assert key.exists(), "a key of its own, which the root does not name"
    assert (record.read_bytes(), evidence.read_bytes()) == before


def test_replay_better_numbers_of_before_replace_none_that_are_newer(fleet: Fleet) -> None:
    out = fleet.exported("T4")
    builder = signer_at(fleet.at("T4").home / "keys" / "builder.pem")
    evidence = _word(out, "evidence", Evidence)
    fleet.call("signer", "artifact", "import", str(out)).says(0, "imported")
    older = evidence.model_copy(update={"created": evidence.created - 1000})
    _change(out, evidence=sign(older, [builder]).decode())
    fleet.call("signer", "artifact", "import", str(out)).says(0, "what is here is as new")
    newer = evidence.model_copy(update={"created": evidence.created + 1})
    _change(out, evidence=sign(newer, [builder]).decode())
    fleet.call("signer", "artifact", "import", str(out)).says(0, "imported")


def test_what_policies_deny_of_another_machine_is_denied(fleet: Fleet) -> None:
    """Its numbers are judged here, as its own are."""
    out = fleet.exported("T4")
    builder = signer_at(fleet.at("T4").home / "keys" / "builder.pem")
    evidence = _word(out, "evidence", Evidence)
    old = evidence.model_copy(update={"created": evidence.created - 400 * 86_400})
    _change(out, evidence=sign(old, [builder]).decode())
    fleet.call("signer", "artifact", "import", str(out)).says(0)
    fleet.call("signer", "release", "tiny").says(1, "evidence.")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{", "this is no handover"),
        ("{}", "this is no handover"),
        ("x" * (2 << 20), "more than 1048576 bytes"),
        (None, "this is no regular file"),
    ],
)
def test_what_is_no_handover_is_told(fleet: Fleet, body: str | None, says: str) -> None:
    folder = fleet.root / "wrong"
    folder.mkdir()
    path = folder / "tiny.fake-t4.handover.json"
    if body is None:
        path.mkdir()
    else:
        path.write_text(body)
    fleet.call("signer", "artifact", "import", str(folder)).says(2, str(path.name), says)


@pytest.mark.parametrize("kind", ["pipe", "link"])
@pytest.mark.parametrize("part", ["handover", "blob"])
def test_arbitrary_software_only_regular_files_are_imported(fleet: Fleet, kind: str, part: str) -> None:
    """A pipe never ends, or never begins; a link leads out of the folder, even to what would be right."""
    out = fleet.exported("T4")
    path = _handover(out) if part == "handover" else next((out / "blobs").iterdir())
    moved = path.rename(fleet.root / "elsewhere")
    if kind == "pipe":
        os.mkfifo(path)
        with path.open("rb+", buffering=0):  # with a writer, so that a reader would wait for bytes
            done = fleet.at("signer").run("artifact", "import", str(out), timeout=30)
    else:
        path.symlink_to(moved)
        done = fleet.call("signer", "artifact", "import", str(out))
    done.says(2, str(path), "this is no regular file")
    assert not (fleet.at("signer").home / "store" / "records").exists()


def test_where_an_export_cannot_be_written_is_told(fleet: Fleet) -> None:
    fleet.measured("T4")
    (fleet.root / "out").write_text("in the way")
    done = fleet.call("T4", "artifact", "export", "tiny", "--out", str(fleet.root / "out")).says(2, "--out")
    assert "TRTOPS_HOME" not in done.err


def test_folders_that_are_none_are_told(fleet: Fleet) -> None:
    empty = fleet.root / "empty"
    empty.mkdir()
    fleet.call("signer", "artifact", "import", str(empty)).says(2, "there is nothing to import")
    fleet.call("signer", "artifact", "import", str(fleet.root / "trtops.toml")).says(2, "this is no folder")
    fleet.call("signer", "artifact", "import", str(fleet.root / "absent")).says(2, "there is no such folder")
    fleet.call("T4", "artifact", "export", "tiny", "-t", "nope", "-o", str(empty)).says(2, "tiny has no target 'nope'")
