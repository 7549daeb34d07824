# METADATA
# scope: package
# title: Tolerances are no looser than the precision needs
# description: |
#   A tolerance that is loose enough lets every engine pass. How far outputs may be off follows from the
#   precision.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Tighten `accuracy.atol` and `accuracy.rtol`, or choose a precision that the model bears
#     (`precision.keep_fp32` keeps single layers).
package trtops.spec.tolerances_bounded

import data.trtops.lib.facts
import data.trtops.lib.precision
import data.trtops.lib.text

needs := array.concat(precision.needs, [{"fact": ["facts", "accuracy"], "kind": "map?", "path": ["accuracy"]}])

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if {
	is_object(input.facts.accuracy)
	some finding in facts.malformed([
		{"fact": ["facts", "accuracy", "atol"], "kind": "number", "path": ["accuracy", "atol"]},
		{"fact": ["facts", "accuracy", "rtol"], "kind": "number", "path": ["accuracy", "rtol"]},
	])
}

findings contains {
	"message": sprintf("%s is %s, for %s it may be %s at most", [
		key,
		text.number(tolerance),
		precision.mode,
		text.number(precision.bound(key)),
	]),
	"path": ["accuracy", key],
} if {
	some key in ["atol", "rtol"]
	tolerance := input.facts.accuracy[key]
	is_number(tolerance)
	not within(tolerance, key)
}

within(tolerance, key) if {
	tolerance >= 0
	tolerance <= precision.setting[key]
}
