# METADATA
# scope: package
# title: Concurrent executions are within the tier's limit
# description: |
#   Every instance and stream holds an execution context with its own scratch memory on the device, whether it
#   works or not.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Lower `execution.instances` or `execution.streams`.
package trtops.spec.executions_bounded

import data.trtops.lib.facts
import data.trtops.lib.limits
import data.trtops.lib.text

needs := [
	{"fact": ["facts", "execution", "instances"], "kind": "count", "path": ["execution", "instances"]},
	{"fact": ["facts", "execution", "streams"], "kind": "count", "path": ["execution", "streams"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("%s instances with %s streams are %s executions at once, tier %s allows 1 to %s", [
		text.number(instances),
		text.number(streams),
		text.number(instances * streams),
		limits.tier,
		text.number(limits.value("executions")),
	]),
	"path": ["execution", "instances"],
} if {
	instances := input.facts.execution.instances
	streams := input.facts.execution.streams
	is_number(instances)
	is_number(streams)
	not within(instances * streams)
}

within(executions) if {
	executions >= 1
	executions <= limits.current.executions
}
