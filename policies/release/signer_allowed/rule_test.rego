package trtops.release.signer_allowed_test

import data.trtops.release.signer_allowed

base := {"environment": "prod", "signatures": [{"key": "builder", "valid": true, "first_use": false}]}

signers := {"environments": {"local": {"first_use": true, "keys": []}, "default": {"first_use": false, "keys": ["builder"]}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in signer_allowed.findings with input as document with data.signers as signers
}

test_listed if places({}) == set()

test_not_listed if places({"signatures": [{"key": "me", "valid": true, "first_use": false}]}) == {["signatures"]}

test_first_use_elsewhere if places({"signatures": [{"key": "me", "valid": true, "first_use": true}]}) == {["signatures"]}

test_first_use_here if places({"environment": "local", "signatures": [{"key": "me", "valid": true, "first_use": true}]}) == set()

test_not_first_use_here if places({"environment": "local", "signatures": [{"key": "me", "valid": true, "first_use": false}]}) == {["signatures"]}

test_does_not_hold if places({"signatures": [{"key": "builder", "valid": false, "first_use": false}]}) == {["signatures", 0]}

test_one_of_two_does_not_hold if places({"signatures": [{"key": "builder", "valid": true, "first_use": false}, {"key": "x", "valid": "yes", "first_use": false}]}) == {["signatures", 1]}

test_one_of_two_listed if places({"signatures": [{"key": "x", "valid": true, "first_use": false}, {"key": "builder", "valid": true, "first_use": false}]}) == set()

test_none if places({"signatures": []}) == {["signatures"]}

test_key_wrong_type if places({"signatures": [{"key": 5, "valid": true, "first_use": false}]}) == {["signatures"]}

test_wrong_element if places({"signatures": ["builder"]}) == {["signatures"], ["signatures", 0]}

test_missing if complaints({}) == {["signatures"]}

test_no_table_no_pass if {
	found := {finding.path |
		some finding in signer_allowed.findings with input as object.union(base, {}) with data.signers as {}
	}
	found == {["signatures"]}
}
