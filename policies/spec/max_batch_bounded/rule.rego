# METADATA
# scope: package
# title: The largest batch is within the tier's limit
# description: |
#   A large batch is good for throughput and bad for everybody who waits for it. How far that may go follows from
#   the tier.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Lower `batching.max_batch`, or raise the tier.
package trtops.spec.max_batch_bounded

import data.trtops.lib.batching
import data.trtops.lib.facts
import data.trtops.lib.limits
import data.trtops.lib.text

findings contains finding if some finding in batching.broken.max_batch

findings contains facts.placed(
	sprintf("max_batch is %s, tier %s allows %s", [
		text.number(rows),
		limits.tier,
		text.number(limits.value("max_batch")),
	]),
	["batching", "max_batch"],
	place.origin,
) if {
	some place in batching.places
	rows := place.values.max_batch
	is_number(rows)
	not within(rows)
}

within(rows) if rows <= limits.current.max_batch
