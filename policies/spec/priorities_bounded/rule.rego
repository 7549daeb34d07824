# METADATA
# scope: package
# title: Priority levels are within the tier's limit
# description: |
#   Each level is a queue of its own. More levels than anybody can tell apart starve the lowest.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Lower `batching.priorities`.
package trtops.spec.priorities_bounded

import data.trtops.lib.batching
import data.trtops.lib.facts
import data.trtops.lib.limits
import data.trtops.lib.text

findings contains finding if some finding in batching.broken.priorities

findings contains facts.placed(
	sprintf("there are %s priority levels, tier %s allows 1 to %s", [
		text.number(levels),
		limits.tier,
		text.number(limits.value("priorities")),
	]),
	["batching", "priorities"],
	place.origin,
) if {
	some place in batching.places
	levels := place.values.priorities
	is_number(levels)
	not within(levels)
}

within(levels) if {
	levels >= 1
	levels <= limits.current.priorities
}
