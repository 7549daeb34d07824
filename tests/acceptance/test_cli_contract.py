"""The interface is a contract: what breaks a client needs a new major version, and a service says what it knows."""

from __future__ import annotations

import json
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
