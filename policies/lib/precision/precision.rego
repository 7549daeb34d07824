# METADATA
# scope: package
# title: The precision that is computed in
# description: |
#   `mode: fp32` with `tf32: true` multiplies in TF32, whatever the mode is called. Needs `facts.precision`.
package trtops.lib.precision

import data.trtops.lib.facts

default mode := "unknown"

mode := "tf32" if {
	facts.at(["facts", "precision", "mode"]) == "fp32"
	facts.at(["facts", "precision", "tf32"]) != false
}

mode := "fp32" if {
	facts.at(["facts", "precision", "mode"]) == "fp32"
	facts.at(["facts", "precision", "tf32"]) == false
}

mode := facts.at(["facts", "precision", "mode"]) if {
	is_string(facts.at(["facts", "precision", "mode"]))
	facts.at(["facts", "precision", "mode"]) != "fp32"
}

# What `policies/data/precision.yaml` says of the mode; null where it says nothing.
default setting(_) := null

setting(key) := data.precision.modes[mode][key]

needs := [
	{"fact": ["facts", "precision", "mode"], "kind": "text", "path": ["precision", "mode"]},
	{"fact": ["facts", "precision", "tf32"], "kind": "boolean", "path": ["precision", "tf32"]},
]
