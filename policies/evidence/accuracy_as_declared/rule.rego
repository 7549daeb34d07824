# METADATA
# scope: package
# title: Outputs were held to the spec's own tolerances
# description: |
#   `passed` says that somebody's tolerances were met. They must be those of the spec, every metric of the spec
#   must have been computed and be at its bound, and no element may be outside.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Verify again with the spec as it is; do not reuse evidence of looser tolerances.
package trtops.evidence.accuracy_as_declared

import data.trtops.lib.facts
import data.trtops.lib.text

needs := [
	{"fact": ["evidence", "accuracy"], "kind": "map?", "path": ["accuracy"]},
	{"fact": ["declared", "accuracy"], "kind": "map?", "path": ["accuracy"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("%s was %s, the spec says %s", [key, written(used), written(bound)]),
	"path": ["accuracy", key],
} if {
	judged
	some key in ["atol", "rtol"]
	used := facts.at(["evidence", "accuracy", key])
	bound := facts.at(["declared", "accuracy", key])
	not facts.at_most(used, bound)
}

findings contains {
	"message": sprintf("%s is %s, the spec needs %s", [metric, written(reached(metric)), written(bound)]),
	"path": ["accuracy", "metrics", metric],
} if {
	judged
	some metric, bound in facts.map(["declared", "accuracy", "metric"])
	not facts.at_least(reached(metric), bound)
}

findings contains {
	"message": sprintf("%s elements are outside of the tolerances", [written(outside)]),
	"path": ["accuracy", "outside"],
} if {
	is_object(facts.at(["evidence", "accuracy"]))
	outside := facts.at(["evidence", "accuracy", "outside"])
	outside != 0
}

judged if {
	is_object(facts.at(["evidence", "accuracy"]))
	is_object(facts.at(["declared", "accuracy"]))
}

reached(metric) := facts.at(["evidence", "accuracy", "metrics", metric])

written(value) := text.number(value) if is_number(value)

written(value) := facts.type_of(value) if not is_number(value)
