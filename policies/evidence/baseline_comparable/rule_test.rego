package trtops.evidence.baseline_comparable_test

import data.trtops.evidence.baseline_comparable

base := {"comparison": {"comparable": true, "reason": null, "rows": [], "missing": []}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in baseline_comparable.findings with input as document
}

test_comparable if places({}) == set()

test_nothing_released if places({"comparison": null}) == set()

test_not_comparable if places({"comparison": {"comparable": false, "reason": "another device"}}) == {["benchmark", "device"]}

test_no_reason if places({"comparison": {"comparable": false}}) == {["benchmark", "device"]}

test_batch_gone if places({"comparison": {"missing": [32]}}) == {["benchmark", "rows"]}

test_batch_gone_wrong_type if places({"comparison": {"missing": ["32"]}}) == {["benchmark", "rows"]}

test_missing_wrong_type if places({"comparison": {"missing": 5}}) == {["benchmark", "rows"]}

test_wrong_type if places({"comparison": "x"}) == {["benchmark"]}

test_missing if complaints({}) == {["benchmark"]}
