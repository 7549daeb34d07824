"""What a user gets wrong is told with its place and what to do next: exit code 2, no traceback, nothing half-written.

Golden files hold the whole of some messages. To accept new words: ``TRTOPS_GOLDEN=write pytest`` this file.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.repository import CHECKOUT, SPEC, write_engine
from trtops.digest import Digest

if TYPE_CHECKING:
    from tests.support.repository import Repository

GOLDEN = CHECKOUT / "tests" / "golden" / "cli"
VERBS = ("check", "build", "verify", "bench", "release", "ship")
BOMB = "bomb: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdef", "bcdefg", strict=True)
)


def golden(name: str, said: str) -> None:
    """Compare what was said with a file."""
    path = GOLDEN / name
    if os.environ.get("TRTOPS_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(said)
    assert said == path.read_text()


@pytest.mark.parametrize(
    ("old", "new", "at", "found", "allowed"),
    [
        ("max_batch: 8", "max_batch: 8\n  max_batch: 9", "max_batch: 9", "'max_batch' is there twice", "first in line 22"),
        ("  max_batch: 8", "\tmax_batch: 8", None, "a tab between values", "replace each tab by two spaces"),
        ("64MiB", "64MB2", None, "'64MB2' is no size", "512MiB (units: B, KiB, MiB"),
        ("64MiB", "64", None, "64 has no unit", "write a size with its unit"),
        ("1ms", "1MiB", None, "'1MiB' is no duration", "such as 2ms (units: us,"),
        ("atol: 1e-5", "atol: .nan", ".nan", ".nan is not a number", "write a finite number"),
        ("rtol: 1e-4", "rtol: -.inf", "-.inf", "-.inf is not a number", "write a finite number"),
        ("max_queue_delay", "max_queue_dely", None, "unknown key `max_queue_dely`", "did you mean `max_queue_delay`?"),
        ("\nbatching:", "\nbatchng:", "batchng", "unknown key `batchng`", "did you mean `batching`?"),
        ("mode: fp32", "mode: fp17", "fp17", "`precision.mode` is 'fp17'", "write one of: fp1"),
        ("min: [1, 4]", "min: 1", "1", "`profiles[0].inputs.x.min` is the number 1", "write a list"),
        ("max_batch: 8", "max_batch: !!python/object:os.system 8", "!!python", "the tag", "remove it"),
        ("owner: team\n  labels: {", "owner: [team\n  labels: {", ": {", "did not find", "check the indentation"),
    ],
)  # fmt: skip
def test_a_wrong_spec(repo: Repository, old: str, new: str, at: str | None, found: str, allowed: str) -> None:
    place = repo.edit(old, new, at=at)
    done = repo.call("check", "tiny").says(2, f"{place}: error", found, allowed)
    assert done.out == ""
    assert repo.files() == []


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "1:1: error document.not-a-mapping: the document is empty"),
        (b"- a\n- b\n", "1:1: error document.not-a-mapping: found a list of 2"),
        (b"just text\n", "1:1: error document.not-a-mapping: found 'just text'"),
        (b"a: 1\n---\nb: 2\n", "2:1: error document.several: a second document begins"),
        (b"a: 1\nb: \xff\n", "2:4: error document.not-utf-8: byte 0xff is not UTF-8"),
        (b"a: " + b"[" * 100 + b"]" * 100, "document.too-deep: nested more than 64 deep"),
        (BOMB.encode(), "5:20: error document.too-many-values: more than 50000 values"),
    ],
)
def test_what_is_no_document(repo: Repository, content: bytes, found: str) -> None:
    repo.spec.write_bytes(content)
    repo.call("check", "tiny").says(2, f"engines/tiny/engine.yaml:{found}" if found[0].isdigit() else found)


def test_every_problem_of_a_spec_at_once(repo: Repository) -> None:
    repo.edit("64MiB", "64MB2")
    repo.edit("max_queue_delay", "max_queue_dely")
    repo.edit("mode: fp32", "mode: fp17")
    golden("wrong_spec.txt", repo.call("ship", "tiny").says(2, "3 problems").err)


def test_a_runtime_config_that_no_executor_can_keep(repo: Repository) -> None:
    change = "features: {scores: true}\nbatching: {max_queue_delay: 0ms, flush: adaptive}"
    place = repo.edit("features: {scores: true}", change, at="adaptive", file=repo.engine / "runtime.yaml")
    done = repo.call("check", "tiny")
    done.says(2, f"{place}: error: `flush: adaptive` shortens a wait", "write flush: fixed")


def test_a_wrong_runtime_config(repo: Repository) -> None:
    place = repo.edit("port: 8000", "prot: 8000", at="prot", file=repo.engine / "runtime.yaml")
    repo.call("check", "tiny").says(2, f"{place}: error", "unknown key `prot`", "did you mean `port`?")


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_engine(repo: Repository, verb: str) -> None:
    repo.call(verb, "tniy").says(2, "there is no engine 'tniy'", "engines here: tiny")
    assert repo.files() == []


def test_no_engine_at_all(repo: Repository) -> None:
    shutil.rmtree(repo.engine)
    repo.call("check").says(2, "there is no engine\n", "trtops new NAME --model M.onnx")
    repo.call("check", "tiny").says(2, "there is no engine 'tiny'", "`trtops new tiny --model M.onnx` writes one")


def test_one_wrong_engine_hides_no_other(repo: Repository) -> None:
    write_engine(repo.root / "engines" / "wrong", SPEC.replace("name: tiny", "name: A"))
    write_engine(repo.root / "engines" / "other", SPEC.replace("name: tiny", "name: other"))
    done = repo.call("check").says(2, "engines/wrong/engine.yaml:4:9: error")
    assert "tiny: allowed by" in done.out
    assert "other: allowed by" in done.out


def test_a_missing_model(repo: Repository) -> None:
    (repo.engine / "model.onnx").rename(repo.engine / "modl.onnx")
    done = repo.call("check", "tiny").says(2, "engines/tiny/engine.yaml:8:11: error: file:model.onnx: the file")
    assert "fix: did you mean modl.onnx?" in done.err


def test_a_model_with_another_digest(repo: Repository) -> None:
    digest = Digest.of_file(repo.engine / "model.onnx").value
    place = repo.edit(f"sha256: {digest}", f"sha256: {'0' * 64}", at="0" * 64)
    done = repo.call("ship", "tiny").says(2, f"{place}: error: file:model.onnx", digest, "0" * 64)
    golden("wrong_digest.txt", done.err)
    assert repo.files() == []


def test_a_model_that_was_changed_after_the_review(shipped: Repository) -> None:
    """What is in the store already is what was reviewed; the changed file is refused when it would be taken."""
    with (shipped.engine / "model.onnx").open("ab") as file:
        file.write(b"\0")
    shipped.call("check", "tiny").says(0)
    shutil.rmtree(shipped.home / "store")
    shipped.call("check", "tiny").says(2, "engines/tiny/engine.yaml:9:11: error: file:model.onnx: the model's SHA-256")


@pytest.mark.parametrize("cut", [1, 40, 150])
def test_a_truncated_model(repo: Repository, cut: int) -> None:
    path = repo.engine / "model.onnx"
    before = Digest.of_file(path).value
    path.write_bytes(path.read_bytes()[:-cut])
    repo.edit(before, Digest.of_file(path).value)
    place = "engines/tiny/engine.yaml:8:11: error: file:model.onnx: "
    for verb in ("check", "ship"):
        repo.call(verb, "tiny").says(2, place, "this is no ONNX file, or it was cut short", "fetch or export it again")
    assert not (repo.home / "registry").exists()


@pytest.mark.parametrize("verb", ["build", "ship"])
def test_an_unknown_target(repo: Repository, verb: str) -> None:
    done = repo.call(verb, "tiny", "--target", "onnxruntim")
    done.says(2, "engines/tiny/engine.yaml:11:3: error: tiny has no target 'onnxruntim'", "its targets are onnxruntime")
    assert not (repo.home / "registry").exists()


@pytest.mark.parametrize("arguments", [("check",), ("ship", "tiny"), ("status",), ("serve",), ("settings", "show")])
def test_no_repository(repo: Repository, arguments: tuple[str, ...]) -> None:
    (repo.root / "trtops.toml").unlink()
    repo.call(*arguments).says(2, "no trtops.toml in", "an empty trtops.toml beside engines/")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hom = 3\n", ("unknown setting 'hom'", "settings are: home")),
        ("home = \n", ("trtops.toml cannot be read", "correct it")),
        ("build_timeout = -1\n", ("file trtops.toml", "build_timeout", "found -1")),
    ],
)
def test_a_wrong_setting_in_the_file(repo: Repository, text: str, words: tuple[str, ...]) -> None:
    (repo.root / "trtops.toml").write_text(text)
    repo.call("check").says(2, *words)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TRTOPS_ENVIRONMENT", "A B", ("environment TRTOPS_ENVIRONMENT", "found 'A B'")),
        ("TRTOPS_ENGINE", "opaa", ("environment TRTOPS_ENGINE", "found 'opaa'")),
        ("TRTOPS_STORE", "nope://x", ("cannot open the store", "use a scheme that fsspec knows")),
    ],
)
def test_a_wrong_setting_in_the_environment(repo: Repository, name: str, value: str, words: tuple[str, ...]) -> None:
    repo.call("check", **{name: value}).says(2, *words)


def test_an_unknown_registry(repo: Repository) -> None:
    wrong = {"TRTOPS_REGISTRY": "ftp:x"}
    repo.call("status", **wrong).says(2, "environment TRTOPS_REGISTRY: error: unknown kind of registry 'ftp:x'")


@pytest.mark.parametrize(
    "arguments",
    [("nope",), (), ("ship",), ("check", "--nope"), ("serve", "--port", "99999"), ("rollback", "tiny", "--to", "0")],
)
def test_a_wrong_command_line(repo: Repository, arguments: tuple[str, ...]) -> None:
    repo.call(*arguments).says(2, "Usage: trtops")


def test_verbs_before_anything_is_released(repo: Repository) -> None:
    repo.call("status").says(0, "nothing is released yet")
    for verb in ("history", "rollback"):
        repo.call(verb, "tiny").says(2, "tiny is not released in the environment local", "trtops ship tiny")
    repo.call("serve").says(2, "nothing is released in the environment local", "trtops ship ENGINE")
    repo.call("serve", "tiny").says(2, "tiny is not released in the environment local", "trtops ship tiny")


def test_the_status_of_what_is_not_released(shipped: Repository) -> None:
    shipped.call("status", "tiny").says(0, "tiny")
    shipped.call("status", "tny").says(2, "tny is not released in the environment local", "released here: tiny")


def test_a_page_in_a_folder_that_is_not_there(repo: Repository) -> None:
    """Told before the work, not after it."""
    repo.call("ship", "tiny", "--html", str(repo.root / "none" / "page.html")).says(2, "--html", "there is no folder")
    assert repo.files() == []


@pytest.mark.parametrize(
    ("ports", "says"),
    [
        (("--port", "9001", "--grpc-port", "9001"), "--port and --grpc-port are both 9001"),
        (("--control-port", "9001", "--grpc-control-port", "9001"), "--control-port and --grpc-control-port"),
        (("--port", "8001"), "--port and --control-port are both 8001"),
    ],
)
def test_one_port_for_two(shipped: Repository, ports: tuple[str, ...], says: str) -> None:
    shipped.call("serve", "tiny", *ports).says(2, says, "give each a port of its own")


def test_a_nacos_where_the_registry_is_a_folder(repo: Repository) -> None:
    repo.call("registry", "init", "nacos").says(2, "the registry here is a folder", "TRTOPS_REGISTRY=nacos+tls://")


def test_infer_where_nobody_listens(repo: Repository) -> None:
    repo.call("infer", "tiny", "--url", "http://127.0.0.1:9").says(2, "cannot talk to the server", "trtops serve")
    repo.call("infer", "tiny", "--url", "ftp:x").says(2, "'ftp:x' is no address of a server", "http://host:port")


def test_new_with_a_wrong_name_or_file(repo: Repository) -> None:
    model = "engines/tiny/model.onnx"
    repo.call("new", "T2", "--model", model).says(2, "'T2' cannot be an engine's name", "lower-case letters")
    repo.call("new", "tiny", "--model", model).says(2, "the engine tiny exists already")
    repo.call("new", "two", "--model", "nope.onnx").says(2, "nope.onnx does not exist")
    repo.call("new", "two", "--model", "engines").says(2, "engines is not a file")
    (repo.root / "bad.onnx").write_bytes(b"abc")
    repo.call("new", "two", "--model", "bad.onnx").says(2, "bad.onnx: error: this is no ONNX file")
    assert not (repo.root / "engines" / "two").exists()
    (repo.root / "engines" / "two").mkdir()
    (repo.root / "engines" / "two" / "model.onnx").write_bytes(b"mine")
    repo.call("new", "two", "--model", model).says(2, "would be copied over another file")
    assert (repo.root / "engines" / "two" / "model.onnx").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "words", [("schema", "nonsense"), ("trust", "rotate", "nonsense"), ("check", "--format", "nonsense")]
)
def test_a_choice_that_there_is_not_is_told_with_those_that_there_are(repo: Repository, words: tuple[str, ...]) -> None:
    done = repo.call(*words).says(2, "nonsense", "is not one of '")
    assert "Value error" not in done.err


def test_what_was_skipped_is_said_once(repo: Repository) -> None:
    repo.edit(
        "  - backend: onnxruntime",
        "  - backend: tensorrt\n    version: '8.6'\n    gpu: {name: H200, compute_capability: '9.0'}",
    )
    done = repo.call("verify", "tiny").says(2, "tensorrt is not installed")
    assert done.err.count("tensorrt is not installed") == 1
