# METADATA
# scope: package
# title: A tier that promises latency says which
# description: |
#   A tier whose clients rely on latency states the p99 that each GPU target must reach. The gate on evidence
#   holds the engine to it; without it there is nothing to hold it to.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Write `slo: {p99: …}` under the target.
package trtops.spec.slo_present

import data.trtops.lib.facts
import data.trtops.lib.limits

findings contains finding if some finding in facts.unknown_targets

findings contains finding if {
	some finding in facts.malformed_each(
		{"fact": ["facts", "targets"], "path": ["targets"]},
		[{"fact": ["needs_gpu"], "kind": "boolean", "path": []}],
	)
}

findings contains {
	"message": sprintf("tier %s needs a p99 for %s", [limits.tier, target.id]),
	"path": ["targets", index, "slo"],
} if {
	not limits.current.slo_required == false
	some index, target in facts.targets
	target.needs_gpu == true
	not states(target)
}

states(target) if {
	is_number(target.slo.p99_us)
	target.slo.p99_us > 0
}
