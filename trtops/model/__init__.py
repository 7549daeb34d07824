"""The ONNX file: fetched by URI, read for facts, held against the spec."""
