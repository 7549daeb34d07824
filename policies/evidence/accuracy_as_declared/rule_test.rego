package trtops.evidence.accuracy_as_declared_test

import data.trtops.evidence.accuracy_as_declared

base := {"evidence": {"accuracy": {"passed": true, "elements": 10, "outside": 0, "atol": 0.001, "rtol": 0.01, "metrics": {"top1": 1}}}, "declared": {"accuracy": {"atol": 0.001, "rtol": 0.01, "metric": {"top1": 1}}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in accuracy_as_declared.findings with input as document
}

test_as_declared if places({}) == set()

test_tighter if places({"evidence": {"accuracy": {"atol": 0.0001}}}) == set()

test_looser_atol if places({"evidence": {"accuracy": {"atol": 0.0011}}}) == {["accuracy", "atol"]}

test_looser_rtol if places({"evidence": {"accuracy": {"rtol": 0.1}}}) == {["accuracy", "rtol"]}

test_metric_below if places({"evidence": {"accuracy": {"metrics": {"top1": 0.99}}}}) == {["accuracy", "metrics", "top1"]}

test_metric_not_computed if places({"declared": {"accuracy": {"atol": 0.001, "rtol": 0.01, "metric": {"top1": 1, "cosine": 0.5}}}}) == {["accuracy", "metrics", "cosine"]}

test_outside if places({"evidence": {"accuracy": {"outside": 1}}}) == {["accuracy", "outside"]}

test_outside_wrong_type if places({"evidence": {"accuracy": {"outside": "0"}}}) == {["accuracy", "outside"]}

test_nothing_declared if places({"declared": {"accuracy": null}}) == set()

test_not_compared if places({"evidence": {"accuracy": null}}) == set()

test_wrong_type if places({"evidence": {"accuracy": {"atol": "x"}}}) == {["accuracy", "atol"]}

test_declared_wrong_type if places({"declared": {"accuracy": 5}}) == {["accuracy"]}

test_missing if complaints({}) == {["accuracy"]}
