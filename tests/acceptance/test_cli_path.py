"""The path of one engine, stage by stage and all at once: what is there is reused, what is wrong is caught."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support.builds import linear
from tests.support.repository import CHECKOUT
from trtops.backend.port import Sidecar
from trtops.document import load_document
from trtops.release.documents import Provenance
from trtops.release.envelope import sign, verify
from trtops.release.keys import KeyStore
from trtops.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.repository import Repository

STAGES = ("check", "build onnxruntime", "verify onnxruntime", "bench onnxruntime", "gate evidence", "release")


def bindings(repo: Repository) -> list[dict[str, Any]]:
    """The engine's history, newest first."""
    found: list[dict[str, Any]] = json.loads(repo.call("history", "tiny", "--json").says(0).out)["bindings"]
    return found


def test_shipping_again_makes_nothing_and_says_so(shipped: Repository) -> None:
    before = {name: (shipped.home / name).read_bytes() for name in shipped.files()}
    done = shipped.call("ship", "tiny").says(0, "evidence reused: equal within tolerance", "nothing new: generation 1")
    assert " built " not in done.out
    stages = shipped.call("ship", "tiny", "--json").says(0).stages
    assert set(stages) == set(STAGES)
    reused = [name for name in STAGES if stages[name]["outcome"] == "reused"]
    assert reused == ["build onnxruntime", "verify onnxruntime", "bench onnxruntime", "release"]
    assert {name: (shipped.home / name).read_bytes() for name in shipped.files()} == before
    assert shipped.half_written() == []


def test_rebuild_and_fresh_do_it_again(shipped: Repository) -> None:
    stages = shipped.call("ship", "tiny", "--fresh", "--json").says(0).stages
    assert stages["build onnxruntime"]["outcome"] == "reused"
    assert stages["verify onnxruntime"]["outcome"] == stages["bench onnxruntime"]["outcome"] == "done"
    done = shipped.call("build", "tiny", "--rebuild").says(0, "built")
    assert "reused" not in done.out


def test_single_verbs_do_what_ship_does(repo: Repository, shipped: Repository) -> None:
    repo.call("check", "tiny").says(0, "allowed by")
    done = repo.call("build", "tiny").says(0, "build onnxruntime  built")
    phases = next(line for line in done.out.splitlines() if line.startswith("onnxruntime: start "))
    assert all(f" {phase} " in phases for phase in ("library", "model", "build the engine", "store"))
    assert "onnxruntime: start" not in repo.call("build", "tiny").says(0, "reused").out
    repo.call("verify", "tiny").says(0, "equal within tolerance", "worst element: y[")
    repo.call("bench", "tiny").says(0, "95 % intervals", "runs")
    repo.call("release", "tiny", "--dry-run").says(0, "gate evidence")
    repo.call("status").says(0, "nothing is released yet")
    stages = repo.call("release", "tiny", "--json").says(0).stages
    assert [stages[f"{verb} onnxruntime"]["outcome"] for verb in ("build", "verify", "bench")] == ["reused"] * 3
    assert stages["release"]["outcome"] == "done"
    assert repo.artifact().name == shipped.artifact().name
    kinds = [{name.rpartition("/")[0] for name in one.files()} for one in (repo, shipped)]
    assert kinds[0] == kinds[1]
    repo.call("ship", "tiny").says(0, "nothing new: generation 1 says the same")


