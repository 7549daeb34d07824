# METADATA
# scope: package
# title: No target is dropped without a word
# description: |
#   A service whose GPU is served today and is not in the new release keeps the old engine, and drifts from the
#   others. It does not deny, since a target may be given up on purpose.
# custom:
#   severity: warn
#   since: 0.1.0
#   remediation: |
#     Build and verify the target, or tell those who run it.
package trtops.release.targets_kept

import data.trtops.lib.facts

needs := [{"fact": ["previous"], "kind": "map?", "path": ["artifacts"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if {
	is_object(facts.at(["previous"]))
	some finding in facts.malformed([{"fact": ["previous", "targets"], "kind": "list of texts", "path": ["artifacts"]}])
}

findings contains {
	"message": sprintf("%s is released today and is not in this release", [target]),
	"path": ["artifacts"],
} if {
	facts.at(["action"]) != "rollback"
	some target in facts.list(["previous", "targets"])
	is_string(target)
	not target in {artifact.target | some artifact in facts.list(["release", "artifacts"])}
}
