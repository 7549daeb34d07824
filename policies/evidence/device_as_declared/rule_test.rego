package trtops.evidence.device_as_declared_test

import data.trtops.evidence.device_as_declared

base := {"declared": {"target": {"backend": "tensorrt", "needs_gpu": true, "gpu": {"name": "H200", "compute_capability": [9, 0], "mig": null}, "compute_capability": null}}, "evidence": {"device": {"kind": "gpu", "name": "NVIDIA H200", "compute_capability": [9, 0], "mig": null}, "accuracy": {}, "benchmark": {"device": {"kind": "gpu", "name": "NVIDIA H200", "compute_capability": [9, 0], "mig": null}}}}

gpus := {"allowed": [{"name": "H200", "compute_capability": "9.0", "devices": ["NVIDIA H200"]}]}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in device_as_declared.findings with input as document with data.gpus as gpus
}

test_as_declared if places({}) == set()

test_exact_name if places({"declared": {"target": {"backend": "tensorrt", "needs_gpu": true, "gpu": {"name": "nvidia h200", "compute_capability": [9, 0], "mig": null}, "compute_capability": null}}}) == set()

test_another_gpu if places({"evidence": {"device": {"kind": "gpu", "name": "NVIDIA H100 PCIe", "compute_capability": [9, 0], "mig": null}, "accuracy": {}, "benchmark": {"device": {"kind": "gpu", "name": "NVIDIA H100 PCIe", "compute_capability": [9, 0], "mig": null}}}}) == {["device", "name"]}

test_another_capability if places({"evidence": {"device": {"kind": "gpu", "name": "NVIDIA H200", "compute_capability": [8, 9], "mig": null}, "accuracy": {}, "benchmark": {"device": {"kind": "gpu", "name": "NVIDIA H200", "compute_capability": [8, 9], "mig": null}}}}) == {["device", "compute_capability"]}

test_a_slice if places({"evidence": {"device": {"kind": "gpu", "name": "NVIDIA H200", "compute_capability": [9, 0], "mig": "1g.18gb"}, "accuracy": {}, "benchmark": {"device": {"kind": "gpu", "name": "NVIDIA H200", "compute_capability": [9, 0], "mig": "1g.18gb"}}}}) == {["device", "mig"]}

test_a_cpu if places({"evidence": {"device": {"kind": "cpu", "name": "x86_64", "compute_capability": null, "mig": null}, "accuracy": {}, "benchmark": {"device": {"kind": "cpu", "name": "x86_64", "compute_capability": null, "mig": null}}}}) == {["device", "kind"], ["device", "name"], ["device", "compute_capability"]}

test_cpu_target if places({"declared": {"target": {"backend": "onnxruntime", "needs_gpu": false, "gpu": null, "compute_capability": null}}, "evidence": {"device": {"kind": "cpu", "name": "x86_64", "compute_capability": null, "mig": null}, "accuracy": {}, "benchmark": {"device": {"kind": "cpu", "name": "x86_64", "compute_capability": null, "mig": null}}}}) == set()

test_cpu_target_on_gpu if places({"declared": {"target": {"backend": "onnxruntime", "needs_gpu": false, "gpu": null, "compute_capability": null}}, "evidence": {"device": {"kind": "gpu", "name": "NVIDIA H200", "compute_capability": [9, 0], "mig": null}, "accuracy": {}, "benchmark": {"device": {"kind": "gpu", "name": "NVIDIA H200", "compute_capability": [9, 0], "mig": null}}}}) == {["device", "kind"]}

test_fake_takes_any if places({"declared": {"target": {"backend": "fake", "needs_gpu": false, "gpu": null, "compute_capability": null}}, "evidence": {"device": {"kind": "cpu", "name": "x86_64", "compute_capability": null, "mig": null}, "accuracy": {}, "benchmark": {"device": {"kind": "cpu", "name": "x86_64", "compute_capability": null, "mig": null}}}}) == set()

test_cpu_backend_on_a_named_gpu if places({"declared": {"target": {"backend": "onnxruntime", "needs_gpu": false, "gpu": {"name": "H200", "compute_capability": [9, 0], "mig": null}, "compute_capability": null}}}) == set()

test_capability_alone if places({"declared": {"target": {"backend": "tensorrt", "needs_gpu": true, "gpu": null, "compute_capability": [9, 0]}}}) == set()

test_capability_alone_differs if places({"declared": {"target": {"backend": "tensorrt", "needs_gpu": true, "gpu": null, "compute_capability": [8, 6]}}}) == {["device", "compute_capability"]}

test_measured_elsewhere if places({"evidence": {"device": {"kind": "gpu", "name": "NVIDIA H200", "compute_capability": [9, 0], "mig": null}, "accuracy": {}, "benchmark": {"device": {"kind": "gpu", "name": "NVIDIA A10", "compute_capability": [9, 0], "mig": null}}}}) == {["benchmark", "device"]}

test_nothing_ran if places({"evidence": {"device": {"kind": "cpu", "name": "x86_64", "compute_capability": null, "mig": null}, "accuracy": null, "benchmark": null}}) == set()

test_gpu_without_a_name if places({"declared": {"target": {"backend": "tensorrt", "needs_gpu": true, "gpu": {"name": null, "compute_capability": [9, 0], "mig": null}, "compute_capability": null}}}) == {["device", "name"]}

test_wrong_type if places({"evidence": {"device": "gpu"}}) == {["device"], ["device", "name"], ["device", "compute_capability"], ["device", "mig"], ["benchmark", "device"]}

test_missing if complaints({}) == {["target"], ["device"], ["accuracy"], ["benchmark"]}
