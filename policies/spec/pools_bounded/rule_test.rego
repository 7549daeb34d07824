package trtops.spec.pools_bounded_test

import data.trtops.spec.pools_bounded

base := {"tier": "bronze", "facts": {"memory": {"device_pool_bytes": 4194304, "pinned_pool_bytes": 2097152, "tactic_shared_memory_bytes": 1048576, "dla_bytes": 6291456}}}

limits := {"strictest": "gold", "tiers": {"bronze": {"device_pool_mib": 4, "pinned_pool_mib": 2, "tactic_shared_memory_mib": 1, "dla_mib": 6}, "gold": {"device_pool_mib": 2, "pinned_pool_mib": 1, "tactic_shared_memory_mib": 0, "dla_mib": 3}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in pools_bounded.findings with input as document with data.limits as limits
}

test_at_the_limits if places({}) == set()

test_device_pool_above if places({"facts": {"memory": {"device_pool_bytes": 4194305}}}) == {["memory", "device_pool"]}

test_pinned_pool_above if places({"facts": {"memory": {"pinned_pool_bytes": 2097153}}}) == {["memory", "pinned_pool"]}

test_tactic_shared_memory_above if places({"facts": {"memory": {"tactic_shared_memory_bytes": 1048577}}}) == {["memory", "tactic_shared_memory"]}

test_dla_above if places({"facts": {"memory": {"dla_bytes": 6291457}}}) == {["memory", "dla"]}

test_unset if places({"facts": {"memory": {"device_pool_bytes": null, "pinned_pool_bytes": null, "tactic_shared_memory_bytes": null, "dla_bytes": null}}}) == set()

test_wrong_type if places({"facts": {"memory": {"device_pool_bytes": true}}}) == {["memory", "device_pool"]}

test_missing if complaints({}) == {["memory", "device_pool"], ["memory", "pinned_pool"], ["memory", "tactic_shared_memory"], ["memory", "dla"]}
