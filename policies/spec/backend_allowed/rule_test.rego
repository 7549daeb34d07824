package trtops.spec.backend_allowed_test

import data.trtops.spec.backend_allowed

base := {"environment": "prod", "facts": {"targets": [{"id": "t", "backend": "tensorrt", "version": "8.6", "version_numbers": [8, 6]}]}}

backends := {"environments": {"local": {"allowed": ["onnxruntime", "tensorrt", "fake"]}, "default": {"allowed": ["onnxruntime", "tensorrt"]}}, "versions": {"tensorrt": {"first": [8, 6], "before": [12]}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in backend_allowed.findings with input as document with data.backends as backends
}

test_first_version if places({}) == set()

test_below_first if places({"facts": {"targets": [{"id": "t", "backend": "tensorrt", "version": "8.5.9", "version_numbers": [8, 5, 9]}]}}) == {["targets", 0, "version"]}

test_last_version if places({"facts": {"targets": [{"id": "t", "backend": "tensorrt", "version": "11.99", "version_numbers": [11, 99]}]}}) == set()

test_too_new if places({"facts": {"targets": [{"id": "t", "backend": "tensorrt", "version": "12.0", "version_numbers": [12, 0]}]}}) == {["targets", 0, "version"]}

test_no_numbers if places({"facts": {"targets": [{"id": "t", "backend": "tensorrt", "version": "latest", "version_numbers": null}]}}) == {["targets", 0, "version"]}

test_unpinned if places({"facts": {"targets": [{"id": "t", "backend": "tensorrt", "version": null, "version_numbers": null}]}}) == set()

test_fake_elsewhere if places({"facts": {"targets": [{"id": "t", "backend": "fake", "version": null, "version_numbers": null}]}}) == {["targets", 0, "backend"]}

test_fake_here if places({"environment": "local", "facts": {"targets": [{"id": "t", "backend": "fake", "version": null, "version_numbers": null}]}}) == set()

test_versions_unknown if places({"facts": {"targets": [{"id": "t", "backend": "onnxruntime", "version": "1.2", "version_numbers": [1, 2]}]}}) == {["targets", 0, "version"]}

test_wrong_type if places({"facts": {"targets": [{"id": "t", "backend": 7, "version": 8.6, "version_numbers": [8, 6]}]}}) == {["targets", 0, "backend"], ["targets", 0, "version"]}

test_missing if complaints({}) == {["targets"]}

test_no_table_no_pass if {
	found := {finding.path |
		some finding in backend_allowed.findings with input as object.union(base, {}) with data.backends as {}
	}
	found == {["targets", 0, "backend"]}
}
