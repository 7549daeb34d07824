"""The documents that policies see: complete, versioned, free of secrets, with facts computed right."""

from __future__ import annotations

import json
from typing import Any, get_args

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tests.support import corpus_parts as parts
from tests.support.policy_corpus import BUILDERS, changed
from trtops.model.facts import Preflight
from trtops.policy.inputs import input_model, version_numbers
from trtops.policy.inputs_release import clock, interface_change
from trtops.policy.inputs_schema import FOLDER, input_schema, rendered, write
from trtops.policy.inputs_secrets import WITHHELD, is_reference, looks_secret, secret_fields, withhold
from trtops.policy.inputs_source import source_input
from trtops.policy.inputs_spec import spec_input
from trtops.policy.verdict import Stage
from trtops.release.documents import SecretPath
from trtops.spec.engine import EngineSpec, RuntimeConfig

STAGES: tuple[Stage, ...] = get_args(Stage)


def _source(uri: str, **changes: Any) -> dict[str, Any]:
    spec = EngineSpec.model_validate(changed(parts.ENGINE, {"model.source": uri}))
    facts: dict[str, Any] = source_input(spec, environment="prod", **changes).to_json()["facts"]["sources"][0]
    return facts


# --- all documents ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_a_document_reads_back_as_itself_and_keeps_its_digest(stage: Stage) -> None:
    document = BUILDERS[stage]({})
    value = input_model(stage).model_validate(document)
    assert value.to_json() == document
    assert type(value).model_validate_json(value.canonical_bytes()) == value
    assert document["schema"] == f"trtops.{stage}/v1"


@pytest.mark.parametrize("stage", STAGES)
def test_every_field_is_always_present(stage: Stage) -> None:
    def fields(schema: dict[str, Any]) -> None:
        for part in [schema, *schema.get("$defs", {}).values()]:
            assert set(part.get("properties", ())) == set(part.get("required", ())), part.get("title")

    fields(input_schema(stage))


@pytest.mark.parametrize("stage", STAGES)
def test_a_document_is_valid_by_its_schema_and_a_stranger_is_not(stage: Stage) -> None:
    validator = jsonschema.Draft202012Validator(input_schema(stage))
    document = BUILDERS[stage]({})
    validator.validate(document)
    assert not validator.is_valid({**document, "surprise": 1})
    assert not validator.is_valid({**document, "schema": "trtops.other/v1"})


@pytest.mark.parametrize("stage", STAGES)
def test_a_key_that_nobody_knows_is_refused(stage: Stage) -> None:
    with pytest.raises(ValidationError):
        input_model(stage).model_validate({**BUILDERS[stage]({}), "surprise": 1})


def test_the_schema_files_are_fresh() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()} == rendered(), (
        "run `python -m trtops.policy.inputs_schema`"
    )


def test_schemas_are_written_where_they_are_asked_for(tmp_path: Any) -> None:
    written = write(tmp_path / "new")
    assert {path.name: path.read_text(encoding="utf-8") for path in written} == rendered()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("8.6", (8, 6)),
        ("8.6.1.post1", (8, 6, 1)),
        ("10", (10,)),
        ("v8.6", None),
        ("latest", None),
        ("", None),
        (None, None),
        ("1.2.3.4.5.6.7", (1, 2, 3, 4, 5, 6)),
        ("12345678901.1", (123456789,)),
    ],
)
def test_versions_are_lists_of_integers(text: str | None, numbers: tuple[int, ...] | None) -> None:
    assert version_numbers(text) == numbers


# --- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["password", "db_password", "dbPassword", "PASSWORD", "api-key", "apiKey", "APIKEY", "access.token", "tokens",
     "credentials", "client_secret", "pwd", "passphrase", "ssh_key", "key", "key2", "passwd", "\uff54\uff4f\uff4b\uff45\uff4e"],
)  # fmt: skip
def test_keys_that_name_a_secret(key: str) -> None:
    assert looks_secret(key)


@pytest.mark.parametrize("key", ["monkey", "keyboard", "tokenizer", "passenger", "compass", "hockey", "url", "", "名"])
def test_keys_that_only_look_like_it(key: str) -> None:
    assert not looks_secret(key)


