package trtops.evidence.verified_test

import data.trtops.evidence.verified

base := {"evidence": {"accuracy": {"passed": true, "elements": 10, "outside": 0, "atol": 0.001, "rtol": 0.01, "metrics": {"top1": 1}}, "benchmark": {"rows": []}, "unverified": null}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in verified.findings with input as document
}

test_verified if places({}) == set()

test_failed if places({"evidence": {"accuracy": {"passed": false}}}) == {["accuracy", "passed"]}

test_says_nothing if places({"evidence": {"accuracy": {"passed": null}}}) == {["accuracy", "passed"]}

test_nothing_compared if places({"evidence": {"accuracy": {"elements": 0}}}) == {["accuracy", "elements"]}

test_one_element if places({"evidence": {"accuracy": {"elements": 1}}}) == set()

test_elements_wrong_type if places({"evidence": {"accuracy": {"elements": "10"}}}) == {["accuracy", "elements"]}

test_not_compared if places({"evidence": {"accuracy": null}}) == {["accuracy"]}

test_not_measured if places({"evidence": {"benchmark": null}}) == {["benchmark"]}

test_a_reason_given if places({"evidence": {"accuracy": null, "benchmark": null, "unverified": "no GPU"}}) == {["unverified"]}

test_wrong_type if places({"evidence": {"accuracy": "passed"}}) == {["accuracy"]}

test_missing if complaints({}) == {["accuracy"], ["benchmark"], ["unverified"]}
