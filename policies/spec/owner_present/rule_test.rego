package trtops.spec.owner_present_test

import data.trtops.spec.owner_present

base := {"facts": {"owner": "ocr-team"}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in owner_present.findings with input as document
}

test_named if places({}) == set()

test_null if places({"facts": {"owner": null}}) == {["metadata", "owner"]}

test_blank if places({"facts": {"owner": " \t"}}) == {["metadata", "owner"]}

test_wrong_type if places({"facts": {"owner": ["a"]}}) == {["metadata", "owner"]}

test_missing if complaints({}) == {["metadata", "owner"]}
