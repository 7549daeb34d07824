package trtops.spec.preflight_warnings_test

import data.trtops.spec.preflight_warnings

base := {"preflight": {"facts": []}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in preflight_warnings.findings with input as document
}

test_none if places({}) == set()

test_warning if places({"preflight": {"facts": [{"code": "c", "severity": "warning", "message": "m", "path": ["profiles", 0], "node": null, "fix": "do"}]}}) == {["profiles", 0]}

test_owned_by_another_rule if places({"preflight": {"facts": [{"code": "memory.workspace-absent", "severity": "warning", "message": "m", "path": ["memory", "workspace"], "node": null, "fix": "do"}]}}) == set()

test_error_is_not_its_business if places({"preflight": {"facts": [{"code": "c", "severity": "error", "message": "m", "path": ["profiles", 0], "node": null, "fix": "do"}]}}) == set()

test_repaired if places({"preflight": {"facts": [{"code": "c", "severity": "repaired", "message": "m", "path": ["profiles", 0], "node": null, "fix": "do"}]}}) == set()

test_wrong_type if places({"preflight": {"facts": null}}) == {[]}

test_missing if complaints({}) == {[]}
