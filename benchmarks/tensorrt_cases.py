"""What ``tensorrt_h200.py`` builds and measures: models, precisions, shapes, and samples like their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops.spec.engine import EngineSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Images = NDArray[np.float32]


@dataclass(frozen=True)
class Model:
    """A model of the benchmark.

    Attributes:
        limits: its one profile.
        tolerance: the spec's accuracy section.
        workspace: of the builder.
        samples: how many there are to compare and to calibrate with.
        keep: what stays in FP32 under INT8.
    """

    limits: dict[str, list[int]]
    tolerance: dict[str, Any]
    workspace: str
    samples: int
    keep: tuple[str, ...] = ()


MODELS = {
    "cls": Model(
        {"min": [1, 3, 48, 192], "opt": [8, 3, 48, 192], "max": [32, 3, 48, 192]},
        {"atol": 5e-2, "rtol": 1e-2, "metric": {"top1": 1.0}},
        "1GiB",
        32,
    ),
    # Transposed convolutions have no INT8 kernels for odd channel counts; they are the two last, small layers.
    "det": Model(
        {"min": [1, 3, 320, 320], "opt": [1, 3, 640, 640], "max": [1, 3, 960, 960]},
        {"atol": 5e-2, "rtol": 1e-2, "metric": {"cosine": 0.99}},
        "2GiB",
        4,
        ("op:ConvTranspose",),
    ),
    "resnet50": Model(
        {"min": [1, 3, 224, 224], "opt": [16, 3, 224, 224], "max": [64, 3, 224, 224]},
        {"atol": 5e-2, "rtol": 5e-2, "metric": {"cosine": 0.99}},
        "2GiB",
        16,
    ),
}


@dataclass(frozen=True)
class Case:
    """One engine: a row of the tables.

    Attributes:
        model, mode: what, in which precision.
        level: ``builder.optimization_level``.
        shapes: ``dynamic`` (the model's profile), ``static`` (its optimum alone), ``profiles`` (three: one row, few
            rows, many rows), or ``harsh`` (dynamic, INT8 with ranges that leave half of what was seen outside: what
            ``verify`` has to refuse).
    """

    model: str
    mode: str
    level: int = 3
    shapes: str = "dynamic"

    @property
    def name(self) -> str:
        """A name that is unique among cases."""
        return f"{self.model}-{self.mode}-{self.shapes}-{self.level}"


PLAN = (
    Case("resnet50", "fp32"),
    Case("cls", "int8", 1, "harsh"),
    Case("resnet50", "fp16"),
    Case("cls", "fp16"),
    Case("resnet50", "int8"),
    Case("det", "fp16", 1),
    Case("cls", "fp32", 1),
    Case("cls", "fp32", 1, "static"),
    Case("cls", "fp32", 1, "profiles"),
    Case("cls", "fp32"),
    Case("resnet50", "fp32", 3, "static"),
    Case("det", "int8", 1),
    Case("cls", "int8"),
    Case("resnet50", "tf32"),
    Case("det", "tf32", 1),
    Case("det", "fp32", 1),
    Case("cls", "tf32"),
    Case("det", "fp16"),
    Case("det", "int8"),
    Case("det", "fp32"),
    Case("det", "tf32"),
)
"""Every row of the tables, what is worth most first."""

_FIRST = {"cls": (12, 35, 45, 110), "det": (50, 130, 200, 400), "resnet50": (20, 40, 45, 60)}
"""Seconds of a first build alone on an H200 at levels 0 to 3, about: whether to begin one is decided by them."""

_SLOWER = {"fp16": 1.5, "int8": 1.4, "static": 0.8, "profiles": 2.5}


def first_seconds(case: Case) -> float:
    """About how long a first build takes alone on an H200."""
    return _FIRST[case.model][min(case.level, 3)] * _SLOWER.get(case.mode, 1.0) * _SLOWER.get(case.shapes, 1.0)


def target_of(backend: str) -> dict[str, Any]:
    """What is built for. TensorRT for RTX builds for a GPU that need not be here."""
    return {"backend": backend} | ({"compute_capability": "8.6"} if backend == "tensorrt_rtx" else {})


def spec_of(case: Case, backend: str, samples: str) -> EngineSpec:
    """The spec of a case. ``samples``: URI of the inputs to compare and to calibrate with."""
    model = MODELS[case.model]
    document: dict[str, Any] = {
        "apiVersion": "trtops/v1",
        "kind": "Engine",
        "metadata": {"name": case.model, "owner": "benchmark"},
        "model": {"source": f"file:{case.model}.onnx", "sha256": "0" * 64},
        "targets": [target_of(backend)],
        "profiles": _profiles(case, model.limits),
        "memory": {"workspace": model.workspace},
        "builder": {"optimization_level": case.level},
        "precision": {"mode": case.mode},
        "accuracy": {**model.tolerance, "samples": samples},
    }
    if case.mode == "int8":
        harsh = {"method": "percentile", "percentile": 51.0} if case.shapes == "harsh" else {}
        calibration = {"source": samples, "samples": model.samples, **harsh}
        document["precision"] |= {"calibration": calibration, "keep_fp32": list(model.keep)}
    return EngineSpec.model_validate(document)


def _profiles(case: Case, limits: dict[str, list[int]]) -> list[dict[str, Any]]:
    rest = limits["opt"][1:]
    if case.shapes == "static":
        return [{"inputs": {"x": dict.fromkeys(("min", "opt", "max"), limits["opt"])}}]
    if case.shapes == "profiles":
        rows = {"one": (1, 1, 1), "few": (2, 8, 8), "many": (9, 32, 32)}
        points = ("min", "opt", "max")
        return [
            {"name": name, "inputs": {"x": {point: [count, *rest] for point, count in zip(points, sizes, strict=True)}}}
            for name, sizes in rows.items()
        ]
    return [{"inputs": {"x": limits}}]


def write_samples(folder: Path, model: str) -> str:
    """Write the samples of a model, drawn from a fixed seed. Returns their URI.

    Lines and pages of text for PP-OCR, whose activations lie elsewhere than those of noise: the lines are those of the
    engine that the repository ships. A ResNet-50 with drawn weights knows no images: it gets noise.
    """
    if model == "cls":
        return f"file:{Path(__file__).parents[1].absolute() / 'engines/ppocr-cls/samples.npz'}"
    if model != "det":
        return "random"
    path = folder / "det.npz"
    np.savez_compressed(path, x=_pages(MODELS[model].samples))
    return f"file:{path}"


def _pages(count: int) -> Images:
    """Pages of 640 x 640 with lines of text."""
    random = np.random.default_rng(640)
    return np.stack([_drawn(random, (640, 640), 14, 28) for _ in range(count)])


def _drawn(random: np.random.Generator, size: tuple[int, int], lines: int, height: int) -> Images:
    from PIL import Image, ImageDraw, ImageFont

    paper, ink = (tuple(int(value) for value in random.integers(low, low + 60, 3)) for low in (190, 0))
    image = Image.new("RGB", size, paper)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(height)
    for line in range(lines):
        text = "".join(random.choice(list("ABCDEFGHKLMNPRSTUVWXYZ 0123456789 abcdefghkmnpqrstuvwxyz"), 40))
        draw.text((8, 6 + line * (height + 16)), text, fill=ink, font=font)
    pixels = np.asarray(image, np.float32).transpose(2, 0, 1)
    return ((pixels / 255 - 0.5) / 0.5).astype(np.float32)