@pytest.mark.parametrize("value", ["secret:db/password", "secret:token", "secret:a-b_c/d/e/f"])
def test_references(value: str) -> None:
    assert is_reference(value)


@pytest.mark.parametrize(
    "value",
    [
        "secret:",
        "secret:a/b/c/d/e",
        "secret:A/b",
        "secret:a/",
        "secret:/b",
        "secret:a/b c",
        "secret:../x",
        "secret:a/b\n",
        "SECRET:a/b",
        5,
    ],
)
def test_what_is_no_reference(value: object) -> None:
    assert not is_reference(value)


def test_fields_are_found_in_the_order_of_the_document_with_their_kind() -> None:
    config = {
        "database": {"password": "secret:db/password", "url": "postgresql://a:b@db/x"},
        "auth": {"tokens": ["a", None, True], "note": "none"},
        "key": {"value": 5, "of": {"user": "x"}},
    }
    assert [(field.path, field.key, field.kind) for field in secret_fields(config)] == [
        (("database", "password"), "password", "reference"),
        (("database", "url"), "url", "embedded"),
        (("auth", "tokens", 0), "tokens", "plain"),
        (("auth", "tokens", 1), "tokens", "absent"),
        (("key", "value"), "key", "plain"),
        (("key", "of", "user"), "key", "plain"),
    ]


def test_withholding_hides_what_is_plain_and_nothing_else() -> None:
    config = {"password": "x", "port": 5, "list": [{"token": "secret:a/b"}, {"token": "y"}], "pi": float("nan")}
    assert withhold(config, secret_fields(config)) == {
        "password": WITHHELD,
        "port": 5,
        "list": [{"token": "secret:a/b"}, {"token": WITHHELD}],
        "pi": "nan",
    }


_PLAIN = st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789", min_size=12, max_size=24).map("zq".__add__)


@given(secret=_PLAIN, key=st.sampled_from(["password", "apiToken", "SECRET", "ssh-key"]), depth=st.integers(0, 4))
def test_a_plain_secret_is_in_no_document(secret: str, key: str, depth: int) -> None:
    section: Any = {key: secret, "url": f"redis://:{secret}@cache:6379"}
    for _ in range(depth):
        section = [{"below": section}]
    runtime = changed(parts.RUNTIME, {"sections": {"deep": section}, "database.password": secret})
    document = spec_input(
        EngineSpec.model_validate(parts.ENGINE),
        RuntimeConfig.model_validate(runtime),
        Preflight.model_validate(parts.PREFLIGHT),
        environment="prod",
        document=parts.ENGINE,
        runtime_document=runtime,
    ).to_json()
    assert secret not in json.dumps(document)
    assert sum(field["kind"] in ("plain", "embedded") for field in document["runtime"]["secrets"]) == 3


# --- source ----------------------------------------------------------------------------------------------------------


def test_a_pypi_source_is_a_package_a_version_and_a_file() -> None:
    facts = _source("pypi://RapidOCR_onnxruntime==1.4.4/pkg/m%20odel.onnx")
    assert facts["wheel"] == {
        "name": "rapidocr-onnxruntime",
        "version": "1.4.4",
        "exact": True,
        "member": "pkg/m odel.onnx",
    }
    assert (facts["local"], facts["links"][0]["scheme"]) == (False, "pypi")


@pytest.mark.parametrize("version", ["1.4.*", "1.4,>1", "", "1.4 "])
def test_what_is_no_exact_version(version: str) -> None:
    wheel = _source(f"pypi://x=={version}/m.onnx")["wheel"]
    assert wheel is None or not wheel["exact"]


@pytest.mark.parametrize(
    ("uri", "schemes"),
    [
        ("model.onnx", ["file"]),
        ("file:model.onnx", ["file"]),
        ("HTTPS://a.example/m", ["https"]),
        ("zip://m.onnx::https://a.example/x.zip", ["zip", "https"]),
        ("simplecache::s3://bucket/m", ["simplecache", "s3"]),
        ("a b.onnx", []),
        ("https://a.example:nope/", []),
    ],
)
def test_every_link_of_a_chain_counts(uri: str, schemes: list[str]) -> None:
    facts = _source(uri)
    assert [link["scheme"] for link in facts["links"]] == schemes
    assert facts["well_formed"] is bool(schemes)


