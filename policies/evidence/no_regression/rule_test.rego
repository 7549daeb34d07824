package trtops.evidence.no_regression_test

import data.trtops.evidence.no_regression

base := {"tier": "bronze", "evidence": {"benchmark": {"rows": [{"batch": 8, "runs": 50, "p50_ns": {"value": 1000000, "low": 1000000, "high": 1000000}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 5000000, "low": 5000000, "high": 5000000}, "throughput_milli": {"value": 2000000, "low": 2000000, "high": 2000000}}]}}, "comparison": {"comparable": true, "reason": null, "rows": [{"batch": 8, "current": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}, "baseline": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}}], "missing": []}}

limits := {"strictest": "gold", "tiers": {"bronze": {"regression": {"p50_percent": 10, "p99_percent": 20, "throughput_percent": 10}}, "gold": {"regression": {"p50_percent": 10, "p99_percent": 20, "throughput_percent": 10}}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in no_regression.findings with input as document with data.limits as limits
}

test_the_same if places({}) == set()

test_p50_at_the_bound if places({"comparison": {"comparable": true, "reason": null, "rows": [{"batch": 8, "current": {"batch": 8, "runs": 50, "p50_ns": {"value": 130, "low": 121, "high": 140}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}, "baseline": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}}], "missing": []}}) == set()

test_p50_beyond if places({"comparison": {"comparable": true, "reason": null, "rows": [{"batch": 8, "current": {"batch": 8, "runs": 50, "p50_ns": {"value": 130, "low": 122, "high": 140}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}, "baseline": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}}], "missing": []}}) == {["benchmark", "rows"]}

test_p50_worse_in_noise if places({"comparison": {"comparable": true, "reason": null, "rows": [{"batch": 8, "current": {"batch": 8, "runs": 50, "p50_ns": {"value": 500, "low": 100, "high": 900}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}, "baseline": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}}], "missing": []}}) == set()

test_p99_at_the_bound if places({"comparison": {"comparable": true, "reason": null, "rows": [{"batch": 8, "current": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1300, "low": 1200, "high": 1400}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}, "baseline": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}}], "missing": []}}) == set()

test_p99_beyond if places({"comparison": {"comparable": true, "reason": null, "rows": [{"batch": 8, "current": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1300, "low": 1201, "high": 1400}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}, "baseline": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}}], "missing": []}}) == {["benchmark", "rows"]}

test_throughput_at_the_bound if places({"comparison": {"comparable": true, "reason": null, "rows": [{"batch": 8, "current": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 850, "low": 800, "high": 900}}, "baseline": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}}], "missing": []}}) == set()

test_throughput_beyond if places({"comparison": {"comparable": true, "reason": null, "rows": [{"batch": 8, "current": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 850, "low": 800, "high": 899}}, "baseline": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}}], "missing": []}}) == {["benchmark", "rows"]}

test_faster if places({"comparison": {"comparable": true, "reason": null, "rows": [{"batch": 8, "current": {"batch": 8, "runs": 50, "p50_ns": {"value": 1, "low": 1, "high": 1}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 9000, "low": 9000, "high": 9000}}, "baseline": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}}], "missing": []}}) == set()

test_nothing_released if places({"comparison": null}) == set()

test_not_judged if {
	found := {finding.path |
		some finding in no_regression.findings with input as object.union(base, {"comparison": {"comparable": true, "reason": null, "rows": [{"batch": 8, "current": {"batch": 8, "runs": 50, "p50_ns": {"value": 999, "low": 999, "high": 999}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}, "baseline": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}}], "missing": []}}) with data.limits as {"strictest": "gold", "tiers": {"bronze": {"regression": {"p50_percent": null, "p99_percent": null, "throughput_percent": null}}, "gold": {"regression": {"p50_percent": null, "p99_percent": null, "throughput_percent": null}}}}
	}
	found == set()
}

test_no_tolerance_no_pass if {
	found := {finding.path |
		some finding in no_regression.findings with input as object.union(base, {}) with data.limits as {}
	}
	found == {["benchmark"]}
}

test_no_interval if places({"comparison": {"comparable": true, "reason": null, "rows": [{"batch": 8, "current": {"batch": 8, "runs": 50, "p50_ns": 7, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}, "baseline": {"batch": 8, "runs": 50, "p50_ns": {"value": 100, "low": 90, "high": 110}, "p90_ns": {"value": 2000000, "low": 2000000, "high": 2000000}, "p99_ns": {"value": 1000, "low": 900, "high": 1000}, "throughput_milli": {"value": 1000, "low": 1000, "high": 1100}}}], "missing": []}}) == {["benchmark", "rows"]}

test_wrong_type if places({"comparison": {"rows": "x"}}) == {["benchmark", "rows"]}

test_comparison_wrong_type if places({"comparison": []}) == {["benchmark"]}

test_missing if complaints({}) == {["benchmark"]}
