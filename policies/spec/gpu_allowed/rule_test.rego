package trtops.spec.gpu_allowed_test

import data.trtops.spec.gpu_allowed

base := {"facts": {"targets": [{"id": "t", "needs_gpu": true, "gpu": {"name": "H200", "compute_capability": [9, 0], "mig": null}, "compute_capability": null}]}}

gpus := {"allowed": [{"name": "H200", "compute_capability": "9.0", "devices": ["NVIDIA H200"]}], "compute_capabilities": ["8.6", "9.0"]}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in gpu_allowed.findings with input as document with data.gpus as gpus
}

test_known if places({}) == set()

test_case_does_not_matter if places({"facts": {"targets": [{"id": "t", "needs_gpu": true, "gpu": {"name": "h200", "compute_capability": [9, 0], "mig": null}, "compute_capability": null}]}}) == set()

test_unknown if places({"facts": {"targets": [{"id": "t", "needs_gpu": true, "gpu": {"name": "GTX 1080", "compute_capability": [9, 0], "mig": null}, "compute_capability": null}]}}) == {["targets", 0, "gpu"]}

test_wrong_capability if places({"facts": {"targets": [{"id": "t", "needs_gpu": true, "gpu": {"name": "H200", "compute_capability": [9, 1], "mig": null}, "compute_capability": null}]}}) == {["targets", 0, "gpu"]}

test_no_capability if places({"facts": {"targets": [{"id": "t", "needs_gpu": true, "gpu": {"name": "H200", "compute_capability": null, "mig": null}, "compute_capability": null}]}}) == {["targets", 0, "gpu"]}

test_name_wrong_type if places({"facts": {"targets": [{"id": "t", "needs_gpu": true, "gpu": {"name": 200, "compute_capability": [9, 0], "mig": null}, "compute_capability": null}]}}) == {["targets", 0, "gpu"]}

test_capability_alone if places({"facts": {"targets": [{"id": "t", "needs_gpu": true, "gpu": null, "compute_capability": [8, 6]}]}}) == set()

test_capability_unknown if places({"facts": {"targets": [{"id": "t", "needs_gpu": true, "gpu": null, "compute_capability": [5, 0]}]}}) == {["targets", 0, "compute_capability"]}

test_names_none if places({"facts": {"targets": [{"id": "t", "needs_gpu": true, "gpu": null, "compute_capability": null}]}}) == {["targets", 0]}

test_cpu_names_none if places({"facts": {"targets": [{"id": "t", "needs_gpu": false, "gpu": null, "compute_capability": null}]}}) == set()

test_wrong_type if places({"facts": {"targets": [{"id": "t", "needs_gpu": true, "gpu": "H200", "compute_capability": null}]}}) == {["targets", 0, "gpu"]}

test_capability_wrong_type if places({"facts": {"targets": [{"id": "t", "needs_gpu": true, "gpu": {"name": "H200", "compute_capability": [9, 0], "mig": null}, "compute_capability": "9.0"}]}}) == {["targets", 0, "compute_capability"]}

test_missing if complaints({}) == {["targets"]}

test_no_list_no_pass if {
	found := {finding.path |
		some finding in gpu_allowed.findings with input as object.union(base, {}) with data.gpus as {}
	}
	found == {["targets", 0, "gpu"]}
}
