from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtops.errors import InputError, Location, Problem
from trtops.spec.load import engine_names, find_engine, load_engine, load_runtime, merge

ROOT = Path(__file__).parents[2]
GOOD = f"""\
apiVersion: trtops/v1
kind: Engine
metadata: {{name: a}}
model: {{source: "file:m.onnx", sha256: "{"0" * 64}"}}
targets:
  - {{backend: onnxruntime}}
profiles:
  - inputs:
      x: {{min: [1], opt: [2], max: [4]}}
"""


def write(folder: Path, text: str, name: str = "engine.yaml") -> Path:
    (folder / name).write_text(text)
    return folder


def refused(folder: Path) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        load_engine(folder)
    assert caught.value.exit_code == 2
    return list(caught.value.problems)


def only(folder: Path) -> Problem:
    found = refused(folder)
    assert len(found) == 1, found
    return found[0]


class TestTheShippedEngine:
    def test_it_loads_and_every_target_has_an_id(self) -> None:
        loaded = load_engine(ROOT / "engines" / "ppocr-cls")
        assert [target.id for target in loaded.spec.targets] == [
            "onnxruntime",
            "tensorrt_rtx-sm8.6",
            "tensorrt-8.6-h200",
        ]
        assert loaded.spec.tier == "bronze"
        assert loaded.spec.memory.workspace == 256 << 20
        assert loaded.spec.batching.max_queue_delay == 2000
        assert loaded.spec.target("tensorrt-8.6-h200").slo is not None
        assert loaded.spec.target("onnxruntime").slo is None

    def test_a_fact_s_path_is_a_line_of_the_file(self) -> None:
        loaded = load_engine(ROOT / "engines" / "ppocr-cls" / "engine.yaml")
        lines = (ROOT / "engines" / "ppocr-cls" / "engine.yaml").read_text().splitlines()
        place = loaded.locate(("profiles", 0, "inputs", "x", "opt", 0))
        assert lines[place.line - 1][place.column - 1 :].startswith("8, 3, 48, 192")

    def test_production_is_merged_over_the_base(self) -> None:
        loaded = load_runtime(ROOT / "engines" / "ppocr-cls", "prod")
        assert loaded.overlay is not None
        assert loaded.config.server.host == "0.0.0.0"  # noqa: S104 - what the overlay says
        assert loaded.config.server.port == 8000
        assert loaded.config.database is not None
        assert loaded.config.database.password == "secret:db/password"
        assert loaded.locate(("server", "host")).file.endswith("runtime.prod.yaml")
        assert loaded.locate(("server", "port")).file.endswith("runtime.yaml")


