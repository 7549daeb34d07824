package trtops.release.provenance_present_test

import data.trtops.release.provenance_present

base := {"release": {"artifacts": [{"target": "t", "provenance": "sha256:abababababababababababababababababababababababababababababababab"}]}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in provenance_present.findings with input as document
}

test_present if places({}) == set()

test_none if places({"release": {"artifacts": [{"target": "t", "provenance": null}]}}) == {["artifacts", 0, "provenance"]}

test_second_has_none if places({"release": {"artifacts": [{"target": "t", "provenance": "sha256:abababababababababababababababababababababababababababababababab"}, {"target": "t", "provenance": null}]}}) == {["artifacts", 1, "provenance"]}

test_no_digest if places({"release": {"artifacts": [{"target": "t", "provenance": "builder"}]}}) == {["artifacts", 0, "provenance"]}

test_wrong_type if places({"release": {"artifacts": [{"target": "t", "provenance": 5}]}}) == {["artifacts", 0, "provenance"]}

test_wrong_element if places({"release": {"artifacts": ["t"]}}) == {["artifacts"], ["artifacts", 0, "provenance"]}

test_missing if complaints({}) == {["artifacts"]}
