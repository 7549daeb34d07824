"""Backends: the only place that imports TensorRT, CUDA or ONNX Runtime."""
