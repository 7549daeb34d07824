from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_models import linear, model, save, value
from trtops.errors import InputError
from trtops.model.preflight import preflight
from trtops.model.read import read_facts
from trtops.model.scaffold import scaffold
from trtops.spec.load import LoadedEngine, load_engine

if TYPE_CHECKING:
    from pathlib import Path


def written(proto: Any, folder: Path, **options: Any) -> tuple[LoadedEngine, str]:
    """Write a spec for a model; it loads, and preflight finds no error."""
    path = save(proto, folder / "m.onnx")
    facts = read_facts(path)
    text = scaffold("a-model", facts, "file:m.onnx", model=path, **options)
    (folder / "engine.yaml").write_text(text)
    loaded = load_engine(folder)
    found = preflight(loaded.spec, path, facts)
    assert [fact for fact in found.facts if fact.severity == "error"] == []
    assert loaded.spec.model.sha256 == facts.content.value
    return loaded, text


def test_a_dynamic_batch_gets_a_range(tmp_path: Path) -> None:
    loaded, text = written(linear(), tmp_path, owner="ocr-team")
    (profile,) = loaded.spec.profiles
    assert profile.inputs["x"].shapes() == {"min": (1, 4), "opt": (8, 4), "max": (32, 4)}
    assert loaded.spec.batching.max_batch == 32
    assert loaded.spec.benchmark.batch_sizes == (1, 8, 32)
    assert loaded.spec.metadata.owner == "ocr-team"
    assert "# float32 [batch, 4]" in text


def test_without_an_owner_one_is_asked_for(tmp_path: Path) -> None:
    loaded, text = written(linear(), tmp_path)
    assert loaded.spec.metadata.owner is None
    assert "# owner:" in text


def test_a_fixed_batch_is_kept(tmp_path: Path) -> None:
    loaded, _ = written(linear(rows=2), tmp_path)
    assert loaded.spec.batching.max_batch == 2
    assert loaded.spec.benchmark.batch_sizes == (2,)


def test_open_sizes_are_chosen_so_that_every_node_takes_them(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.ones((64, 3), np.float32), "w")
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [value("x", ["n", "features"])],
        [value("y", ["n", 3])],
        [weights],
    )
    loaded, text = written(proto, tmp_path)
    assert loaded.spec.profiles[0].inputs["x"].opt == (8, 64)
    assert "leaves dimension 1 open" in text


def test_images_get_image_sizes(tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("GlobalAveragePool", ["x"], ["y"])],
        [value("x", ["n", 3, "?", "?"])],
        [value("y", ["n", 3, 1, 1])],
    )
    loaded, _ = written(proto, tmp_path)
    assert loaded.spec.profiles[0].inputs["x"].opt == (8, 3, 224, 224)


def test_what_cannot_be_batched_is_not(tmp_path: Path) -> None:
    proto = model([helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], [value("x", ["n", 4])], [value("y", [])])
    loaded, _ = written(proto, tmp_path)
    assert loaded.spec.batching.max_batch == 1
    assert loaded.spec.profiles[0].inputs["x"].max == (1, 4)


def test_inputs_that_share_no_rows(tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [value("a", [4, 5]), value("b", [1, 5])],
        [value("y", [4, 5])],
    )
    loaded, _ = written(proto, tmp_path)
    assert loaded.spec.batching.max_batch == 1


@pytest.mark.parametrize("name", ["input:0", "serving default", "true", "a#b", "ü", 'q"uote', "- x", "{x}", "1"])
def test_names_that_yaml_would_misread_are_quoted(tmp_path: Path, name: str) -> None:
    proto = model([helper.make_node("Relu", [name], ["y"])], [value(name, ["n: #x", 4])], [value("y", ["n: #x", 4])])
    loaded, _ = written(proto, tmp_path)
    assert list(loaded.spec.profiles[0].inputs) == [name]


def test_token_ids_and_masks(tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("Mul", ["ids", "mask"], ["y"])],
        [value("ids", ["batch", "length"], TensorProto.INT64), value("mask", ["batch", "length"], TensorProto.INT64)],
        [value("y", ["batch", "length"], TensorProto.INT64)],
    )
    loaded, _ = written(proto, tmp_path)
    assert loaded.spec.profiles[0].inputs["ids"] == loaded.spec.profiles[0].inputs["mask"]


def test_without_the_file_the_first_guess_is_written(tmp_path: Path) -> None:
    facts = read_facts(save(linear(), tmp_path / "m.onnx"))
    (tmp_path / "engine.yaml").write_text(scaffold("x", facts, "https://h/m 1.onnx?a=b#c"))
    assert load_engine(tmp_path).spec.model.source == "https://h/m 1.onnx?a=b#c"


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a" * 64, "a/b"])
def test_a_name_that_is_none(tmp_path: Path, name: str) -> None:
    facts = read_facts(save(linear(), tmp_path / "m.onnx"))
    with pytest.raises(InputError, match="no name for an engine"):
        scaffold(name, facts, "file:m.onnx")


def test_a_model_without_inputs(tmp_path: Path) -> None:
    node = helper.make_node("Constant", [], ["y"], value=numpy_helper.from_array(np.ones(3, np.float32)))
    facts = read_facts(save(model([node], [], [value("y", [3])]), tmp_path / "m.onnx"))
    with pytest.raises(InputError, match="no inputs"):
        scaffold("x", facts, "file:m.onnx")
