# METADATA
# scope: package
# title: The interface has a version
# description: |
#   Clients depend on the interface's version: a change that breaks them needs a new major. That works only if
#   the version is three numbers, and 0.0.0 is none.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Write `interface.version` as MAJOR.MINOR.PATCH, for example `1.0.0`.
package trtops.spec.interface_version_valid

import data.trtops.lib.facts
import data.trtops.lib.text

needs := [
	{"fact": ["facts", "interface_version"], "kind": "text", "path": ["interface", "version"]},
	{"fact": ["facts", "interface_numbers"], "kind": "list of counts?", "path": ["interface", "version"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("%s is not MAJOR.MINOR.PATCH", [version]),
	"path": ["interface", "version"],
} if {
	version := input.facts.interface_version
	is_string(version)
	not valid(version)
}

valid(version) if {
	regex.match(`^(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})$`, version)
	facts.is_kind(facts.at(["facts", "interface_numbers"]), "list of counts")
	version == text.version(facts.list(["facts", "interface_numbers"]))
	version != "0.0.0"
}