class TestBadInput:
    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="does not exist"):
            load_engine(tmp_path)

    def test_an_unknown_key_names_the_closest(self, tmp_path: Path) -> None:
        problem = only(write(tmp_path, GOOD + "batching: {max_bach: 4}\n"))
        assert problem.code == "spec.unknown-key"
        assert (problem.location.line, problem.location.column) == (10, 12)
        assert "did you mean `max_batch`?" in (problem.fix or "")

    def test_an_unknown_key_of_another_place_is_sent_there(self, tmp_path: Path) -> None:
        problem = only(write(tmp_path, GOOD + "batching: {workspace: 1GiB}\n"))
        assert "it belongs at `memory.workspace`" in (problem.fix or "")

    def test_an_unknown_key_at_the_top(self, tmp_path: Path) -> None:
        problem = only(write(tmp_path, GOOD + "zzzz: 1\n"))
        assert "allowed here: apiVersion, kind, metadata" in (problem.fix or "")

    def test_a_missing_key_stands_at_its_parent(self, tmp_path: Path) -> None:
        problem = only(write(tmp_path, GOOD.replace("min: [1], ", "")))
        assert problem.code == "spec.missing-key"
        assert "`min` is missing in `profiles[0].inputs.x`" in problem.message
        assert (problem.location.line, problem.location.column) == (9, 10)

    def test_a_missing_digest_says_what_it_is(self, tmp_path: Path) -> None:
        problem = only(write(tmp_path, GOOD.replace(f', sha256: "{"0" * 64}"', "")))
        assert "64 lower-case hexadecimal digits" in (problem.fix or "")

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ("1Gib", "'1Gib' is no size"),
            ("5", "5 has no unit"),
            ("1.5", "1.5 has no unit"),
            ("-1MiB", "'-1MiB' is no size"),
            ("0.3B", "not a whole number of B"),
            ("[1]", "no size"),
            ("true", "no size"),
            ("99999TiB", "is '99999TiB'"),
        ],
    )
    def test_a_wrong_unit(self, tmp_path: Path, value: str, words: str) -> None:
        problem = only(write(tmp_path, GOOD + f"memory: {{workspace: {value}}}\n"))
        assert words in problem.message
        assert problem.location.line == 10
        assert problem.fix

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("precision: {tf32: yes}", "write true or false"),
            ('batching: {max_batch: "8"}', "without quotes"),
            ("batching: {max_batch: 8.5}", "a whole number"),
            ("batching: {max_batch: true}", "a whole number"),
            ("batching: {max_batch: 0}", "at least 1"),
            ("batching: [1]", "a mapping"),
            ("batching:", "write its keys below it"),
            ("benchmark: {batch_sizes: 8}", "a list"),
            ("benchmark: {batch_sizes: []}", "at least 1"),
            ("precision: {mode: fp17}", "one of: fp16"),
            ("interface: {version: v1}", "such as 1.0.0"),
            ("accuracy: {metric: {top: 1}}", "one of: top1"),
            ("accuracy: {atol: -1}", "at least 0"),
        ],
    )
    def test_a_wrong_value_says_what_is_allowed(self, tmp_path: Path, text: str, words: str) -> None:
        problem = only(write(tmp_path, GOOD + text + "\n"))
        assert words in (problem.fix or "")
        assert problem.location.line == 10

    def test_a_version_without_quotes_is_quoted_as_it_was_written(self, tmp_path: Path) -> None:
        problem = only(write(tmp_path, GOOD.replace("onnxruntime}", "onnxruntime, version: 10.10}")))
        assert '"10.10"' in (problem.fix or "")

    def test_all_problems_come_at_once_in_the_order_of_lines(self, tmp_path: Path) -> None:
        text = GOOD.replace("name: a", "name: A").replace("backend: onnxruntime", "backend: x") + "what: 1\n"
        assert [problem.location.line for problem in refused(write(tmp_path, text))] == [3, 6, 10]

    def test_a_list_of_wrong_elements_is_not_called_too_short(self, tmp_path: Path) -> None:
        assert only(write(tmp_path, GOOD.replace("backend: onnxruntime", "backend: x"))).code == "spec.choice"

    def test_targets_that_repeat(self, tmp_path: Path) -> None:
        problem = only(write(tmp_path, GOOD.replace("profiles:", "  - {backend: onnxruntime}\nprofiles:")))
        assert problem.code == "spec.repeated"
        assert problem.location.line == 7
        assert "`targets[0]` in line 6" in problem.message

    def test_profiles_that_repeat(self, tmp_path: Path) -> None:
        problem = only(write(tmp_path, GOOD + "  - inputs: {x: {min: [1], opt: [1], max: [1]}}\n"))
        assert "'default' again" in problem.message

    def test_another_kind_of_document(self, tmp_path: Path) -> None:
        found = refused(write(tmp_path, "apiVersion: trtops/v1\nkind: Runtime\n"))
        assert found[0].message == "the key `metadata` is missing"
        assert any("`kind` is 'Runtime'" in problem.message for problem in found)


