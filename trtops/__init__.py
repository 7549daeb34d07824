"""trtops: the release platform for TensorRT engines."""

__version__ = "0.1.0"
