package trtops.spec.workspace_bounded_test

import data.trtops.spec.workspace_bounded

base := {"tier": "bronze", "facts": {"memory": {"workspace_bytes": 67108864}}}

limits := {"strictest": "gold", "tiers": {"bronze": {"workspace_mib": 64}, "gold": {"workspace_mib": 32}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in workspace_bounded.findings with input as document with data.limits as limits
}

test_at_the_limit if places({}) == set()

test_one_above if places({"facts": {"memory": {"workspace_bytes": 67108865}}}) == {["memory", "workspace"]}

test_none_is_within if places({"facts": {"memory": {"workspace_bytes": null}}}) == set()

test_unknown_tier_is_strict if places({"tier": "x", "facts": {"memory": {"workspace_bytes": 34603008}}}) == {["memory", "workspace"]}

test_unknown_tier_within_strict if places({"tier": "x", "facts": {"memory": {"workspace_bytes": 33554432}}}) == set()

test_negative if places({"facts": {"memory": {"workspace_bytes": -1}}}) == {["memory", "workspace"]}

test_wrong_type if places({"facts": {"memory": {"workspace_bytes": "1GiB"}}}) == {["memory", "workspace"]}

test_missing if complaints({}) == {["memory", "workspace"]}

test_no_limit_no_pass if {
	found := {finding.path |
		some finding in workspace_bounded.findings with input as object.union(base, {}) with data.limits as {}
	}
	found == {["memory", "workspace"]}
}
