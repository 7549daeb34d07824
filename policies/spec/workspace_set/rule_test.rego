package trtops.spec.workspace_set_test

import data.trtops.spec.workspace_set

base := {"facts": {"targets": [{"id": "t", "needs_gpu": true}], "memory": {"workspace_bytes": 1048576}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in workspace_set.findings with input as document
}

test_set if places({}) == set()

test_null if places({"facts": {"memory": {"workspace_bytes": null}}}) == {["memory", "workspace"]}

test_zero if places({"facts": {"memory": {"workspace_bytes": 0}}}) == {["memory", "workspace"]}

test_one_byte if places({"facts": {"memory": {"workspace_bytes": 1}}}) == set()

test_cpu_needs_none if places({"facts": {"targets": [{"id": "t", "needs_gpu": false}], "memory": {"workspace_bytes": null}}}) == set()

test_wrong_type if places({"facts": {"memory": {"workspace_bytes": "1GiB"}}}) == {["memory", "workspace"]}

test_wrong_need if places({"facts": {"targets": [{"id": "t", "needs_gpu": "yes"}]}}) == {["targets", 0]}

test_missing if complaints({}) == {["targets"], ["memory", "workspace"]}
