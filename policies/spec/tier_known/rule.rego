# METADATA
# scope: package
# title: The tier is one that has limits
# description: |
#   Limits, approvals and the need for an SLO follow from the label `tier`. A tier that nobody defined, such as a
#   misspelt `glod`, would get none of them.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Write one of the tiers of `policies/data/limits.yaml` under `metadata.labels.tier`, or leave the label out
#     (bronze).
package trtops.spec.tier_known

import data.trtops.lib.facts
import data.trtops.lib.limits

needs := [{"fact": ["tier"], "kind": "text", "path": ["metadata", "labels", "tier"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("tier %s has no limits; there are %s", [input.tier, concat(", ", known)]),
	"path": ["metadata", "labels", "tier"],
} if {
	is_string(input.tier)
	not limits.known
}

known := sort([name | some name, _ in data.limits.tiers])
