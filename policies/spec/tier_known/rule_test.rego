package trtops.spec.tier_known_test

import data.trtops.spec.tier_known

base := {"tier": "bronze"}

limits := {"strictest": "gold", "tiers": {"bronze": {"x": 2}, "gold": {"x": 1}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in tier_known.findings with input as document with data.limits as limits
}

test_known if places({}) == set()

test_unknown if places({"tier": "platinum"}) == {["metadata", "labels", "tier"]}

test_misspelt_case if places({"tier": "Bronze"}) == {["metadata", "labels", "tier"]}

test_wrong_type if places({"tier": 7}) == {["metadata", "labels", "tier"]}

test_missing if complaints({}) == {["metadata", "labels", "tier"]}

test_no_limits_at_all if {
	found := {finding.path |
		some finding in tier_known.findings with input as object.union(base, {}) with data.limits as {}
	}
	found == {["metadata", "labels", "tier"]}
}
