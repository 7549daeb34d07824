# METADATA
# scope: package
# title: The largest batch is inside a profile
# description: |
#   The batcher puts up to `max_batch` rows together. If no profile takes that many, the batch cannot run, and
#   every request in it fails.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Raise the profile's largest shape, or lower `batching.max_batch`.
package trtops.spec.max_batch_inside_profile

import data.trtops.lib.batching
import data.trtops.lib.facts
import data.trtops.lib.preflight
import data.trtops.lib.text

needs := [{"fact": ["facts", "profiles"], "kind": "list of maps", "path": ["profiles"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if some finding in batching.broken.max_batch

findings contains facts.placed(
	sprintf("max_batch is %s, which no profile takes (%s)", [text.number(rows), batching.ranges]),
	["batching", "max_batch"],
	place.origin,
) if {
	some place in batching.places
	rows := place.values.max_batch
	is_number(rows)
	not batching.fits(rows)
	not said(place)
}

# Preflight compares the spec with the model, and so sees more of it than the profile.
findings contains preflight.finding(fact) if {
	some fact in preflight.found
	preflight.is_about(fact, "batching.outside-profile", ["batching", "max_batch"])
}

said(place) if {
	not place.origin.document
	some fact in preflight.found
	preflight.is_about(fact, "batching.outside-profile", ["batching", "max_batch"])
}
