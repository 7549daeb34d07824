"""Write ResNet-50 as ONNX: ``python3 benchmarks/export_resnet50.py resnet50.onnx`` (needs torch, torchvision, onnx).

Weights are drawn from a fixed seed; batch normalisations take their statistics from noise, so that values stay in the
range that a trained network has. Speed and rounding are those of any ResNet-50; answers mean nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import torch
import torchvision


def main(path: Path) -> None:
    torch.manual_seed(50)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torchvision.models.resnet50(weights=None).to(device).train()
    with torch.no_grad():
        for _ in range(20):
            model(torch.randn(32, 3, 224, 224, device=device))
    model = model.eval().cpu()
    torch.onnx.export(
        model,
        (torch.randn(2, 3, 224, 224),),
        str(path),
        input_names=["x"],
        output_names=["logits"],
        dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )
    made = onnx.load(path)
    made.ir_version = min(made.ir_version, 10)
    onnx.save_model(made, path, save_as_external_data=False)
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
