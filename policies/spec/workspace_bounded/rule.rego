# METADATA
# scope: package
# title: The workspace is within the tier's limit
# description: |
#   Every execution takes the workspace for itself, on a card that engines share. Its limit follows from the
#   tier.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Lower `memory.workspace`, or raise the tier.
package trtops.spec.workspace_bounded

import data.trtops.lib.facts
import data.trtops.lib.limits
import data.trtops.lib.text

needs := [{"fact": ["facts", "memory", "workspace_bytes"], "kind": "count?", "path": ["memory", "workspace"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("workspace is %s, tier %s allows %s", [
		text.bytes(workspace),
		limits.tier,
		text.bytes(limits.bytes("workspace_mib")),
	]),
	"path": ["memory", "workspace"],
} if {
	workspace := input.facts.memory.workspace_bytes
	is_number(workspace)
	not within(workspace)
}

within(size) if size <= limits.current.workspace_mib * 1048576
