package trtops.evidence.memory_within_pools_test

import data.trtops.evidence.memory_within_pools

base := {"tier": "bronze", "evidence": {"device": {"kind": "gpu"}}, "memory": {"bindings_bytes": 100, "executions": 2, "device_bytes": 800, "device_memory_bytes": 1000}, "declared": {"memory": {"device_pool_bytes": 200, "pinned_pool_bytes": 200}}}

limits := {"strictest": "gold", "tiers": {"bronze": {"device_memory_percent": 80}, "gold": {"device_memory_percent": 80}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in memory_within_pools.findings with input as document with data.limits as limits
}

test_at_the_limits if places({}) == set()

test_io_above if places({"memory": {"bindings_bytes": 101}}) == {["size_bytes"]}

test_pinned_pool_alone if places({"declared": {"memory": {"pinned_pool_bytes": 199}}}) == {["size_bytes"]}

test_pools_unset if places({"memory": {"bindings_bytes": 1000000000}, "declared": {"memory": {"device_pool_bytes": null, "pinned_pool_bytes": null}}}) == set()

test_io_unknown if places({"memory": {"bindings_bytes": null}}) == set()

test_device_full if places({"memory": {"device_bytes": 801}}) == {["size_bytes"]}

test_memory_unknown if places({"memory": {"device_bytes": 1000000000, "device_memory_bytes": null}}) == set()

test_cpu_is_not_judged if places({"evidence": {"device": {"kind": "cpu"}}, "memory": {"device_bytes": 1000000000}}) == set()

test_wrong_type if places({"memory": {"bindings_bytes": "x", "executions": null}}) == {["size_bytes"]}

test_missing if complaints({}) == {["size_bytes"], ["device", "memory_bytes"]}

test_no_limit_no_pass if {
	found := {finding.path |
		some finding in memory_within_pools.findings with input as object.union(base, {}) with data.limits as {}
	}
	found == {["size_bytes"]}
}
