"""ONNX Runtime as an instrument: what inner tensors of a model hold, and ranges turned into INT8.

Only backends import ONNX Runtime, so what precision passes (:mod:`trtops.build.precision`) need of it stands here.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops.backend.onnxruntime import library, options, reason
from trtops.errors import BuildFailed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from trtops.spec.engine import Calibration

    Feeds = Sequence[Mapping[str, NDArray[np.generic]]]

QUANTIZED_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators whose inputs and weights become INT8: those with weights, where nearly all time is spent."""

_PROVIDERS = ["CPUExecutionProvider"]
_AT_ONCE = 64


def observed(
    model: Any,  # noqa: ANN401 - onnx is untyped
    names: Mapping[str, int],
    feeds: Feeds,
) -> Iterator[dict[str, NDArray[np.generic]]]:
    """Run a model with its optimisations off and yield what inner tensors hold.

    Args:
        model: an ``onnx.ModelProto``; it is left as it is.
        names: tensors by name, with their ``TensorProto`` element type.
        feeds: inputs of each execution.

    Yields:
        Arrays by name, for each execution in turn and for 64 tensors at most at once: the first 64 of every execution,
        then the next ones.

    Raises:
        BuildFailed: ONNX Runtime refuses the model or the inputs.
    """
    import onnx

    ordered = list(names)
    for start in range(0, len(ordered), _AT_ONCE):
        part = ordered[start : start + _AT_ONCE]
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        del copy.graph.output[:]
        copy.graph.output.extend(onnx.helper.make_tensor_value_info(name, names[name], None) for name in part)
        try:
            session = _session(copy)
            for feed in feeds:
                yield dict(zip(part, session.run(part, dict(feed)), strict=True))
        except Exception as error:
            what = f"ONNX Runtime cannot run the model to measure its tensors: {reason(error)}"
            raise BuildFailed(what, fix="check the model with trtops check, and the samples of the spec") from error


def peaks(model: Any, names: Collection[str], feeds: Feeds) -> dict[str, float]:  # noqa: ANN401 - onnx is untyped
    """Largest magnitude of float32 tensors that nodes make, over all executions; optimisations off.

    The graph itself reduces each tensor to one number, so that every execution runs it once, whatever its size.

    Args:
        model: an ``onnx.ModelProto``; it is left as it is.
        names: tensors.
        feeds: inputs of each execution.

    Returns:
        finite numbers; a tensor that held infinities or no number is left out, and all are where the graph cannot be
        run so (a tensor is empty, or ONNX Runtime refuses the model or the inputs): see :func:`observed`.

    """
    import math

    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    ordered = sorted(names)
    for number, name in enumerate(ordered):
        size, peak = f"trtops/size/{number}", f"trtops/peak/{number}"
        copy.graph.node.append(onnx.helper.make_node("Abs", [name], [size]))
        copy.graph.node.append(onnx.helper.make_node("ReduceMax", [size], [peak], keepdims=0))
        copy.graph.output.append(onnx.helper.make_tensor_value_info(peak, onnx.TensorProto.FLOAT, []))
    seen: dict[str, list[float]] = {name: [] for name in ordered}
    try:
        session = _session(copy)
        for feed in feeds:
            for name, peak in zip(ordered, session.run(None, dict(feed)), strict=True):
                seen[name].append(float(peak))
    except Exception:  # noqa: BLE001 - an empty tensor, or the model itself: whoever looks at each tensor tells
        return {}
    return {name: max(values) for name, values in seen.items() if values and all(map(math.isfinite, values))}


def _session(model: Any) -> Any:  # noqa: ANN401 - onnx and ONNX Runtime have no types
    ort = library()
    chosen = options(ort, threads=0)
    chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), chosen, providers=_PROVIDERS)


def folded(data: bytes) -> bytes:
    """The same model with constants folded and batch normalisations merged into convolutions; ONNX operators only.

    Raises:
        BuildFailed: ONNX Runtime refuses the model.
    """
    ort = library()
    with tempfile.TemporaryDirectory(prefix="trtops-") as folder:
        chosen = options(ort, threads=1)
        chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        chosen.optimized_model_filepath = str(Path(folder) / "folded.onnx")
        try:
            ort.InferenceSession(data, chosen, providers=_PROVIDERS)
        except Exception as error:
            raise BuildFailed(
                f"ONNX Runtime refuses the model: {reason(error)}", fix="check the model with trtops check"
            ) from error
        return (Path(folder) / "folded.onnx").read_bytes()


def quantized(data: bytes, feeds: Feeds, calibration: Calibration, *, exclude: Sequence[str]) -> bytes:
    """Put quantize and dequantize nodes around the operators with weights, with ranges seen in ``feeds``.

    INT8, symmetric, one scale a channel of a weight, biases in FP32: what TensorRT takes (design §7).

    Args:
        data: the model; every node has a name.
        feeds: calibration data.
        calibration: how ranges are taken from what was seen.
        exclude: names of nodes that stay as they are.

    Raises:
        BuildFailed: ONNX Runtime cannot quantize the model.
    """
    library()
    from onnxruntime import quantization

    methods = {
        "minmax": quantization.CalibrationMethod.MinMax,
        "entropy": quantization.CalibrationMethod.Entropy,
        "percentile": quantization.CalibrationMethod.Percentile,
    }
    extra: dict[str, Any] = {
        "ActivationSymmetric": True,
        "WeightSymmetric": True,
        "QuantizeBias": False,
        "OpTypesToExcludeOutputQuantization": list(QUANTIZED_OPERATORS),
    }
    if calibration.method == "percentile":
        extra["CalibPercentile"] = calibration.percentile or 99.99
    with tempfile.TemporaryDirectory(prefix="trtops-") as folder:
        source, made = Path(folder) / "model.onnx", Path(folder) / "quantized.onnx"
        source.write_bytes(data)
        logging.disable(logging.WARNING)  # it advises to fold the model first, which was done
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                quantization.quantize_static(
                    source,
                    made,
                    _reader(quantization, feeds),
                    quant_format=quantization.QuantFormat.QDQ,
                    op_types_to_quantize=list(QUANTIZED_OPERATORS),
                    per_channel=True,
                    activation_type=quantization.QuantType.QInt8,
                    weight_type=quantization.QuantType.QInt8,
                    nodes_to_exclude=list(exclude),
                    calibrate_method=methods[calibration.method],
                    extra_options=extra,
                )
        except Exception as error:
            what = f"ONNX Runtime cannot quantize the model: {reason(error)}"
            raise BuildFailed(what, where="precision.calibration", fix="check the calibration data") from error
        finally:
            logging.disable(logging.NOTSET)
        return made.read_bytes()


def _reader(quantization: Any, feeds: Feeds) -> Any:  # noqa: ANN401 - the library has no types
    """Calibration data as the library reads it."""

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(feeds)

        def get_next(self) -> dict[str, Any] | None:
            feed = next(self._left, None)
            return None if feed is None else dict(feed)

    return Reader()
