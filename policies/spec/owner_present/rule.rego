# METADATA
# scope: package
# title: Somebody answers for the engine
# description: |
#   When an engine fails at night, its owner is who gets the call, and who is asked before a limit changes.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Write the team's name under `metadata.owner`.
package trtops.spec.owner_present

import data.trtops.lib.facts

needs := [{"fact": ["facts", "owner"], "kind": "text?", "path": ["metadata", "owner"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains {"message": "the engine has no owner", "path": ["metadata", "owner"]} if nobody

nobody if input.facts.owner == null

nobody if {
	is_string(input.facts.owner)
	trim_space(input.facts.owner) == ""
}
