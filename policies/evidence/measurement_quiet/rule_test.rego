package trtops.evidence.measurement_quiet_test

import data.trtops.evidence.measurement_quiet

base := {"evidence": {"benchmark": {"rows": [], "warnings": []}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in measurement_quiet.findings with input as document
}

test_quiet if places({}) == set()

test_noisy if places({"evidence": {"benchmark": {"rows": [], "warnings": ["a", "b"]}}}) == {["benchmark", "warnings", 0], ["benchmark", "warnings", 1]}

test_not_measured if places({"evidence": {"benchmark": null}}) == set()

test_wrong_type if places({"evidence": {"benchmark": {"rows": [], "warnings": "busy"}}}) == {["benchmark", "warnings"]}

test_wrong_element if places({"evidence": {"benchmark": {"rows": [], "warnings": ["a", 5]}}}) == {["benchmark", "warnings"], ["benchmark", "warnings", 0]}

test_missing if complaints({}) == {["benchmark"]}