def test_status_history_and_rollback(shipped: Repository) -> None:
    shipped.edit("max_queue_delay: 1ms", "max_queue_delay: 2ms")
    shipped.call("ship", "tiny").says(0, "evidence reused", "generation 2 signed and published")
    shipped.call("status").says(0, "stable 100 %")
    second, first = bindings(shipped)
    assert second["engine_release"] != first["engine_release"]
    assert second["config_release"] == first["config_release"]
    shipped.call("rollback", "tiny").says(0, "tiny: generation 3 in local (rollback to generation 1)")
    third = bindings(shipped)[0]
    assert (third["generation"], third["engine_release"]) == (3, first["engine_release"])
    shipped.call("rollback", "tiny", "--to", "3").says(2, "binds what runs already")
    shipped.call("rollback", "tiny", "--to", "9").says(2, "generation 9")
    assert shipped.generations() == [3, 2, 1]
    shipped.call("ship", "tiny").says(0, "evidence reused", "generation 4 signed and published")
    fourth = bindings(shipped)[0]
    assert fourth["config_release"] == first["config_release"]
    (status,) = json.loads(shipped.call("status", "--json").says(0).out)["bindings"]
    assert status == fourth
    shipped.call("history", "tiny").says(0, "rollback to generation 1")


def test_a_change_of_the_runtime_config_alone(shipped: Repository) -> None:
    shipped.edit("scores: true", "scores: false", file=shipped.engine / "runtime.yaml")
    stages = shipped.call("ship", "tiny", "--json").says(0).stages
    assert stages["build onnxruntime"]["outcome"] == stages["bench onnxruntime"]["outcome"] == "reused"
    second, first = bindings(shipped)
    assert second["config_release"] != first["config_release"]
    assert second["engine_release"] == first["engine_release"]


def test_each_environment_has_its_own_channel(shipped: Repository) -> None:
    shipped.call("status", "--env", "other").says(0, "nothing is released yet")
    shipped.call("rollback", "tiny", "--env", "other").says(2, "tiny is not released in the environment other")


def test_a_new_engine_from_a_file_to_a_release(repo: Repository) -> None:
    model = repo.root / "elsewhere" / "my model.onnx"
    model.parent.mkdir()
    model.write_bytes((repo.engine / "model.onnx").read_bytes())
    repo.call("new", "two", "--model", "elsewhere/my model.onnx").says(0, "engines/two/engine.yaml", "trtops check two")
    spec = repo.root / "engines" / "two" / "engine.yaml"
    done = repo.call("check", "two").says(1, "denied spec.owner_present: the engine has no owner")
    assert done.out.count("denied spec.") == 1
    repo.edit("  # owner: YOUR-TEAM", "  owner: a-team", file=spec)
    repo.call("check", "two").says(0)
    repo.edit("duration: 1s", "duration: 100ms", file=spec)
    repo.call("ship", "two").says(0, "generation 1 signed and published")


@pytest.mark.parametrize("kind", ["engine", "Engine", "runtime"])
def test_the_schema_holds_for_shipped_documents(repo: Repository, kind: str) -> None:
    schema = json.loads(repo.call("schema", kind).says(0).out)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for folder in (repo.engine, *(CHECKOUT / "engines").iterdir()):
        for path in folder.glob(f"{kind.lower()}*.yaml"):
            validator.validate(load_document(path).data)
    assert not validator.is_valid(load_document(repo.spec).data | {"batchng": {}})


def test_settings_and_their_sources(repo: Repository) -> None:
    (repo.root / "trtops.toml").write_text("build_timeout = 60\n")
    done = repo.call("settings", "show", "--env", "dev", TRTOPS_OPA_TOKEN="hunter2")
    rows = {row.split()[0]: row.split(maxsplit=1)[1] for row in done.says(0).out.splitlines() if row}
    assert rows["build_timeout"].split(maxsplit=1) == ["60.0", "file trtops.toml"]
    assert rows["environment"].split(maxsplit=1) == ["dev", "flag --environment"]
    assert rows["opa_token"].split(maxsplit=1) == ["(set)", "environment TRTOPS_OPA_TOKEN"]
    assert rows["build_memory"].split() == ["0", "default"]
    assert "hunter2" not in done.out


def commands(command: Any, *names: str) -> Iterator[tuple[str, ...]]:
    yield names
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, *names, name)