class TestRuntime:
    BASE = "apiVersion: trtops/v1\nkind: Runtime\nserver: {port: 1, host: a}\nsections: {labels: [a, b], x: {y: 1}}\n"

    def test_without_an_overlay(self, tmp_path: Path) -> None:
        loaded = load_runtime(write(tmp_path, self.BASE, "runtime.yaml"), "dev")
        assert loaded.overlay is None
        assert loaded.documents == (loaded.base,)
        assert loaded.locate(("sections", "x", "y")) == Location(str(tmp_path / "runtime.yaml"), 4, 35)

    def test_mappings_merge_lists_replace_and_null_removes(self, tmp_path: Path) -> None:
        write(tmp_path, self.BASE, "runtime.yaml")
        write(tmp_path, "server: {port: 2, host: null}\nsections: {labels: [c], x: {z: 2}}\n", "runtime.dev.yaml")
        config = load_runtime(tmp_path, "dev").config
        assert config.server.port == 2
        assert config.server.host == "127.0.0.1"
        assert config.sections == {"labels": ["c"], "x": {"y": 1, "z": 2}}

    def test_an_error_of_the_overlay_names_the_overlay(self, tmp_path: Path) -> None:
        write(tmp_path, self.BASE, "runtime.yaml")
        write(tmp_path, "server:\n  port: 70000\n", "runtime.dev.yaml")
        with pytest.raises(InputError) as caught:
            load_runtime(tmp_path, "dev")
        assert str(caught.value.problems[0].location) == f"{tmp_path}/runtime.dev.yaml:2:9"

    def test_a_password_is_never_shown(self, tmp_path: Path) -> None:
        text = self.BASE + "database: {url: x, password: [hunter2], passwort: hunter2}\n"
        with pytest.raises(InputError) as caught:
            load_runtime(write(tmp_path, text, "runtime.yaml"), "dev")
        said = str(caught.value) + "".join(f"{problem} {problem.fix}" for problem in caught.value.problems)
        assert "database.password" in said
        assert "hunter2" not in said

    @pytest.mark.parametrize("environment", ["", "../prod", "Prod", "a/b", "x" * 64])
    def test_an_environment_is_a_name_and_no_path(self, tmp_path: Path, environment: str) -> None:
        with pytest.raises(InputError, match="not the name of an environment"):
            load_runtime(tmp_path, environment)

    def test_a_missing_base(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"runtime\.yaml: the file does not exist"):
            load_runtime(tmp_path, "dev")

    def test_a_feature_of_a_wrong_type_is_one_problem(self, tmp_path: Path) -> None:
        with pytest.raises(InputError) as caught:
            load_runtime(write(tmp_path, self.BASE + "features: {a: [1]}\n", "runtime.yaml"), "dev")
        assert len(caught.value.problems) == 1
        assert "true or false, or a whole number" in (caught.value.problems[0].fix or "")


class TestFinding:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        for name in ("ppocr-cls", "ppocr-det", "bert"):
            (tmp_path / "engines" / name).mkdir(parents=True)
            write(tmp_path / "engines" / name, GOOD)
        return tmp_path

    def test_by_name_folder_and_file(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = root / "engines" / "bert"
        assert find_engine(root, "bert") == folder
        assert find_engine(root, "engines/bert") == folder
        assert find_engine(root, str(folder)) == folder
        assert find_engine(root, str(folder / "engine.yaml")) == folder
        monkeypatch.chdir(folder)
        assert find_engine(root, ".").resolve() == folder

    def test_an_unknown_one_lists_those_that_exist_the_closest_first(self, root: Path) -> None:
        with pytest.raises(InputError) as caught:
            find_engine(root, "ppocr_cl")
        assert caught.value.fix == "engines here: ppocr-cls, ppocr-det, bert"

    @pytest.mark.parametrize("name", ["", " ", "\0", "../..", "nothing"])
    def test_what_is_no_engine(self, root: Path, name: str) -> None:
        with pytest.raises(InputError, match="there is no engine"):
            find_engine(root, name)

    def test_a_repository_without_engines_says_how_to_begin(self, tmp_path: Path) -> None:
        assert engine_names(tmp_path) == ()
        with pytest.raises(InputError) as caught:
            find_engine(tmp_path, "x")
        assert "trtops new x --model" in (caught.value.fix or "")


def test_merging_changes_neither_side() -> None:
    base: dict[str, Any] = {"a": {"b": 1}, "c": [1]}
    overlay: dict[str, Any] = {"a": {"b": None, "d": {"e": None, "f": 2}}}
    assert merge(base, overlay) == {"a": {"d": {"f": 2}}, "c": [1]}
    assert base == {"a": {"b": 1}, "c": [1]}
    assert overlay == {"a": {"b": None, "d": {"e": None, "f": 2}}}
