# METADATA
# scope: package
# title: Every earlier gate allowed it
# description: |
#   A release names the verdicts on its spec and on each artifact's evidence. A verdict that denied, is not at
#   hand, or is of another stage lets nothing through; nor, outside of `local`, does one that was given for
#   `local` or by another judge than OPA.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Check the spec and gate the evidence for this environment: `trtops check`, `trtops ship`.
package trtops.release.verdicts_allow

import data.trtops.lib.facts

findings contains finding if {
	some finding in facts.malformed([
		{"fact": ["release", "spec_verdict"], "kind": "map", "path": ["spec_verdict"]},
		{"fact": ["release", "artifacts"], "kind": "list of maps", "path": ["artifacts"]},
	])
}

findings contains {
	"message": sprintf("the verdict on %s is %s", [given.subject, decision(given.verdict)]),
	"path": given.path,
} if {
	some given in verdicts
	not lets_through(given)
}

findings contains {
	"message": sprintf("the verdict on %s is not of the stage %s", [given.subject, given.stage]),
	"path": given.path,
} if {
	some given in verdicts
	lets_through(given)
	facts.part(given.verdict, ["stage"]) != given.stage
}

findings contains {
	"message": sprintf("the verdict on %s was given for local, where rules are laxer", [given.subject]),
	"path": given.path,
} if {
	some given in verdicts
	facts.at(["environment"]) != "local"
	lets_through(given)
	not elsewhere(given)
}

findings contains {
	"message": sprintf("the verdict on %s was not given by OPA", [given.subject]),
	"path": given.path,
} if {
	some given in verdicts
	facts.at(["environment"]) != "local"
	lets_through(given)
	not by_opa(given)
}

verdicts contains {
	"subject": "the spec",
	"stage": "spec",
	"verdict": facts.at(["release", "spec_verdict"]),
	"path": ["spec_verdict"],
} if {
	is_object(facts.at(["release", "spec_verdict"]))
}

verdicts contains {
	"subject": sprintf("artifact %d", [index]),
	"stage": "evidence",
	"verdict": facts.part(artifact, ["verdict"]),
	"path": ["artifacts", index, "verdict"],
} if {
	some index, artifact in facts.list(["release", "artifacts"])
}

lets_through(given) if given.verdict.decision in {"allow", "warn"}

elsewhere(given) if {
	is_string(given.verdict.environment)
	given.verdict.environment != "local"
}

by_opa(given) if {
	is_string(given.verdict.engine)
	regex.match(`^opa( |$)`, given.verdict.engine)
}

default decision(_) := "not at hand"

decision(verdict) := verdict.decision if is_string(verdict.decision)
