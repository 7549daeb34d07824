# METADATA
# scope: package
# title: Preferred batch sizes can be reached
# description: |
#   The batcher aims at preferred sizes. One above `max_batch` is never reached, and one outside every profile
#   cannot run.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Take the size out of `batching.preferred`, or raise `max_batch` and the profile.
package trtops.spec.preferred_sizes_inside

import data.trtops.lib.batching
import data.trtops.lib.facts
import data.trtops.lib.preflight
import data.trtops.lib.text

needs := [{"fact": ["facts", "profiles"], "kind": "list of maps", "path": ["profiles"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if some finding in batching.broken.preferred

findings contains finding if some finding in batching.broken.max_batch

findings contains facts.placed(
	sprintf("preferred size %s is above max_batch, which is %s", [text.number(rows), text.number(largest)]),
	["batching", "preferred", index],
	place.origin,
) if {
	some place in batching.places
	largest := batching.effective(place, "max_batch")
	is_number(largest)
	some index, rows in sizes(place)
	rows > largest
	not said(place, index)
}

findings contains facts.placed(
	sprintf("preferred size %s is taken by no profile (%s)", [text.number(rows), batching.ranges]),
	["batching", "preferred", index],
	place.origin,
) if {
	some place in batching.places
	some index, rows in sizes(place)
	not batching.fits(rows)
	not said(place, index)
}

findings contains preflight.finding(fact) if {
	some fact in preflight.found
	some code in codes
	preflight.is_about(fact, code, ["batching", "preferred"])
}

# Preflight compares the spec with the model, and so sees more of it than the profile.
codes := ["batching.outside-profile", "batching.preferred-above-max"]

said(place, index) if {
	not place.origin.document
	some fact in preflight.found
	some code in codes
	preflight.is_about(fact, code, ["batching", "preferred", index])
}

default sizes(_) := []

sizes(place) := place.values.preferred if facts.is_kind(place.values.preferred, "list of counts")
