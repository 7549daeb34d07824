# METADATA
# scope: package
# title: Traffic weights add up to 100
# description: |
#   Weights are shares of the traffic in percent. If they do not add up, some requests go nowhere, or nobody
#   knows where.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Choose weights from 0 to 100 that add up to 100, `stable` among them.
package trtops.release.weights_sum

import data.trtops.lib.facts

needs := [{"fact": ["binding", "weights"], "kind": "map", "path": ["weights"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("the weight of %s is no share from 0 to 100", [channel]),
	"path": ["weights", channel],
} if {
	some channel, weight in weights
	not share(weight)
}

findings contains {"message": sprintf("weights add up to %d", [total]), "path": ["weights"]} if {
	every weight in weights {
		share(weight)
	}
	total != 100
}

weights := facts.map(["binding", "weights"])

total := sum([weight | some weight in weights; share(weight)])

share(weight) if {
	facts.is_count(weight)
	weight <= 100
}
