# METADATA
# scope: package
# title: It ran on the device that the target names
# description: |
#   Numbers of another GPU, another MIG slice or a CPU say nothing of the target. Accuracy and benchmark must
#   come from the same device, too.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Verify and measure on the GPU that the target names, in the MIG profile that it names.
package trtops.evidence.device_as_declared

import data.trtops.lib.facts
import data.trtops.lib.text

needs := [
	{"fact": ["declared", "target"], "kind": "map", "path": ["target"]},
	{"fact": ["evidence", "device"], "kind": "map", "path": ["device"]},
	{"fact": ["evidence", "accuracy"], "kind": "map?", "path": ["accuracy"]},
	{"fact": ["evidence", "benchmark"], "kind": "map?", "path": ["benchmark"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("ran on a %s, the target needs a %s", [text_of(device, "kind"), kind]),
	"path": ["device", "kind"],
} if {
	ran
	some kind in wanted_kind
	device.kind != kind
}

findings contains {
	"message": sprintf("ran on %s, the target names %s", [text_of(device, "name"), text_of(target.gpu, "name")]),
	"path": ["device", "name"],
} if {
	ran
	is_object(target.gpu)
	not named_alike
}

findings contains {
	"message": sprintf("ran on compute capability %s, the target names %s", [
		capability(device),
		concat(" and ", wanted_capability),
	]),
	"path": ["device", "compute_capability"],
} if {
	ran
	some wanted in wanted_capability
	capability(device) != wanted
}

findings contains {
	"message": sprintf("ran on MIG profile %s, the target names %s", [text_of(device, "mig"), text_of(target.gpu, "mig")]),
	"path": ["device", "mig"],
} if {
	ran
	is_object(target.gpu)
	facts.part(device, ["mig"]) != facts.part(target.gpu, ["mig"])
}

findings contains {
	"message": sprintf("verified on %s, measured on %s", [text_of(device, "name"), text_of(measured_on, "name")]),
	"path": ["benchmark", "device"],
} if {
	is_object(facts.at(["evidence", "benchmark"]))
	some key in ["kind", "name", "compute_capability", "mig"]
	facts.part(measured_on, [key]) != facts.part(device, [key])
}

# Where nothing ran, `verified` denies, and there is no device to judge.
ran if {
	some part in ["accuracy", "benchmark"]
	facts.at(["evidence", part]) != null
}

device := facts.map(["evidence", "device"])

measured_on := facts.map(["evidence", "benchmark", "device"])

target := facts.map(["declared", "target"])

wanted_kind := {"gpu"} if on_gpu

wanted_kind := {"cpu"} if {
	not on_gpu
	target.backend == "onnxruntime"
}

wanted_kind := set() if {
	not on_gpu
	target.backend != "onnxruntime"
}

on_gpu if target.needs_gpu != false

on_gpu if is_object(target.gpu)

named_alike if {
	is_string(device.name)
	is_string(target.gpu.name)
	lower(device.name) == lower(target.gpu.name)
}

named_alike if {
	is_string(target.gpu.name)
	some allowed in data.gpus.allowed
	lower(allowed.name) == lower(target.gpu.name)
	device.name in allowed.devices
}

wanted_capability := {capability(wanted) |
	some wanted in [target, target.gpu]
	is_array(wanted.compute_capability)
}

default capability(_) := "(none)"

capability(value) := text.version(value.compute_capability) if facts.is_kind(value.compute_capability, "list of counts")

default text_of(_, _) := "(none)"

text_of(value, key) := value[key] if is_string(value[key])
