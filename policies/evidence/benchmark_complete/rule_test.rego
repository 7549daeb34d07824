package trtops.evidence.benchmark_complete_test

import data.trtops.evidence.benchmark_complete

base := {"tier": "bronze", "declared": {"batch_sizes": [1, 8]}, "evidence": {"benchmark": {"rows": [{"batch": 1, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}, {"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}]}}}

limits := {"strictest": "gold", "tiers": {"bronze": {"benchmark_runs": 20}, "gold": {"benchmark_runs": 20}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in benchmark_complete.findings with input as document with data.limits as limits
}

test_complete if places({}) == set()

test_one_missing if places({"declared": {"batch_sizes": [1, 8, 32]}}) == {["benchmark", "rows"]}

test_more_is_fine if places({"declared": {"batch_sizes": [1]}}) == set()

test_enough_runs if places({"evidence": {"benchmark": {"rows": [{"batch": 1, "runs": 20, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}, {"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}]}}}) == set()

test_too_few_runs if places({"evidence": {"benchmark": {"rows": [{"batch": 1, "runs": 19, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}, {"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}]}}}) == {["benchmark", "rows", 0, "runs"]}

test_not_measured if places({"evidence": {"benchmark": null}}) == set()

test_runs_wrong_type if places({"evidence": {"benchmark": {"rows": [{"batch": 1, "runs": "50", "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}, {"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}]}}}) == {["benchmark", "rows", 0, "runs"]}

test_wrong_type if places({"declared": {"batch_sizes": 8}}) == {["benchmark", "rows"]}

test_missing if complaints({}) == {["benchmark", "rows"], ["benchmark"]}

test_no_limit_no_pass if {
	found := {finding.path |
		some finding in benchmark_complete.findings with input as object.union(base, {}) with data.limits as {}
	}
	found == {["benchmark", "rows", 0, "runs"], ["benchmark", "rows", 1, "runs"]}
}
