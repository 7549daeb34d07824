package trtops.evidence.backend_as_declared_test

import data.trtops.evidence.backend_as_declared

base := {"declared": {"target": {"backend": "tensorrt", "version": "8.6", "version_numbers": [8, 6]}}, "evidence": {"benchmark": {"backend": "tensorrt", "backend_version": "8.6.1", "backend_numbers": [8, 6, 1]}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in backend_as_declared.findings with input as document
}

test_begins_with if places({}) == set()

test_equal if places({"evidence": {"benchmark": {"backend": "tensorrt", "backend_version": "8.6", "backend_numbers": [8, 6]}}}) == set()

test_another_version if places({"evidence": {"benchmark": {"backend": "tensorrt", "backend_version": "8.5.3", "backend_numbers": [8, 5, 3]}}}) == {["benchmark", "backend_version"]}

test_longer_is_not_met if places({"declared": {"target": {"backend": "tensorrt", "version": "8.6.1.6", "version_numbers": [8, 6, 1, 6]}}}) == {["benchmark", "backend_version"]}

test_86_is_not_8_6 if places({"evidence": {"benchmark": {"backend": "tensorrt", "backend_version": "86", "backend_numbers": [86]}}}) == {["benchmark", "backend_version"]}

test_another_backend if places({"evidence": {"benchmark": {"backend": "onnxruntime", "backend_version": "8.6.1", "backend_numbers": [8, 6, 1]}}}) == {["benchmark", "backend"]}

test_unpinned if places({"declared": {"target": {"backend": "tensorrt", "version": null, "version_numbers": null}}}) == set()

test_no_numbers if places({"declared": {"target": {"backend": "tensorrt", "version": "latest", "version_numbers": null}}}) == {["benchmark", "backend_version"]}

test_not_measured if places({"evidence": {"benchmark": null}}) == set()

test_wrong_type if places({"evidence": {"benchmark": {"backend": 7, "backend_version": 8.6, "backend_numbers": [8, 6, 1]}}}) == {["benchmark", "backend"], ["benchmark", "backend_version"]}

test_missing if complaints({}) == {["target", "backend"], ["target", "version"], ["benchmark"]}
