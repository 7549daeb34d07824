package trtops.evidence.slo_met_test

import data.trtops.evidence.slo_met

base := {"declared": {"target": {"slo": {"p99_us": 5000, "throughput": null, "throughput_milli": 2000000}}}, "evidence": {"benchmark": {"rows": [{"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}]}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in slo_met.findings with input as document
}

test_at_the_bounds if places({}) == set()

test_p99_above if places({"evidence": {"benchmark": {"rows": [{"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000001, "low": 5000001, "high": 5000001}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}]}}}) == {["benchmark", "rows", 0, "p99"]}

test_second_row_above if places({"evidence": {"benchmark": {"rows": [{"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}, {"batch": 16, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 6000000, "low": 6000000, "high": 6000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}]}}}) == {["benchmark", "rows", 1, "p99"]}

test_throughput_below if places({"evidence": {"benchmark": {"rows": [{"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 1999999, "low": 1999999, "high": 1999999}}]}}}) == {["benchmark", "rows"]}

test_best_row_counts if places({"evidence": {"benchmark": {"rows": [{"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 1, "low": 1, "high": 1}}, {"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}]}}}) == set()

test_only_latency if places({"declared": {"target": {"slo": {"p99_us": 5000, "throughput": null, "throughput_milli": null}}}, "evidence": {"benchmark": {"rows": [{"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 1, "low": 1, "high": 1}}]}}}) == set()

test_only_throughput if places({"declared": {"target": {"slo": {"p99_us": null, "throughput": null, "throughput_milli": 5}}}, "evidence": {"benchmark": {"rows": [{"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000000000000, "low": 1000000000000, "high": 1000000000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}]}}}) == set()

test_no_slo if places({"declared": {"target": {"slo": null}}, "evidence": {"benchmark": {"rows": [{"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000000000000, "low": 1000000000000, "high": 1000000000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}]}}}) == set()

test_not_measured if places({"evidence": {"benchmark": null}}) == {["benchmark"]}

test_no_rows if places({"evidence": {"benchmark": {"rows": []}}}) == {["benchmark"]}

test_row_wrong_type if places({"evidence": {"benchmark": {"rows": [{"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": "fast", "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}]}}}) == {["benchmark", "rows", 0, "p99_ns"]}

test_rows_wrong_type if places({"evidence": {"benchmark": {"rows": "x"}}}) == {["benchmark"], ["benchmark", "rows"]}

test_slo_wrong_type if places({"declared": {"target": {"slo": {"p99_us": "5ms", "throughput": null, "throughput_milli": 2000000}}}}) == {["target", "slo", "p99"]}

test_missing if complaints({}) == {["target"], ["target", "slo"], ["benchmark"]}
