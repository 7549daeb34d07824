# METADATA
# scope: package
# title: A change that breaks clients has a new major version
# description: |
#   Clients were written against tensors: names, types, shapes. What breaks one of them needs a new major
#   version, what only adds needs a new minor, and no release has a lower version than the one before. A rollback
#   goes back on purpose.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Raise `interface.version` as the change demands, or keep the interface as it is.
package trtops.release.interface_compatible

import data.trtops.lib.facts
import data.trtops.lib.text

needs := [
	{"fact": ["previous"], "kind": "map?", "path": ["contract"]},
	{"fact": ["interface_change"], "kind": "map?", "path": ["contract"]},
	{"fact": ["action"], "kind": "text", "path": ["reason"]},
	{"fact": ["release", "interface_numbers"], "kind": "list of counts", "path": ["contract", "version"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if {
	is_object(facts.at(["previous"]))
	some finding in facts.malformed([
		{"fact": ["previous", "interface_numbers"], "kind": "list of counts", "path": ["contract", "version"]},
		{"fact": ["interface_change"], "kind": "map", "path": ["contract"]},
	])
}

findings contains {
	"message": sprintf("version %s is below the released %s", [text.version(version), text.version(released)]),
	"path": ["contract", "version"],
} if {
	judged
	version < released
}

findings contains {
	"message": sprintf("version %s after %s is no new %s version, and the interface changed: %s", [
		text.version(version),
		text.version(released),
		part,
		concat("; ", changes),
	]),
	"path": ["contract", "version"],
} if {
	judged
	version >= released
	some part in demanded
	not raised(part)
}

changes := [change |
	some change in facts.list(["interface_change", "changes"])
	is_string(change)
]

# A kind that is not known demands what a breaking one does.
demanded := set() if kind == "none"

demanded := {"minor"} if kind == "compatible"

demanded := {"major"} if not kind in {"none", "compatible"}

kind := facts.at(["interface_change", "kind"])

raised("major") if array.slice(version, 0, 1) > array.slice(released, 0, 1)

raised("minor") if array.slice(version, 0, 2) > array.slice(released, 0, 2)

judged if {
	is_object(facts.at(["previous"]))
	facts.at(["action"]) != "rollback"
	facts.is_kind(facts.at(["release", "interface_numbers"]), "list of counts")
	facts.is_kind(facts.at(["previous", "interface_numbers"]), "list of counts")
}

version := facts.list(["release", "interface_numbers"])

released := facts.list(["previous", "interface_numbers"])
