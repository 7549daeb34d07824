# METADATA
# scope: package
# title: The engine fits into its pools and its device
# description: |
#   The executor takes pools and engine when it loads a release. What does not fit is refused on the service's
#   machine; here it is refused before.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Raise `memory.device_pool` or `memory.pinned_pool`, lower the largest shapes, or run fewer instances.
package trtops.evidence.memory_within_pools

import data.trtops.lib.facts
import data.trtops.lib.limits
import data.trtops.lib.text

needs := [
	{"fact": ["memory", "bindings_bytes"], "kind": "count?", "path": ["size_bytes"]},
	{"fact": ["memory", "executions"], "kind": "count", "path": ["size_bytes"]},
	{"fact": ["memory", "device_bytes"], "kind": "count", "path": ["size_bytes"]},
	{"fact": ["memory", "device_memory_bytes"], "kind": "count?", "path": ["device", "memory_bytes"]},
	{"fact": ["declared", "memory", "device_pool_bytes"], "kind": "count?", "path": ["size_bytes"]},
	{"fact": ["declared", "memory", "pinned_pool_bytes"], "kind": "count?", "path": ["size_bytes"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("%s executions at once take %s of inputs and outputs, %s has %s", [
		text.number(executions),
		text.bytes(bindings * executions),
		pool,
		text.bytes(size),
	]),
	"path": ["size_bytes"],
} if {
	bindings := facts.at(["memory", "bindings_bytes"])
	executions := facts.at(["memory", "executions"])
	facts.is_count(bindings)
	facts.is_count(executions)
	some pool in ["device_pool", "pinned_pool"]
	size := facts.at(["declared", "memory", sprintf("%s_bytes", [pool])])
	facts.is_count(size)
	bindings * executions > size
}

findings contains {
	"message": sprintf("engine and pools take %s, %s %% of the device are %s", [
		text.bytes(needed),
		text.number(limits.value("device_memory_percent")),
		text.bytes(share(capacity)),
	]),
	"path": ["size_bytes"],
} if {
	facts.at(["evidence", "device", "kind"]) != "cpu"
	needed := facts.at(["memory", "device_bytes"])
	capacity := facts.at(["memory", "device_memory_bytes"])
	facts.is_count(needed)
	facts.is_count(capacity)
	not facts.at_most(needed, share(capacity))
}

default share(_) := null

share(capacity) := floor((capacity * percent) / 100) if {
	percent := limits.value("device_memory_percent")
	is_number(percent)
}
