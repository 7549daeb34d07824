# METADATA
# scope: package
# title: Every artifact says who built it
# description: |
#   Loading an engine runs its code, so a service loads only what a builder vouches for in a signed statement:
#   which builder, from which commit, spec and model. An artifact without one would be released and never loaded.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Build the target again: `trtops build` signs a statement for each artifact.
package trtops.release.provenance_present

import data.trtops.lib.facts

needs := [{"fact": ["release", "artifacts"], "kind": "list of maps", "path": ["artifacts"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("no builder vouches for artifact %d", [index]),
	"path": ["artifacts", index, "provenance"],
} if {
	some index, artifact in facts.list(["release", "artifacts"])
	not named(artifact)
}

named(artifact) if {
	is_string(artifact.provenance)
	regex.match(`^sha256:[0-9a-f]{64}$`, artifact.provenance)
}
