package trtops.evidence.same_artifact_test

import data.trtops.evidence.same_artifact

base := {"engine": "e", "evidence": {"spec": "sha256:s", "model": "sha256:m", "plan": "sha256:p", "artifact": "sha256:a", "engine": "e", "target": "t"}, "expected": {"spec": "sha256:s", "model": "sha256:m", "plan": "sha256:p", "artifact": "sha256:a"}, "declared": {"target": {"id": "t"}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in same_artifact.findings with input as document
}

test_the_same if places({}) == set()

test_another_spec if places({"expected": {"spec": "sha256:x"}}) == {["spec"]}

test_another_model if places({"expected": {"model": "sha256:x"}}) == {["model"]}

test_another_plan if places({"expected": {"plan": "sha256:x"}}) == {["plan"]}

test_another_artifact if places({"expected": {"artifact": "sha256:x"}}) == {["artifact"]}

test_not_known if places({"expected": {"plan": null}}) == {["plan"]}

test_another_engine if places({"engine": "f"}) == {["engine"]}

test_another_target if places({"declared": {"target": {"id": "u"}}}) == {["target"]}

test_wrong_type if places({"evidence": {"spec": 1}}) == {["spec"]}

test_missing if complaints({}) == {["spec"], ["model"], ["plan"], ["artifact"], ["engine"], ["target"]}