@pytest.mark.parametrize(
    ("uri", "escapes", "absolute"),
    [
        ("file:a/../m.onnx", False, False),
        ("file:../m.onnx", True, False),
        ("a/../../m.onnx", True, False),
        ("file:%2e%2e/m.onnx", True, False),
        ("/m.onnx", False, True),
        ("file:///m.onnx", False, True),
        ("file://localhost/m.onnx", False, True),
        ("~/m.onnx", False, True),
        ("https://a.example/../m.onnx", False, False),
    ],
)
def test_local_paths(uri: str, escapes: bool, absolute: bool) -> None:
    facts = _source(uri)
    assert (facts["escapes"], facts["absolute"]) == (escapes, absolute)


def test_credentials_are_seen_and_withheld() -> None:
    facts = _source("https://bot:hunter2@a.example/m.onnx", indexes=["https://u:hunter2@packages.example.org/simple"])
    assert facts["links"][0]["has_credentials"]
    assert "hunter2" not in json.dumps(facts)
    spec = EngineSpec.model_validate(parts.ENGINE)
    document = source_input(
        spec, environment="prod", indexes=["https://u:hunter2@packages.example.org/simple"]
    ).to_json()
    assert "hunter2" not in json.dumps(document)


def test_a_size_is_known_only_where_it_is_given() -> None:
    assert _source("file:m.onnx")["size_bytes"] is None
    assert _source("file:m.onnx", sizes={"file:m.onnx": 5})["size_bytes"] == 5


@given(st.text(min_size=1, max_size=60))
def test_no_uri_breaks_the_builder(uri: str) -> None:
    facts = _source(uri)
    assert facts["well_formed"] is bool(facts["links"])


# --- spec ------------------------------------------------------------------------------------------------------------


def test_units_are_resolved_and_defaults_filled_in() -> None:
    document = BUILDERS["spec"]({"engine_drop": ["builder", "memory.device_pool"]})
    facts = document["facts"]
    assert facts["memory"]["workspace_bytes"] == 1 << 30
    assert facts["memory"]["device_pool_bytes"] is None
    assert facts["batching"]["max_queue_delay_us"] == 2000
    assert facts["builder"]["optimization_level"] == 3
    assert facts["targets"][0]["slo"] == {"p99_us": 5000, "throughput": 2000.0, "throughput_milli": 2_000_000}
    assert facts["targets"][0]["version_numbers"] == [10, 3]
    assert "builder" not in document["document"]
    assert document["runtime"]["batching"]["max_queue_delay_us"] == 1000


def test_the_batch_of_a_profile_is_what_all_inputs_take() -> None:
    inputs = {
        "a": {"min": [2, 3], "opt": [8, 3], "max": [32, 3]},
        "b": {"min": [1], "opt": [16], "max": [16]},
        "scalar": {"min": [], "opt": [], "max": []},
    }
    document = BUILDERS["spec"](
        {"engine": {"profiles": [{"inputs": inputs}, {"inputs": {"scalar": inputs["scalar"]}}]}}
    )
    assert [profile["batch"] for profile in document["facts"]["profiles"]] == [{"min": 2, "opt": 8, "max": 16}, None]


def test_an_engine_without_a_config_has_an_empty_one() -> None:
    document = BUILDERS["spec"]({"no_runtime": True})
    assert document["runtime_document"] is None
    assert document["runtime"]["present"] is False
    assert document["runtime"]["secrets"] == []
    assert set(document["runtime"]["batching"].values()) == {None}


# --- evidence --------------------------------------------------------------------------------------------------------


def test_times_are_nanoseconds_and_age_is_counted() -> None:
    document = BUILDERS["evidence"]({"later": 60})
    row = document["evidence"]["benchmark"]["rows"][0]
    assert row["p50_ns"] == {"value": 400_000, "low": 392_000, "high": 408_000}
    assert row["throughput_milli"]["value"] == 2_500_000
    assert document["evidence"]["age_seconds"] == 3660
    assert document["comparison"] is None


def test_numbers_that_are_not_finite_are_null() -> None:
    document = BUILDERS["evidence"]({"evidence": {"accuracy.max_abs": "Infinity", "accuracy.max_rel": "NaN"}})
    accuracy = document["evidence"]["accuracy"]
    assert (accuracy["max_abs"], accuracy["max_rel"]) == (None, None)


