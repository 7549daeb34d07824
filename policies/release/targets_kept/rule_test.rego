package trtops.release.targets_kept_test

import data.trtops.release.targets_kept

base := {"previous": {"targets": ["cpu"]}, "release": {"artifacts": [{"target": "cpu"}]}, "action": "release"}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in targets_kept.findings with input as document
}

test_kept if places({}) == set()

test_more if places({"previous": {"targets": ["cpu"]}, "release": {"artifacts": [{"target": "cpu"}, {"target": "gpu"}]}, "action": "release"}) == set()

test_dropped if places({"previous": {"targets": ["cpu", "gpu"]}, "release": {"artifacts": [{"target": "cpu"}]}, "action": "release"}) == {["artifacts"]}

test_rollback if places({"previous": {"targets": ["cpu", "gpu"]}, "release": {"artifacts": [{"target": "cpu"}]}, "action": "rollback"}) == set()

test_first if places({"previous": null}) == set()

test_wrong_type if places({"previous": {"targets": "cpu"}}) == {["artifacts"]}

test_wrong_element if places({"previous": {"targets": [5]}, "release": {"artifacts": [{"target": "cpu"}]}, "action": "release"}) == {["artifacts"]}

test_missing if complaints({}) == {["artifacts"]}
