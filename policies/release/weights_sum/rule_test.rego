package trtops.release.weights_sum_test

import data.trtops.release.weights_sum

base := {"binding": {"weights": {"stable": 100}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in weights_sum.findings with input as document
}

test_all if places({}) == set()

test_split if places({"binding": {"weights": {"stable": 90, "canary": 10}}}) == set()

test_below if places({"binding": {"weights": {"stable": 99}}}) == {["weights"]}

test_above if places({"binding": {"weights": {"stable": 100, "canary": 1}}}) == {["weights"]}

test_negative if places({"binding": {"weights": {"stable": 100, "canary": -1}}}) == {["weights", "canary"]}

test_above_a_share if places({"binding": {"weights": {"stable": 101}}}) == {["weights", "stable"]}

test_fraction if places({"binding": {"weights": {"stable": 99.5}}}) == {["weights", "stable"]}

test_zero if places({"binding": {"weights": {"stable": 100, "canary": 0}}}) == set()

test_wrong_type if places({"binding": {"weights": "all"}}) == {["weights"]}

test_weight_wrong_type if places({"binding": {"weights": {"stable": "100"}}}) == {["weights", "stable"]}

test_missing if complaints({}) == {["weights"]}
