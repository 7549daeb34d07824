"""`trtops serve` with front ends, gRPC and a JSON log, as its user starts it; `trtops top` beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton

from tests.acceptance.test_cli_serve import reference

if TYPE_CHECKING:
    from tests.support.repository import Repository

pytestmark = pytest.mark.service

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.mark.parametrize("front_ends", ["0", "2"])
def test_http_and_grpc_give_what_onnx_runtime_gives(shipped: Repository, front_ends: str) -> None:
    expected = reference(shipped, X)
    more = ("--front-ends", front_ends, "--grpc-port", "0", "--grpc-control-port", "0", "--log-format", "json")
    with shipped.serve("tiny", *more) as server:
        ready = server.ready
        for port in (ready["grpc_port"], ready["grpc_control_port"]):
            with triton_grpc.InferenceServerClient(f"127.0.0.1:{port}") as one:
                assert one.is_server_ready()
                given = triton_grpc.InferInput("x", [2, 4], "FP32")
                given.set_data_from_numpy(X)
                y = one.infer("tiny", [given], client_timeout=20).as_numpy("y")
                np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
        with triton.InferenceServerClient("{}:{}".format(*server.address)) as client:
            asked = triton.InferInput("x", [2, 4], "FP32")
            asked.set_data_from_numpy(X)
            y = client.infer("tiny", [asked]).as_numpy("y")
            np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
        table = shipped.call("top", "--once", "--interval", "0.2", "--url", str(ready["control_url"])).says(0)
        assert table.out.splitlines()[1].split()[:2] == ["tiny", "1"]
        assert server.stop() == 0
    for line in server.log.read_text().splitlines():
        assert json.loads(line)["level"] in {"info", "warning"}, line


def test_without_the_extra_it_says_what_to_install(shipped: Repository) -> None:
    """An interpreter that does not find hpack says which extra is missing, and serves nothing."""
    code = (
        "import sys\n"
        "sys.modules['hpack'] = None\n"
        "from trtops.cli.main import run\n"
        "sys.argv = ['trtops', 'serve', 'tiny', '--port', '0', '--control-port', '0', '--grpc-port', '0']\n"
        "run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=shipped.root,
        env=shipped.environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'trtops[grpc]'" in done.stderr
    assert "Traceback" not in done.stderr
