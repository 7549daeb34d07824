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
	"message": sprintf("%d instances with %d streams are %d executions at once, tier %s allows 1 to %s", [
		instances,
		streams,
		instances * streams,
		limits.tier,
		text.number(limits.value("executions")),
	]),
	"path": ["execution", "instances"],
} if {
	instances := facts.at(["facts", "execution", "instances"])
	streams := facts.at(["facts", "execution", "streams"])
	facts.is_count(instances)
	facts.is_count(streams)
	not within(instances * streams)
}

within(executions) if {
	executions >= 1
	facts.at_most(executions, limits.value("executions"))
}
