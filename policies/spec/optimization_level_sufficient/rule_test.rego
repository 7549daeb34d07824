package trtops.spec.optimization_level_sufficient_test

import data.trtops.spec.optimization_level_sufficient

base := {"tier": "bronze", "facts": {"builder": {"optimization_level": 2}}}

limits := {"strictest": "bronze", "tiers": {"bronze": {"optimization_level": 2}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in optimization_level_sufficient.findings with input as document with data.limits as limits
}

test_at_the_limit if places({}) == set()

test_below if places({"facts": {"builder": {"optimization_level": 1}}}) == {["builder", "optimization_level"]}

test_highest if places({"facts": {"builder": {"optimization_level": 5}}}) == set()

test_beyond if places({"facts": {"builder": {"optimization_level": 6}}}) == {["builder", "optimization_level"]}

test_wrong_type if places({"facts": {"builder": {"optimization_level": "3"}}}) == {["builder", "optimization_level"]}

test_missing if complaints({}) == {["builder", "optimization_level"]}

test_no_limit_no_pass if {
	found := {finding.path |
		some finding in optimization_level_sufficient.findings with input as object.union(base, {}) with data.limits as {}
	}
	found == {["builder", "optimization_level"]}
}
