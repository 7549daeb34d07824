# METADATA
# scope: package
# title: Only verified targets are released
# description: |
#   Each artifact of a release has evidence of its own: of that artifact, built from that spec, whose outputs
#   passed. A target that nobody could verify is left out by name, and never released on trust.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Leave the target out, or verify it on a machine that can load it.
package trtops.release.only_verified_targets

import data.trtops.lib.facts

needs := [
	{"fact": ["release", "artifacts"], "kind": "list of maps", "path": ["artifacts"]},
	{"fact": ["release", "spec"], "kind": "text", "path": ["spec"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {"message": "the release has no artifact", "path": ["artifacts"]} if {
	count(facts.list(["release", "artifacts"])) == 0
}

findings contains {
	"message": sprintf("%s was not verified", [name(artifact)]),
	"path": ["artifacts", index],
} if {
	some index, artifact in facts.list(["release", "artifacts"])
	not facts.part(artifact, ["verified"]) == true
}

findings contains {
	"message": sprintf("the evidence of %s is of another artifact", [name(artifact)]),
	"path": ["artifacts", index, "evidence"],
} if {
	some index, artifact in facts.list(["release", "artifacts"])
	artifact.verified == true
	not same(facts.part(artifact, ["evidence_artifact"]), facts.part(artifact, ["artifact"]))
}

findings contains {
	"message": sprintf("the evidence of %s is of another spec", [name(artifact)]),
	"path": ["artifacts", index, "evidence"],
} if {
	some index, artifact in facts.list(["release", "artifacts"])
	artifact.verified == true
	not same(facts.part(artifact, ["evidence_spec"]), facts.at(["release", "spec"]))
}

findings contains {
	"message": sprintf("target %s is released twice", [name(artifact)]),
	"path": ["artifacts", index, "target"],
} if {
	some index, artifact in facts.list(["release", "artifacts"])
	some other, twin in facts.list(["release", "artifacts"])
	other < index
	artifact.target == twin.target
}

findings contains {
	"message": sprintf("target %s is released and skipped", [name(artifact)]),
	"path": ["artifacts", index, "target"],
} if {
	some index, artifact in facts.list(["release", "artifacts"])
	some skipped, _ in facts.map(["release", "skipped"])
	artifact.target == skipped
}

same(one, other) if {
	is_string(one)
	one == other
}

default name(_) := "a target without a name"

name(artifact) := artifact.target if is_string(artifact.target)
