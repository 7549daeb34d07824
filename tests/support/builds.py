"""Small models, specs and plans for tests of builds and backends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtops.build.passes import converters
from trtops.build.plan import BuildPlan, plan
from trtops.digest import Digest
from trtops.spec.engine import EngineSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

WHEEL = "rapidocr-onnxruntime==1.4.4"
PPOCR_SHA256 = "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c"
RANGES = {"min": [1, 4], "opt": [2, 4], "max": [8, 4]}


def value(name: str, shape: Sequence[int | str | None] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray[Any, Any]] | None = None,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "small", list(inputs), list(outputs), tensors)
    opsets = [helper.make_opsetid("", 17)]
    opsets += [helper.make_opsetid(domain, 1) for domain in sorted({node.domain for node in nodes} - {""})]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def linear(batch: int | str | None = "N") -> onnx.ModelProto:
    """``y = relu(x @ w + b)``, x float32 [N, 4], y float32 [N, 3]."""
    weights: dict[str, np.ndarray[Any, Any]] = {
        "w": np.arange(12, dtype=np.float32).reshape(4, 3) / 10 - 0.5,
        "b": np.array([0.1, 0.0, -0.1], np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"], name="matmul"),
        helper.make_node("Add", ["xw", "b"], ["sum"], name="add"),
        helper.make_node("Relu", ["sum"], ["y"], name="relu"),
    ]
    return model_of(nodes, [value("x", [batch, 4])], [value("y", [batch, 3])], weights)


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def engine_spec(backend: str = "fake", ranges: dict[str, Any] | None = None, **changes: Any) -> EngineSpec:
    """A spec with one target; ``ranges``: input -> shapes of the one profile."""
    target: dict[str, Any] = {"backend": backend}
    if backend == "tensorrt_rtx":
        target["compute_capability"] = "8.6"
    document = {
        "apiVersion": "trtops/v1",
        "kind": "Engine",
        "metadata": {"name": "small", "owner": "team"},
        "model": {"source": "file:model.onnx", "sha256": "0" * 64},
        "targets": [target],
        "profiles": [{"inputs": ranges or {"x": RANGES}}],
        "memory": {"workspace": "64MiB"},
    }
    return EngineSpec.model_validate(document | changes)


def plan_for(model: Path, version: str = "1.0.0", spec: EngineSpec | None = None) -> BuildPlan:
    spec = spec or engine_spec()
    digest = Digest.of_file(model)
    return plan(spec, spec.targets[0], model=digest, backend_version=version, converters=converters())


def files(folder: Path) -> list[str]:
    """Every file below a folder but locks and logs, relative to it."""
    found = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(str(path) for path in found if path.parts[0] not in {"locks", "logs"})


def ppocr(folder: Path) -> Path:
    """The PP-OCR text-direction classifier, from its wheel by pip; ``TRTOPS_PPOCR`` is its path on a host without an index."""
    if local := os.environ.get("TRTOPS_PPOCR"):
        return Path(local)
    path = folder / "cls.onnx"
    if not path.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--ignore-requires-python", "--dest", str(folder), WHEEL]
        subprocess.run(command, check=True, timeout=100, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
        wheel = next(folder.glob("*.whl"))
        inside = "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
        with zipfile.ZipFile(wheel) as archive, archive.open(inside) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)
    return path
