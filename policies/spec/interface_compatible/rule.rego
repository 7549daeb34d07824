# METADATA
# scope: package
# title: A model that breaks released clients has a new major version
# description: |
#   Clients were written against the tensors of what is released: names, types, shapes. They stand in
#   `governance/interfaces`, which `trtops interface lock` writes. What breaks one of them needs a new major
#   `interface.version`, what only adds needs a new minor, and no version is lower than the released one. The
#   stage release asks the same of the built engine; here it is said before anything is built.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Raise `interface.version` as the change demands, or keep the model's inputs and outputs as they are.
package trtops.spec.interface_compatible

import data.trtops.lib.facts
import data.trtops.lib.text

needs := [
	{"fact": ["interface", "released_numbers"], "kind": "list of counts?", "path": ["interface", "version"]},
	{"fact": ["interface", "change"], "kind": "map?", "path": ["interface"]},
	{"fact": ["facts", "interface_numbers"], "kind": "list of counts?", "path": ["interface", "version"]},
]

findings contains finding if some finding in facts.malformed(needs)

# A released version without its change, or the other way round, is a document that cannot be trusted.
findings contains finding if {
	facts.at(["interface", "released_numbers"]) != null
	some finding in facts.malformed([{"fact": ["interface", "change"], "kind": "map", "path": ["interface"]}])
}

findings contains finding if {
	facts.at(["interface", "change"]) != null
	some finding in facts.malformed([{
		"fact": ["interface", "released_numbers"],
		"kind": "list of counts",
		"path": ["interface", "version"],
	}])
}

findings contains {
	"message": sprintf("version %s is below the released %s", [text.version(version), text.version(released)]),
	"path": ["interface", "version"],
} if {
	judged
	version < released
}

findings contains {
	"message": sprintf("version %s after the released %s is no new %s version, and the model changes its clients' interface: %s", [
		text.version(version),
		text.version(released),
		part,
		concat("; ", changes),
	]),
	"path": ["interface", "version"],
} if {
	judged
	version >= released
	some part in demanded
	not raised(part)
}

changes := [change |
	some change in facts.list(["interface", "change", "changes"])
	is_string(change)
]

# A kind that is not known demands what a breaking one does.
demanded := set() if kind == "none"

demanded := {"minor"} if kind == "compatible"

demanded := {"major"} if not kind in {"none", "compatible"}

kind := facts.at(["interface", "change", "kind"])

raised("major") if array.slice(version, 0, 1) > array.slice(released, 0, 1)

raised("minor") if array.slice(version, 0, 2) > array.slice(released, 0, 2)

judged if {
	facts.is_kind(facts.at(["facts", "interface_numbers"]), "list of counts")
	facts.is_kind(facts.at(["interface", "released_numbers"]), "list of counts")
}

version := facts.list(["facts", "interface_numbers"])

released := facts.list(["interface", "released_numbers"])
