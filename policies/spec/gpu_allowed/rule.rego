# METADATA
# scope: package
# title: The GPU is one that the fleet has
# description: |
#   An engine is bound to the GPU that it was built for. One that the fleet does not have can neither be measured
#   nor served, and one whose compute capability is wrong does not load.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Choose a GPU of `policies/data/gpus.yaml`, with its compute capability.
package trtops.spec.gpu_allowed

import data.trtops.lib.facts
import data.trtops.lib.text

findings contains finding if some finding in facts.unknown_targets

findings contains finding if {
	some finding in facts.malformed_each(
		{"fact": ["facts", "targets"], "path": ["targets"]},
		[
			{"fact": ["gpu"], "kind": "map?", "path": ["gpu"]},
			{"fact": ["compute_capability"], "kind": "list of counts?", "path": ["compute_capability"]},
		],
	)
}

findings contains {
	"message": sprintf("%s with compute capability %s is no GPU of the fleet", [named(gpu), capability(gpu)]),
	"path": ["targets", index, "gpu"],
} if {
	some index, target in facts.targets
	gpu := target.gpu
	is_object(gpu)
	not known(gpu)
}

findings contains {
	"message": sprintf("compute capability %s is none of the fleet", [capability(target)]),
	"path": ["targets", index, "compute_capability"],
} if {
	some index, target in facts.targets
	target.compute_capability != null
	not capability(target) in {allowed | some allowed in data.gpus.compute_capabilities}
}

findings contains {
	"message": sprintf("%s runs on a GPU, and the target names none", [target.id]),
	"path": ["targets", index],
} if {
	some index, target in facts.targets
	target.needs_gpu != false
	target.gpu == null
	target.compute_capability == null
}

known(gpu) if {
	some allowed in data.gpus.allowed
	lower(allowed.name) == lower(named(gpu))
	allowed.compute_capability == capability(gpu)
}

default named(_) := "(no name)"

named(gpu) := gpu.name if is_string(gpu.name)

default capability(_) := "(none)"

capability(part) := text.version(part.compute_capability) if facts.is_kind(part.compute_capability, "list of counts")
