package trtops.spec.preflight_errors_test

import data.trtops.spec.preflight_errors

base := {"preflight": {"facts": []}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in preflight_errors.findings with input as document
}

test_none if places({}) == set()

test_error if places({"preflight": {"facts": [{"code": "c", "severity": "error", "message": "m", "path": ["profiles", 0], "node": null, "fix": "do"}]}}) == {["profiles", 0]}

test_warning if places({"preflight": {"facts": [{"code": "c", "severity": "warning", "message": "m", "path": ["profiles", 0], "node": null, "fix": "do"}]}}) == set()

test_repaired if places({"preflight": {"facts": [{"code": "c", "severity": "repaired", "message": "m", "path": ["profiles", 0], "node": null, "fix": "do"}]}}) == set()

test_owned_by_another_rule if places({"preflight": {"facts": [{"code": "batching.outside-profile", "severity": "error", "message": "m", "path": ["batching", "max_batch"], "node": null, "fix": "do"}]}}) == set()

test_its_code_elsewhere if places({"preflight": {"facts": [{"code": "batching.outside-profile", "severity": "error", "message": "m", "path": ["benchmark", "batch_sizes", 0], "node": null, "fix": "do"}]}}) == {["benchmark", "batch_sizes", 0]}

test_owned_without_a_path if places({"preflight": {"facts": [{"code": "batching.outside-profile", "severity": "error", "message": "m", "path": null, "node": null, "fix": "do"}]}}) == {[]}

test_unknown_severity_denies if places({"preflight": {"facts": [{"code": "c", "severity": "fatal", "message": "m", "path": ["profiles", 0], "node": null, "fix": "do"}]}}) == {["profiles", 0]}

test_no_severity_denies if places({"preflight": {"facts": [{"path": ["a"]}]}}) == {["a"]}

test_node_without_path if places({"preflight": {"facts": [{"code": "c", "severity": "error", "message": "m", "path": null, "node": "conv1", "fix": "do"}]}}) == {[]}

test_wrong_type if places({"preflight": {"facts": "none"}}) == {[]}

test_wrong_element if places({"preflight": {"facts": ["bad"]}}) == {[]}

test_missing if complaints({}) == {[]}
