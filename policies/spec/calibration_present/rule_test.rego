package trtops.spec.calibration_present_test

import data.trtops.spec.calibration_present

base := {"facts": {"precision": {"mode": "fp32", "tf32": false, "calibration": null}, "accuracy": {"atol": 0.001, "rtol": 0.01, "metric": {}}}, "preflight": {"model": {"operators": {"Conv": 3}}}}

precision := {"modes": {"fp32": {"atol": 0.001, "rtol": 0.01, "metric": false, "calibrated": false}, "tf32": {"atol": 0.005, "rtol": 0.02, "metric": false, "calibrated": false}, "fp16": {"atol": 0.01, "rtol": 0.05, "metric": false, "calibrated": false}, "int8": {"atol": 0.2, "rtol": 0.2, "metric": true, "calibrated": true}}, "calibration_samples": 32}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in calibration_present.findings with input as document with data.precision as precision
}

test_fp32_needs_none if places({}) == set()

test_int8_without if places({"facts": {"precision": {"mode": "int8"}}}) == {["precision", "mode"]}

test_int8_calibrated if places({"facts": {"precision": {"mode": "int8", "calibration": {"source": "file:c.npz", "method": "minmax", "percentile": null, "samples": 32}}}}) == set()

test_int8_all_samples if places({"facts": {"precision": {"mode": "int8", "calibration": {"source": "file:c.npz", "method": "minmax", "percentile": null, "samples": null}}}}) == set()

test_too_few if places({"facts": {"precision": {"mode": "int8", "calibration": {"source": "file:c.npz", "method": "minmax", "percentile": null, "samples": 31}}}}) == {["precision", "calibration", "samples"]}

test_quantized_model if places({"facts": {"precision": {"mode": "int8"}}, "preflight": {"model": {"operators": {"QuantizeLinear": 2}}}}) == set()

test_quantized_by_another_domain if places({"facts": {"precision": {"mode": "int8"}}, "preflight": {"model": {"operators": {"com.microsoft::DequantizeLinear": 2}}}}) == set()

test_a_name_that_only_contains_it if places({"facts": {"precision": {"mode": "int8"}}, "preflight": {"model": {"operators": {"DynamicQuantizeLinear": 2}}}}) == {["precision", "mode"]}

test_wrong_type if places({"facts": {"precision": {"mode": "fp32", "calibration": "yes"}}}) == {["precision", "calibration"]}

test_missing if complaints({}) == {["precision", "mode"], ["precision", "tf32"], ["precision", "calibration"]}

test_no_bound_no_pass if {
	found := {finding.path |
		some finding in calibration_present.findings with input as object.union(base, {"facts": {"precision": {"mode": "int8", "calibration": {"source": "file:c.npz", "method": "minmax", "percentile": null, "samples": 32}}}}) with data.precision as {"modes": {"fp32": {"atol": 0.001, "rtol": 0.01, "metric": false, "calibrated": false}, "tf32": {"atol": 0.005, "rtol": 0.02, "metric": false, "calibrated": false}, "fp16": {"atol": 0.01, "rtol": 0.05, "metric": false, "calibrated": false}, "int8": {"atol": 0.2, "rtol": 0.2, "metric": true, "calibrated": true}}}
	}
	found == {["precision", "calibration", "samples"]}
}
