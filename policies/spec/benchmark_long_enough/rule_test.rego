package trtops.spec.benchmark_long_enough_test

import data.trtops.spec.benchmark_long_enough

base := {"tier": "bronze", "facts": {"benchmark": {"duration_us": 500000}}}

limits := {"strictest": "gold", "tiers": {"bronze": {"benchmark_ms": 500}, "gold": {"benchmark_ms": 250}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in benchmark_long_enough.findings with input as document with data.limits as limits
}

test_at_the_limit if places({}) == set()

test_below if places({"facts": {"benchmark": {"duration_us": 499999}}}) == {["benchmark", "duration"]}

test_wrong_type if places({"facts": {"benchmark": {"duration_us": "1s"}}}) == {["benchmark", "duration"]}

test_missing if complaints({}) == {["benchmark", "duration"]}

test_no_limit_no_pass if {
	found := {finding.path |
		some finding in benchmark_long_enough.findings with input as object.union(base, {}) with data.limits as {}
	}
	found == {["benchmark", "duration"]}
}
