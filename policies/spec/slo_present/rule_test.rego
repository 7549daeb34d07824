package trtops.spec.slo_present_test

import data.trtops.spec.slo_present

base := {"tier": "gold", "facts": {"targets": [{"id": "t", "needs_gpu": true, "slo": {"p99_us": 5000, "throughput": null, "throughput_milli": null}}]}}

limits := {"strictest": "gold", "tiers": {"gold": {"slo_required": true}, "bronze": {"slo_required": false}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in slo_present.findings with input as document with data.limits as limits
}

test_stated if places({}) == set()

test_none if places({"facts": {"targets": [{"id": "t", "needs_gpu": true, "slo": null}]}}) == {["targets", 0, "slo"]}

test_throughput_is_no_latency if places({"facts": {"targets": [{"id": "t", "needs_gpu": true, "slo": {"p99_us": null, "throughput": null, "throughput_milli": null}}]}}) == {["targets", 0, "slo"]}

test_zero if places({"facts": {"targets": [{"id": "t", "needs_gpu": true, "slo": {"p99_us": 0, "throughput": null, "throughput_milli": null}}]}}) == {["targets", 0, "slo"]}

test_bronze_needs_none if places({"tier": "bronze", "facts": {"targets": [{"id": "t", "needs_gpu": true, "slo": null}]}}) == set()

test_cpu_needs_none if places({"facts": {"targets": [{"id": "t", "needs_gpu": false, "slo": null}]}}) == set()

test_unknown_tier_is_strict if places({"tier": "x", "facts": {"targets": [{"id": "t", "needs_gpu": true, "slo": null}]}}) == {["targets", 0, "slo"]}

test_wrong_type if places({"facts": {"targets": [{"id": "t", "needs_gpu": true, "slo": "5ms"}]}}) == {["targets", 0, "slo"]}

test_wrong_need if places({"facts": {"targets": [{"id": "t", "needs_gpu": null, "slo": {"p99_us": 1, "throughput": null, "throughput_milli": null}}]}}) == {["targets", 0]}

test_missing if complaints({}) == {["targets"]}
