# METADATA
# scope: package
# title: It ran in the backend and version that the target names
# description: |
#   An engine of another version of the backend is another engine. The version that the target pins must be the
#   beginning of the one that ran.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Measure with the backend that the target names, in its version.
package trtops.evidence.backend_as_declared

import data.trtops.lib.facts

needs := [
	{"fact": ["declared", "target", "backend"], "kind": "text", "path": ["target", "backend"]},
	{"fact": ["declared", "target", "version"], "kind": "text?", "path": ["target", "version"]},
	{"fact": ["evidence", "benchmark"], "kind": "map?", "path": ["benchmark"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if {
	is_object(facts.at(["evidence", "benchmark"]))
	some finding in facts.malformed([
		{"fact": ["evidence", "benchmark", "backend"], "kind": "text", "path": ["benchmark", "backend"]},
		{"fact": ["evidence", "benchmark", "backend_version"], "kind": "text", "path": ["benchmark", "backend_version"]},
	])
}

findings contains {
	"message": sprintf("measured in %s, the target names %s", [backend, facts.at(["declared", "target", "backend"])]),
	"path": ["benchmark", "backend"],
} if {
	backend := facts.at(["evidence", "benchmark", "backend"])
	is_string(backend)
	is_string(facts.at(["declared", "target", "backend"]))
	backend != facts.at(["declared", "target", "backend"])
}

findings contains {
	"message": sprintf("measured in version %s, the target pins %s", [version, pinned]),
	"path": ["benchmark", "backend_version"],
} if {
	version := facts.at(["evidence", "benchmark", "backend_version"])
	pinned := facts.at(["declared", "target", "version"])
	is_string(version)
	is_string(pinned)
	not begins
}

begins if {
	ran := facts.at(["evidence", "benchmark", "backend_numbers"])
	wanted := facts.at(["declared", "target", "version_numbers"])
	is_array(ran)
	is_array(wanted)
	count(wanted) > 0
	array.slice(ran, 0, count(wanted)) == wanted
}
