# METADATA
# scope: package
# title: A lower precision says how far it may be off
# description: |
#   Whatever is not FP32 changes numbers (`tf32: true` does, too). Without tolerances and samples in the spec
#   nobody has said which change is acceptable, and nothing can be verified. FP8 and INT8 change numbers so much
#   that a bound on a metric of the answers is needed as well.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Add `accuracy` with `samples`, `atol` and `rtol`; for FP8 and INT8 with a `metric` such as `{top1: 0.99}`.
package trtops.spec.precision_needs_accuracy

import data.trtops.lib.facts
import data.trtops.lib.precision

needs := array.concat(precision.needs, [{"fact": ["facts", "accuracy"], "kind": "map?", "path": ["accuracy"]}])

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("precision is %s, and the spec has no accuracy section", [precision.mode]),
	"path": ["precision", "mode"],
} if {
	precision.mode != "fp32"
	input.facts.accuracy == null
}

findings contains {
	"message": sprintf("precision is %s, and the accuracy section bounds no metric", [precision.mode]),
	"path": ["accuracy", "metric"],
} if {
	not precision.setting.metric == false
	is_object(input.facts.accuracy)
	count(facts.map(["facts", "accuracy", "metric"])) == 0
}
