package trtops.release.approvals_met_test

import data.trtops.release.approvals_met

base := {"environment": "prod", "tier": "gold", "action": "release", "authors": ["dev"], "previous": null, "approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}, {"key": "k2", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}], "release": {"identity": "sha256:r"}}

approvals := {"environments": {"local": {"bronze": {"required": 0, "approvers": []}, "gold": {"required": 0, "approvers": []}}, "default": {"bronze": {"required": 1, "approvers": ["rm"]}, "gold": {"required": 2, "approvers": ["rm", "po"]}}}, "groups": {"rm": [{"key": "k1", "identity": "ann"}, {"key": "k1b", "identity": "ann"}], "po": [{"key": "k2", "identity": "bob"}]}, "max_age_hours": 1}

limits := {"strictest": "gold", "tiers": {"bronze": {}, "gold": {}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in approvals_met.findings with input as document with data.approvals as approvals with data.limits as limits
}

test_met if places({}) == set()

test_one_of_two if places({"approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}]}) == {["approvals"]}

test_none if places({"approvals": []}) == {["approvals"]}

test_two_keys_of_one_person if places({"approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}, {"key": "k1b", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}]}) == {["approvals"]}

test_repeated if places({"approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}, {"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}]}) == {["approvals"]}

test_bronze_needs_one if places({"tier": "bronze", "approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}]}) == set()

test_bronze_not_by_the_owner if places({"tier": "bronze", "approvals": [{"key": "k2", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}]}) == {["approvals"]}

test_by_an_author_key if places({"authors": ["k1"]}) == {["approvals"]}

test_by_an_author_identity if places({"authors": ["ann"]}) == {["approvals"]}

test_by_an_author_in_capitals if places({"authors": [" Ann"]}) == {["approvals"]}

test_one_person_in_two_spellings if {
	twice := object.union(approvals, {"groups": {"rm": [{"key": "k1", "identity": "ann"}], "po": [{"key": "k2", "identity": "ANN"}]}})
	some finding in approvals_met.findings with input as base with data.approvals as twice with data.limits as limits
	finding.path == ["approvals"]
}

test_by_the_other_key_of_an_author if places({"authors": ["k1b"], "approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}, {"key": "k2", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}]}) == {["approvals"]}

test_another_release if places({"approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}, {"key": "k2", "valid": true, "over": "sha256:x", "created": 1, "age_seconds": 60}]}) == {["approvals"]}

test_signature_does_not_hold if places({"approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}, {"key": "k2", "valid": false, "over": "sha256:r", "created": 1, "age_seconds": 60}]}) == {["approvals"]}

test_unknown_key if places({"approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}, {"key": "k9", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}]}) == {["approvals"]}

test_at_the_oldest if places({"approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 3600}, {"key": "k2", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": -300}]}) == set()

test_too_old if places({"approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 3601}, {"key": "k2", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}]}) == {["approvals"]}

test_from_the_future if places({"approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": -301}, {"key": "k2", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}]}) == {["approvals"]}

test_rollback_takes_old_ones if places({"action": "rollback", "approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 9999}, {"key": "k2", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 9999}]}) == set()

test_local_needs_none if places({"environment": "local", "approvals": [], "authors": []}) == set()

test_authors_unknown if places({"authors": []}) == {["authors"]}

test_unknown_tier_is_strict if places({"tier": "x", "approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}]}) == {["approvals"]}

test_wrong_type if places({"approvals": "all"}) == {["approvals"]}

test_wrong_element if places({"approvals": ["k1", "k2"]}) == {["approvals"]}

test_key_wrong_type if places({"approvals": [{"key": 5, "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}]}) == {["approvals"]}

test_missing if complaints({}) == {["approvals"], ["authors"], []}

test_no_table_no_pass if {
	found := {finding.path |
		some finding in approvals_met.findings with input as object.union(base, {}) with data.limits as limits with data.approvals as {}
	}
	found == {["approvals"]}
}

# An engine that is gold today.
lowered(patch) := places(object.union({"tier": "bronze", "previous": {"tier": "gold"}, "approvals": [{"key": "k1", "valid": true, "over": "sha256:r", "created": 1, "age_seconds": 60}]}, patch))

test_lower_tier_needs_both if lowered({}) == {["approvals"]}

test_lower_tier_said if {
	document := object.union(base, {"tier": "bronze", "previous": {"tier": "gold"}, "approvals": []})
	messages := {finding.message |
		some finding in approvals_met.findings with input as document with data.approvals as approvals with data.limits as limits
	}
	messages == {"0 of 1 approvals", "0 of 2 approvals that tier gold needs, which the engine has today"}
}

test_lower_tier_met if lowered({"approvals": base.approvals}) == set()

test_rollback_to_a_lower_tier if lowered({"action": "rollback"}) == set()

test_same_tier if places({"previous": {"tier": "gold"}}) == set()

test_tier_of_before_unknown if places({"previous": {"tier": "copper"}}) == {["approvals"]}

test_tier_of_before_missing if places({"previous": {}}) == {["approvals"]}

test_before_is_text if places({"previous": "gold"}) == {["approvals"]}
