# METADATA
# scope: package
# title: The benchmark measures long enough
# description: |
#   A quantile of a handful of executions is noise. How long each batch size must be measured follows from the
#   tier.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Raise `benchmark.duration`.
package trtops.spec.benchmark_long_enough

import data.trtops.lib.facts
import data.trtops.lib.limits
import data.trtops.lib.text

needs := [{"fact": ["facts", "benchmark", "duration_us"], "kind": "count", "path": ["benchmark", "duration"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("each batch size is measured for %s, tier %s needs %s", [
		text.microseconds(duration),
		limits.tier,
		text.microseconds(limits.microseconds("benchmark_ms")),
	]),
	"path": ["benchmark", "duration"],
} if {
	duration := input.facts.benchmark.duration_us
	is_number(duration)
	not within(duration)
}

within(duration) if duration >= limits.current.benchmark_ms * 1000
