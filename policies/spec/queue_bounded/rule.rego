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

findings contains finding if some finding in batching.broken.queue_max_size

findings contains finding if some finding in batching.broken.queue_timeout_us

findings contains finding if some finding in batching.broken.max_queue_delay_us

findings contains facts.placed(
	sprintf("the queue takes %s requests, tier %s allows %s", [
		text.number(size),
		limits.tier,
		text.number(limits.value("queue_size")),
	]),
	["batching", "queue", "max_size"],
	place.origin,
) if {
	some place in batching.places
	size := place.values.queue_max_size
	is_number(size)
	not short(size)
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
	timeout := place.values.queue_timeout_us
	is_number(timeout)
	not in_time(timeout)
}

findings contains facts.placed("a request has no time to wait in the queue", ["batching", "queue", "timeout"], place.origin) if {
	some place in batching.places
	place.values.queue_timeout_us == 0
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
	is_number(delay)
	not brief(delay)
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
	sets_either(place.values)
	delay := batching.effective(place, "max_queue_delay_us")
	timeout := batching.effective(place, "queue_timeout_us")
	is_number(delay)
	is_number(timeout)
	timeout > 0
	delay >= timeout
}

sets_either(values) if values.max_queue_delay_us != null

sets_either(values) if values.queue_timeout_us != null

short(size) if size <= limits.current.queue_size

in_time(timeout) if timeout <= limits.current.queue_timeout_ms * 1000

brief(delay) if delay <= limits.current.queue_delay_ms * 1000
