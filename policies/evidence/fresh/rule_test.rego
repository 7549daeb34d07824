package trtops.evidence.fresh_test

import data.trtops.evidence.fresh

base := {"tier": "bronze", "evidence": {"age_seconds": 7200}}

limits := {"strictest": "gold", "tiers": {"bronze": {"evidence_hours": 2}, "gold": {"evidence_hours": 2}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in fresh.findings with input as document with data.limits as limits
}

test_at_the_limit if places({}) == set()

test_too_old if places({"evidence": {"age_seconds": 7201}}) == {["created"]}

test_now if places({"evidence": {"age_seconds": 0}}) == set()

test_clock_skew if places({"evidence": {"age_seconds": -300}}) == set()

test_from_the_future if places({"evidence": {"age_seconds": -301}}) == {["created"]}

test_wrong_type if places({"evidence": {"age_seconds": "1h"}}) == {["created"]}

test_fraction if places({"evidence": {"age_seconds": 1.5}}) == {["created"]}

test_missing if complaints({}) == {["created"]}

test_no_limit_no_pass if {
	found := {finding.path |
		some finding in fresh.findings with input as object.union(base, {}) with data.limits as {}
	}
	found == {["created"]}
}
