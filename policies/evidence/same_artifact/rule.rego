# METADATA
# scope: package
# title: The evidence is of this very artifact
# description: |
#   Evidence of another build, model or spec proves nothing. Each digest must be that of what is released, the
#   engine and the target too.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Build, verify and measure what is released: `trtops ship` does it in one go.
package trtops.evidence.same_artifact

import data.trtops.lib.facts

digests := ["spec", "model", "plan", "artifact"]

needs := [need |
	some place in ["evidence", "expected"]
	some name in digests
	need := {"fact": [place, name], "kind": "text", "path": [name]}
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("the evidence is of %s %s, released is %s", [name, found, wanted]),
	"path": [name],
} if {
	some name in digests
	found := facts.at(["evidence", name])
	wanted := facts.at(["expected", name])
	is_string(found)
	is_string(wanted)
	found != wanted
}

findings contains {"message": "the evidence is of another engine", "path": ["engine"]} if {
	not same(facts.at(["evidence", "engine"]), facts.at(["engine"]))
}

findings contains {"message": "the evidence is of another target", "path": ["target"]} if {
	not same(facts.at(["evidence", "target"]), facts.at(["declared", "target", "id"]))
}

same(one, other) if {
	is_string(one)
	one == other
}
