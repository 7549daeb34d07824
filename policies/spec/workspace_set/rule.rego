# METADATA
# scope: package
# title: TensorRT gets a workspace
# description: |
#   TensorRT's own default is the whole memory of the card on which it builds. An engine that was built so may
#   not find what it needs on a card that others share.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Write `memory.workspace`, for example `1GiB`; it covers activations at the largest profile, too.
package trtops.spec.workspace_set

import data.trtops.lib.facts

needs := [
	{"fact": ["facts", "targets"], "kind": "list of maps", "path": ["targets"]},
	{"fact": ["facts", "memory", "workspace_bytes"], "kind": "count?", "path": ["memory", "workspace"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if {
	some finding in facts.malformed_each(
		{"fact": ["facts", "targets"], "path": ["targets"]},
		[{"fact": ["needs_gpu"], "kind": "boolean", "path": []}],
	)
}

findings contains {
	"message": sprintf("no workspace is set, and %s needs one", [concat(", ", needing)]),
	"path": ["memory", "workspace"],
} if {
	count(needing) > 0
	input.facts.memory.workspace_bytes in {null, 0}
}

needing := [target.id |
	some target in facts.targets
	target.needs_gpu == true
	is_string(target.id)
]
