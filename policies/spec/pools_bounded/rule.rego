# METADATA
# scope: package
# title: Memory pools are within the tier's limits
# description: |
#   The executor allocates pools when it loads the engine and keeps them, so a pool that is too large takes
#   memory from every neighbour.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Lower the pool, or raise the tier.
package trtops.spec.pools_bounded

import data.trtops.lib.facts
import data.trtops.lib.limits
import data.trtops.lib.text

pools := {
	"device_pool": "device_pool_mib",
	"pinned_pool": "pinned_pool_mib",
	"tactic_shared_memory": "tactic_shared_memory_mib",
	"dla": "dla_mib",
}

needs := [need |
	some pool, _ in pools
	need := {"fact": ["facts", "memory", sprintf("%s_bytes", [pool])], "kind": "count?", "path": ["memory", pool]}
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("%s is %s, tier %s allows %s", [
		pool,
		text.bytes(size),
		limits.tier,
		text.bytes(limits.bytes(key)),
	]),
	"path": ["memory", pool],
} if {
	some pool, key in pools
	size := input.facts.memory[sprintf("%s_bytes", [pool])]
	is_number(size)
	not within(size, key)
}

within(size, key) if size <= limits.current[key] * 1048576
