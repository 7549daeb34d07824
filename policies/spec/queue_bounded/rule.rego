# METADATA
# scope: package
# title: The request queue is bounded in length and time
# description: |
#   A queue that is too long answers requests whose clients have left, and one with no timeout keeps them for
#   ever. Waiting for a fuller batch must end well before the request's own time does.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Choose `batching.queue.max_size`, `batching.queue.timeout` and `batching.max_queue_delay` within the tier's
#     limits, the delay below the timeout.
package trtops.spec.queue_bounded

import data.trtops.lib.batching
import data.trtops.lib.facts
import data.trtops.lib.limits
import data.trtops.lib.text

needs := array.concat(
	array.concat(batching.needs(["queue", "max_size"], "count"), batching.needs(["queue", "timeout_us"], "count")),
	batching.needs(["max_queue_delay_us"], "count"),
)

findings contains finding if some finding in facts.malformed(needs)

findings contains facts.placed(
	sprintf("the queue takes %d requests, tier %s allows %s", [
		size,
		limits.tier,
		text.number(limits.value("queue_size")),
	]),
	["batching", "queue", "max_size"],
	place.origin,
) if {
	some place in batching.places
	size := place.values.queue.max_size
	facts.is_count(size)
	not facts.at_most(size, limits.value("queue_size"))
}

findings contains facts.placed(
	sprintf("a request may wait %s, tier %s allows %s", [
		text.microseconds(timeout),
		limits.tier,
		text.microseconds(limits.microseconds("queue_timeout_ms")),
	]),
	["batching", "queue", "timeout"],
	place.origin,
) if {
	some place in batching.places
	timeout := place.values.queue.timeout_us
	facts.is_count(timeout)
	not facts.at_most(timeout, limits.microseconds("queue_timeout_ms"))
}

findings contains facts.placed("a request has no time to wait in the queue", ["batching", "queue", "timeout"], place.origin) if {
	some place in batching.places
	place.values.queue.timeout_us == 0
}

findings contains facts.placed(
	sprintf("a batch may wait %s for more requests, tier %s allows %s", [
		text.microseconds(delay),
		limits.tier,
		text.microseconds(limits.microseconds("queue_delay_ms")),
	]),
	["batching", "max_queue_delay"],
	place.origin,
) if {
	some place in batching.places
	delay := place.values.max_queue_delay_us
	facts.is_count(delay)
	not facts.at_most(delay, limits.microseconds("queue_delay_ms"))
}

findings contains facts.placed(
	sprintf("a batch may wait %s for more requests, and each request only %s in all", [
		text.microseconds(delay),
		text.microseconds(timeout),
	]),
	["batching", "max_queue_delay"],
	place.origin,
) if {
	some place in batching.places
	delay := batching.effective(place, "max_queue_delay_us")
	timeout := batching.effective(place, "queue").timeout_us
	facts.is_count(delay)
	facts.is_count(timeout)
	timeout > 0
	delay >= timeout
}
