"""A server's shared memory, as a client of the same host meets it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from trtops.errors import InputError
from trtops.transport.client import Client

if TYPE_CHECKING:
    from tests.support.repository import Repository

pytestmark = pytest.mark.service


def test_shared_memory_answers_as_http_does_and_leaves_nothing_behind(shipped: Repository) -> None:
    socket = shipped.root / "s.sock"
    with shipped.serve("tiny", "--socket", str(socket)) as server:
        there = shipped.call("infer", "tiny", "--url", server.url, "--seed", "3", "--json").says(0)
        here = shipped.call("infer", "tiny", "--socket", str(socket), "--seed", "3", "--json").says(0)
        for one, other in zip(json.loads(there.out)["outputs"], json.loads(here.out)["outputs"], strict=True):
            assert one["name"] == other["name"]
            assert np.allclose(one["data"], other["data"])
        shipped.call("infer", "absent", "--socket", str(socket)).says(2, "absent is not served there", "tiny")
        assert server.stop() == 0
    assert not socket.exists()
    shipped.call("infer", "tiny", "--socket", str(socket)).says(2, "no executor can be reached", "fix:")


def test_an_engines_refusal_reaches_the_client_and_the_connection_lives_on(shipped: Repository) -> None:
    socket = shipped.root / "s.sock"
    with shipped.serve("tiny", "--socket", str(socket)), Client(socket, slots=2) as client:
        name = next(iter(client.catalogue()))["inputs"][0]["name"]
        with pytest.raises(InputError, match=name):
            client.infer("tiny", {name: np.zeros((1, 99), np.float32)}, 1)
        shape = [size if isinstance(size, int) else 2 for size in next(iter(client.catalogue()))["inputs"][0]["shape"]]
        assert client.infer("tiny", {name: np.zeros(shape, np.float32)}, shape[0]).error is None
