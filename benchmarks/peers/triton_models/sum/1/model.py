"""The engine of the serving benchmarks in Triton's Python backend. COST_MS stands for device time a batch."""

import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils

COST = float(os.environ.get("COST_MS", "0")) / 1e3


class TritonPythonModel:
    """Adds up rows."""

    def execute(self, requests):  # noqa: ANN001, ANN201 - Triton's interface
        """Run a batch."""
        parts = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        if COST:
            time.sleep(COST)
        totals = np.add.reduce(np.concatenate(parts), axis=1, keepdims=True)
        answers, at = [], 0
        for part in parts:
            rows = totals[at : at + len(part)]
            at += len(part)
            answers.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("y", rows)]))
        return answers
