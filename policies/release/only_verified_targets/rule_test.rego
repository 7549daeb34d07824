package trtops.release.only_verified_targets_test

import data.trtops.release.only_verified_targets

base := {"release": {"artifacts": [{"target": "cpu", "artifact": "sha256:a", "verified": true, "evidence_artifact": "sha256:a", "evidence_spec": "sha256:s"}], "spec": "sha256:s", "skipped": {}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in only_verified_targets.findings with input as document
}

test_verified if places({}) == set()

test_not_verified if places({"release": {"artifacts": [{"target": "cpu", "artifact": "sha256:a", "verified": false, "evidence_artifact": "sha256:a", "evidence_spec": "sha256:s"}], "spec": "sha256:s", "skipped": {}}}) == {["artifacts", 0]}

test_not_at_hand if places({"release": {"artifacts": [{"target": "cpu", "artifact": "sha256:a", "verified": null, "evidence_artifact": "sha256:a", "evidence_spec": "sha256:s"}], "spec": "sha256:s", "skipped": {}}}) == {["artifacts", 0]}

test_another_artifact if places({"release": {"artifacts": [{"target": "cpu", "artifact": "sha256:a", "verified": true, "evidence_artifact": "sha256:b", "evidence_spec": "sha256:s"}], "spec": "sha256:s", "skipped": {}}}) == {["artifacts", 0, "evidence"]}

test_another_spec if places({"release": {"artifacts": [{"target": "cpu", "artifact": "sha256:a", "verified": true, "evidence_artifact": "sha256:a", "evidence_spec": null}], "spec": "sha256:s", "skipped": {}}}) == {["artifacts", 0, "evidence"]}

test_twice if places({"release": {"artifacts": [{"target": "cpu", "artifact": "sha256:a", "verified": true, "evidence_artifact": "sha256:a", "evidence_spec": "sha256:s"}, {"target": "cpu", "artifact": "sha256:a", "verified": true, "evidence_artifact": "sha256:a", "evidence_spec": "sha256:s"}], "spec": "sha256:s", "skipped": {}}}) == {["artifacts", 1, "target"]}

test_two if places({"release": {"artifacts": [{"target": "cpu", "artifact": "sha256:a", "verified": true, "evidence_artifact": "sha256:a", "evidence_spec": "sha256:s"}, {"target": "gpu", "artifact": "sha256:a", "verified": true, "evidence_artifact": "sha256:a", "evidence_spec": "sha256:s"}], "spec": "sha256:s", "skipped": {}}}) == set()

test_skipped_too if places({"release": {"artifacts": [{"target": "cpu", "artifact": "sha256:a", "verified": true, "evidence_artifact": "sha256:a", "evidence_spec": "sha256:s"}], "spec": "sha256:s", "skipped": {"cpu": "no reason"}}}) == {["artifacts", 0, "target"]}

test_none if places({"release": {"artifacts": [], "spec": "sha256:s", "skipped": {}}}) == {["artifacts"]}

test_wrong_element if places({"release": {"artifacts": ["cpu"], "spec": "sha256:s", "skipped": {}}}) == {["artifacts"], ["artifacts", 0]}

test_target_wrong_type if places({"release": {"artifacts": [{"target": 5, "artifact": "sha256:a", "verified": false, "evidence_artifact": "sha256:a", "evidence_spec": "sha256:s"}], "spec": "sha256:s", "skipped": {}}}) == {["artifacts", 0]}

test_missing if complaints({}) == {["artifacts"], ["spec"]}
