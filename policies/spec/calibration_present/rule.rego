# METADATA
# scope: package
# title: Eight-bit ranges come from somewhere
# description: |
#   FP8 and INT8 need the range of every activation: from calibration samples, enough of them, or from
#   QuantizeLinear nodes that the model was exported with. Ranges out of nowhere clip.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Add `precision.calibration` with a `source` of real samples, or export the model with QuantizeLinear nodes.
package trtops.spec.calibration_present

import data.trtops.lib.facts
import data.trtops.lib.precision
import data.trtops.lib.text

needs := array.concat(precision.needs, [
	{"fact": ["facts", "precision", "calibration"], "kind": "map?", "path": ["precision", "calibration"]},
	{"fact": ["preflight", "model", "operators"], "kind": "map", "path": ["precision", "mode"]},
])

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("precision is %s, with no calibration and no QuantizeLinear node in the model", [precision.mode]),
	"path": ["precision", "mode"],
} if {
	not precision.setting.calibrated == false
	input.facts.precision.calibration == null
	not quantized
}

findings contains {
	"message": sprintf("calibration takes %s samples, %s are needed at least", [
		text.number(samples),
		text.number(least),
	]),
	"path": ["precision", "calibration", "samples"],
} if {
	samples := input.facts.precision.calibration.samples
	is_number(samples)
	not enough(samples)
}

enough(samples) if samples >= data.precision.calibration_samples

default least := null

least := data.precision.calibration_samples

quantized if {
	some operator, _ in facts.map(["preflight", "model", "operators"])
	some type in ["QuantizeLinear", "DequantizeLinear"]
	operator in {type, sprintf("com.microsoft::%s", [type])}
}
