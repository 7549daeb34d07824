# METADATA
# scope: package
# title: The builder tries hard enough
# description: |
#   The builder's level trades build time for speed. What many clients use is built once and run for months, so a
#   tier may demand a level.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Raise `builder.optimization_level`.
package trtops.spec.optimization_level_sufficient

import data.trtops.lib.facts
import data.trtops.lib.limits
import data.trtops.lib.text

needs := [{"fact": ["facts", "builder", "optimization_level"], "kind": "count", "path": ["builder", "optimization_level"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("optimization level is %s, tier %s takes %s to 5", [
		text.number(level),
		limits.tier,
		text.number(limits.value("optimization_level")),
	]),
	"path": ["builder", "optimization_level"],
} if {
	level := input.facts.builder.optimization_level
	is_number(level)
	not within(level)
}

within(level) if {
	level <= 5
	level >= limits.current.optimization_level
}
