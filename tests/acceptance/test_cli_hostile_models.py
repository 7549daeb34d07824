"""ONNX files that were made to harm: refused by name before any builder sees them, or built within its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.builds import linear, model_of, value
from trtops.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.repository import Repository

pytestmark = pytest.mark.service


def _chain(*nodes: tuple[list[str], list[str]]) -> onnx.ModelProto:
    made = [helper.make_node("Sum", reads, makes, name=f"n{index}") for index, (reads, makes) in enumerate(nodes)]
    return model_of(made, [value("x", ["n", 4])], [value("y", ["n", 3])])


def outside() -> bytes:
    model = linear()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../../etc/passwd")
    return model.SerializeToString()


def beside() -> bytes:
    return outside().replace(b"../../../../etc/passwd", b"weights-of-twenty-two.")


def declared_larger() -> bytes:
    """A weight that says to be 2 GiB and brings 16 bytes."""
    model = linear()
    weight = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 2)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight)[:2, :2].copy(), weight.name))
    weight.dims[:] = [1 << 15, 1 << 14]
    return model.SerializeToString()


def circle() -> bytes:
    return _chain((["x", "c"], ["b"]), (["b"], ["c"]), (["c"], ["y"])).SerializeToString()


def no_text() -> bytes:
    return linear().SerializeToString().replace(b"relu", b"re\xff\xfe")


@pytest.mark.parametrize(
    ("made", "code", "words"),
    [
        (outside, 2, "keeps its data outside the model's folder: '../../../../etc/passwd'"),
        (beside, 1, "have their data in other files"),
        (declared_larger, 2, "its shape [32768, 16384] needs 2147483648"),
        (circle, 1, "node n0 (Sum) waits for its own output, by way of n1"),
        (no_text, 2, "in the model is not plain text"),
    ],
)
@pytest.mark.parametrize("verb", ["check", "build"])
def test_it_is_refused_by_name(repo: Repository, verb: str, made: Callable[[], bytes], code: int, words: str) -> None:
    path = repo.engine / "model.onnx"
    before = Digest.of_file(path).value
    path.write_bytes(made())
    repo.edit(before, Digest.of_file(path).value)
    repo.call(verb, "tiny").says(code, words)
    assert repo.half_written() == []
    assert not (repo.home / "store" / "records" / "sidecar").exists()


def test_a_model_of_many_nodes_says_what_takes_long(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtops.workflow.preflights._MANY_NODES", 1)
    repo.call("check", "tiny").says(0, "check tiny: infer the shapes of 3 nodes")
