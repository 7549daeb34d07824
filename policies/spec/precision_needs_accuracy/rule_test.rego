package trtops.spec.precision_needs_accuracy_test

import data.trtops.spec.precision_needs_accuracy

base := {"facts": {"precision": {"mode": "fp32", "tf32": false, "calibration": null}, "accuracy": {"atol": 0.001, "rtol": 0.01, "metric": {}}}, "preflight": {"model": {"operators": {"Conv": 3}}}}

precision := {"modes": {"fp32": {"atol": 0.001, "rtol": 0.01, "metric": false, "calibrated": false}, "tf32": {"atol": 0.005, "rtol": 0.02, "metric": false, "calibrated": false}, "fp16": {"atol": 0.01, "rtol": 0.05, "metric": false, "calibrated": false}, "int8": {"atol": 0.2, "rtol": 0.2, "metric": true, "calibrated": true}}, "calibration_samples": 32}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in precision_needs_accuracy.findings with input as document with data.precision as precision
}

test_fp32_needs_none if places({"facts": {"accuracy": null}}) == set()

test_fp16_with if places({"facts": {"precision": {"mode": "fp16"}}}) == set()

test_fp16_without if places({"facts": {"precision": {"mode": "fp16"}, "accuracy": null}}) == {["precision", "mode"]}

test_tf32_flag_counts if places({"facts": {"precision": {"tf32": true}, "accuracy": null}}) == {["precision", "mode"]}

test_int8_needs_a_metric if places({"facts": {"precision": {"mode": "int8"}}}) == {["accuracy", "metric"]}

test_int8_with_metric if places({"facts": {"precision": {"mode": "int8"}, "accuracy": {"metric": {"top1": 0.99}}}}) == set()

test_unknown_mode_needs_a_metric if places({"facts": {"precision": {"mode": "fp4"}}}) == {["accuracy", "metric"]}

test_wrong_type if places({"facts": {"precision": {"mode": 16}}}) == {["precision", "mode"], ["accuracy", "metric"]}

test_wrong_accuracy if places({"facts": {"accuracy": "tight"}}) == {["accuracy"]}

test_missing if complaints({}) == {["precision", "mode"], ["precision", "tf32"], ["accuracy"]}
