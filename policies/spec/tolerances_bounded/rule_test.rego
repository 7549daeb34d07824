package trtops.spec.tolerances_bounded_test

import data.trtops.spec.tolerances_bounded

base := {"facts": {"precision": {"mode": "fp32", "tf32": false, "calibration": null}, "accuracy": {"atol": 0.001, "rtol": 0.01, "metric": {}}}, "preflight": {"model": {"operators": {"Conv": 3}}}}

precision := {"modes": {"fp32": {"atol": 0.001, "rtol": 0.01, "metric": false, "calibrated": false}, "tf32": {"atol": 0.005, "rtol": 0.02, "metric": false, "calibrated": false}, "fp16": {"atol": 0.01, "rtol": 0.05, "metric": false, "calibrated": false}, "int8": {"atol": 0.2, "rtol": 0.2, "metric": true, "calibrated": true}}, "calibration_samples": 32}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in tolerances_bounded.findings with input as document with data.precision as precision
}

test_at_the_bounds if places({}) == set()

test_atol_above if places({"facts": {"accuracy": {"atol": 0.0011}}}) == {["accuracy", "atol"]}

test_rtol_above if places({"facts": {"accuracy": {"rtol": 0.011}}}) == {["accuracy", "rtol"]}

test_looser_for_fp16 if places({"facts": {"precision": {"mode": "fp16"}, "accuracy": {"atol": 0.01, "rtol": 0.05}}}) == set()

test_negative if places({"facts": {"accuracy": {"atol": -1}}}) == {["accuracy", "atol"]}

test_zero if places({"facts": {"accuracy": {"atol": 0, "rtol": 0}}}) == set()

test_tf32_flag_counts if places({"facts": {"precision": {"tf32": true}, "accuracy": {"atol": 0.005}}}) == set()

test_no_section if places({"facts": {"accuracy": null}}) == set()

test_unknown_mode if places({"facts": {"precision": {"mode": "fp4"}}}) == {["accuracy", "atol"], ["accuracy", "rtol"]}

test_wrong_type if places({"facts": {"accuracy": {"atol": "1e-3"}}}) == {["accuracy", "atol"]}

test_missing if complaints({}) == {["precision", "mode"], ["precision", "tf32"], ["accuracy"]}
