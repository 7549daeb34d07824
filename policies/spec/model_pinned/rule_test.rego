package trtops.spec.model_pinned_test

import data.trtops.spec.model_pinned

base := {"facts": {"model_sha256": "abababababababababababababababababababababababababababababababab"}, "preflight": {"model": {"content": "sha256:abababababababababababababababababababababababababababababababab"}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in model_pinned.findings with input as document
}

test_pinned if places({}) == set()

test_zeros if places({"facts": {"model_sha256": "0000000000000000000000000000000000000000000000000000000000000000"}, "preflight": {"model": {"content": "sha256:0000000000000000000000000000000000000000000000000000000000000000"}}}) == {["model", "sha256"]}

test_empty_file if places({"facts": {"model_sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}) == {["model", "sha256"]}

test_too_short if places({"facts": {"model_sha256": "abababababababababababababababababababababababababababababababa"}}) == {["model", "sha256"]}

test_upper_case if places({"facts": {"model_sha256": "ABABABABABABABABABABABABABABABABABABABABABABABABABABABABABABABAB"}}) == {["model", "sha256"]}

test_another_file if places({"preflight": {"model": {"content": "sha256:cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"}}}) == {["model", "sha256"]}

test_wrong_type if places({"facts": {"model_sha256": 12}}) == {["model", "sha256"]}

test_missing if complaints({}) == {["model", "sha256"]}
