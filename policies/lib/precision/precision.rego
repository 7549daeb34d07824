# METADATA
# scope: package
# title: The precision that is computed in
# description: |
#   `mode: fp32` with `tf32: true` multiplies in TF32, whatever the mode is called. Needs `facts.precision`.
package trtops.lib.precision

default mode := "unknown"

mode := "tf32" if {
	input.facts.precision.mode == "fp32"
	input.facts.precision.tf32 != false
}

mode := "fp32" if {
	input.facts.precision.mode == "fp32"
	input.facts.precision.tf32 == false
}

mode := input.facts.precision.mode if {
	is_string(input.facts.precision.mode)
	input.facts.precision.mode != "fp32"
}

# What `policies/data/precision.yaml` says of the mode; undefined where it says nothing.
setting := data.precision.modes[mode]

# A tolerance of the mode for a message.
default bound(_) := null

bound(key) := setting[key]

needs := [
	{"fact": ["facts", "precision", "mode"], "kind": "text", "path": ["precision", "mode"]},
	{"fact": ["facts", "precision", "tf32"], "kind": "boolean", "path": ["precision", "tf32"]},
]