def test_memory_counts_engines_workspaces_and_pools() -> None:
    document = BUILDERS["evidence"]({"engine": {"execution": {"instances": 2, "streams": 3}}})
    assert document["memory"] == {
        "bindings_bytes": 1_600_000,
        "executions": 6,
        "device_bytes": 2 * 21_000_000 + 6 * (1 << 30) + (512 << 20),
        "device_memory_bytes": 150_000_000_000,
    }


def test_rows_are_paired_by_batch_and_a_lost_one_is_named() -> None:
    document = BUILDERS["evidence"]({"evidence": {"benchmark.rows.2.batch": 64}, "baseline": {}})
    comparison = document["comparison"]
    assert [row["batch"] for row in comparison["rows"]] == [1, 8]
    assert comparison["missing"] == [32]
    assert comparison["comparable"]


def test_another_device_cannot_be_compared_with() -> None:
    document = BUILDERS["evidence"]({"baseline": {"benchmark.device.sm_count": 1}})
    assert document["comparison"]["comparable"] is False
    assert document["comparison"]["reason"]


# --- release ---------------------------------------------------------------------------------------------------------


def test_the_clock_is_utc() -> None:
    assert clock(parts.NOW).model_dump() == {
        "epoch": parts.NOW,
        "date": "2026-03-02",
        "weekday": "mon",
        "time": "10:00",
    }


def _tensor(name: str, *shape: int | str, dtype: str = "float32") -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


_OLD = {"inputs": [_tensor("x", "n", 3)], "outputs": [_tensor("y", "n", 10)]}


@pytest.mark.parametrize(
    ("new", "kind"),
    [
        (_OLD, "none"),
        ({**_OLD, "inputs": [_tensor("x", "rows", 3)]}, "none"),
        ({**_OLD, "inputs": [_tensor("x", "n", "c")]}, "compatible"),
        ({**_OLD, "inputs": [_tensor("x", 8, 3)]}, "breaking"),
        ({**_OLD, "inputs": [_tensor("x", "n", 4)]}, "breaking"),
        ({**_OLD, "inputs": [_tensor("x", "n", 3, 1)]}, "breaking"),
        ({**_OLD, "inputs": [_tensor("x", "n", 3, dtype="int8")]}, "breaking"),
        ({**_OLD, "inputs": [*_OLD["inputs"], _tensor("z", 1)]}, "breaking"),
        ({**_OLD, "inputs": [_tensor("renamed", "n", 3)]}, "breaking"),
        ({**_OLD, "outputs": [_tensor("y", 8, 10)]}, "compatible"),
        ({**_OLD, "outputs": [_tensor("y", "n", "classes")]}, "breaking"),
        ({**_OLD, "outputs": [*_OLD["outputs"], _tensor("z", 1)]}, "compatible"),
        ({**_OLD, "outputs": []}, "breaking"),
    ],
)
def test_what_breaks_a_client(new: dict[str, Any], kind: str) -> None:
    change = interface_change(_OLD, new)
    assert change.kind == kind
    assert bool(change.changes) == (kind != "none")


def test_a_verdict_or_evidence_that_is_not_at_hand_is_null() -> None:
    document = BUILDERS["release"]({"lost": ["evidence", "evidence verdict"]})
    artifact = document["release"]["artifacts"][0]
    assert (artifact["verified"], artifact["evidence_artifact"], artifact["verdict"]["decision"]) == (None, None, None)


def test_only_the_place_of_a_released_secret_is_told() -> None:
    document = BUILDERS["release"]({"config": {"config.database.password": "hunter2"}})
    assert {"path": ["database", "password"], "key": "password", "kind": "plain"} in document["config"]["secrets"]
    assert "hunter2" not in json.dumps(document)


@given(st.from_regex(r"[a-zA-Z0-9_./-]{1,12}", fullmatch=True))
def test_a_reference_is_what_can_be_sealed(path: str) -> None:
    try:
        TypeAdapter(SecretPath).validate_python(path)
        sealable = True
    except ValidationError:
        sealable = False
    assert is_reference(f"secret:{path}") is sealable
