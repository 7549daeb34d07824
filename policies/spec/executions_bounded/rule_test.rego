package trtops.spec.executions_bounded_test

import data.trtops.spec.executions_bounded

base := {"tier": "bronze", "facts": {"execution": {"instances": 2, "streams": 2}}}

limits := {"strictest": "gold", "tiers": {"bronze": {"executions": 4}, "gold": {"executions": 2}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in executions_bounded.findings with input as document with data.limits as limits
}

test_at_the_limit if places({}) == set()

test_above if places({"facts": {"execution": {"instances": 5, "streams": 1}}}) == {["execution", "instances"]}

test_product_above if places({"facts": {"execution": {"instances": 3, "streams": 2}}}) == {["execution", "instances"]}

test_zero if places({"facts": {"execution": {"instances": 0, "streams": 1}}}) == {["execution", "instances"]}

test_wrong_type if places({"facts": {"execution": {"instances": "2", "streams": 2}}}) == {["execution", "instances"]}

test_missing if complaints({}) == {["execution", "instances"], ["execution", "streams"]}

test_no_limit_no_pass if {
	found := {finding.path |
		some finding in executions_bounded.findings with input as object.union(base, {}) with data.limits as {}
	}
	found == {["execution", "instances"]}
}