def test_every_command_explains_itself(repo: Repository) -> None:
    import typer

    from trtops.cli.main import app

    found = list(commands(typer.main.get_command(app)))
    assert {("ship",), ("check",), ("build",), ("verify",), ("bench",), ("release",), ("status",), ("history",),
            ("rollback",), ("serve",), ("infer",), ("new",), ("schema",), ("settings", "show")} <= set(found)  # fmt: skip
    for names in found:
        done = repo.call(*names, "--help").says(0, "Usage: trtops")
        assert done.err == ""
    repo.call("--version").says(0, "trtops 0.")


@pytest.mark.service
def test_what_commands_import(repo: Repository) -> None:
    """Read off processes of their own, since this one has imported everything."""

    def imported(*arguments: str) -> set[str]:
        code = (
            "import sys\n"
            "from trtops.cli.main import app\n"
            "try:\n    app()\nexcept SystemExit as leave:\n    assert not leave.code, leave\n"
            "print('IMPORTED', *sys.modules)\n"
        )
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(
            command, cwd=repo.root, env=repo.environment(), capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return set(done.stdout.rpartition("IMPORTED")[2].split())

    assert not imported("--help") & {"onnxruntime", "onnx", "numpy", "pydantic", "rich", "regorus", "cryptography"}
    checked = imported("check", "tiny")
    assert not checked & {"onnxruntime", "tensorrt", "tensorrt_rtx", "cuda"}
    assert {"onnx", "regorus"} <= checked


def weights_changed(artifact: bytes) -> bytes:
    """The same graph with one number of one initialiser off by a hundredth."""
    model = onnx.load_from_string(artifact)
    tensor = next(one for one in model.graph.initializer if numpy_helper.to_array(one).size > 1)
    array = np.array(numpy_helper.to_array(tensor))
    array.flat[0] += 0.01
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    changed: bytes = model.SerializeToString()
    return changed


def another_model(artifact: bytes) -> bytes:
    del artifact
    model = linear()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 2, tensor.name))
    other: bytes = model.SerializeToString()
    return other


def plant(repo: Repository, artifact: bytes, *, signed: bool) -> None:
    """Have the store say that an artifact is what was built; ``signed``: the builder says so as well."""
    store = Store(repo.home / "store")
    digest = store.put_bytes(artifact)
    (key,) = (path.name.removesuffix(".json") for path in (repo.home / "store" / "records" / "sidecar").iterdir())
    key = key.replace("%3A", ":")
    body = store.record("sidecar", key)
    assert body is not None
    changes = {"artifact": digest, "size_bytes": len(artifact)}
    planted = Sidecar.model_validate_json(body).model_copy(update=changes)
    store.keep("sidecar", key, planted.canonical_bytes())
    if signed:
        keys = KeyStore(repo.home)
        envelope = store.record("provenance", key)
        assert envelope is not None
        word = {"artifact": digest, "sidecar": planted.digest()}
        said = verify(envelope, Provenance, keys.root()).value.model_copy(update=word)
        store.keep("provenance", key, sign(said, [keys.signer("builder")]))


@pytest.mark.parametrize("wrong", [weights_changed, another_model])
def test_a_wrong_engine_is_caught(shipped: Repository, wrong: Callable[[bytes], bytes]) -> None:
    plant(shipped, wrong(shipped.artifact().read_bytes()), signed=True)
    done = shipped.call("verify", "tiny").says(1, "accuracy: differs", "worst element: y[")
    worst = next(line for line in done.out.splitlines() if line.startswith("worst element"))
    assert "expected" in worst
    assert "times the tolerance" in worst
    for verb in ("release", "ship"):
        shipped.call(verb, "tiny").says(1, "denied evidence.", "policies deny tiny/onnxruntime: ")
    assert shipped.generations() == [1]
    shipped.call("ship", "tiny", "--rebuild").says(0)
    shipped.call("verify", "tiny").says(0, "equal within tolerance")


def test_an_engine_that_no_builder_signed_is_built_again(shipped: Repository) -> None:
    before = shipped.artifact().name
    plant(shipped, weights_changed(shipped.artifact().read_bytes()), signed=False)
    shipped.call("verify", "tiny").says(0, "equal within tolerance")
    assert shipped.artifact().name == before
