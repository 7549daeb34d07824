# METADATA
# scope: package
# title: The pointer points to what was judged
# description: |
#   The pointer binds an engine release to a config release in one environment. It must name the two that were
#   judged, the config must be of this engine and environment, and its generation must be the next one: services
#   refuse one that goes back.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Start the release again; if it stays, somebody else moved the channel in between.
package trtops.release.pointer_consistent

import data.trtops.lib.facts
import data.trtops.lib.text

# What the pointer says, and what was judged.
pairs := {
	"engine_release": [["binding", "engine_release"], ["release", "identity"]],
	"config_release": [["binding", "config_release"], ["config", "identity"]],
	"environment": [["config", "environment"], ["environment"]],
	"engine": [["config", "engine"], ["engine"]],
}

needs := [
	{"fact": ["previous"], "kind": "map?", "path": ["generation"]},
	{"fact": ["binding", "generation"], "kind": "count", "path": ["generation"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("the %s that is pointed to is not the one that was judged", [key]),
	"path": [key],
} if {
	some key, [pointer, judged] in pairs
	not same(facts.at(pointer), facts.at(judged))
}

findings contains {
	"message": sprintf("generation is %s, the next one is %s", [text.number(generation), text.number(next)]),
	"path": ["generation"],
} if {
	generation := facts.at(["binding", "generation"])
	facts.is_count(generation)
	generation != next
}

default next := 1

next := facts.at(["previous", "generation"]) + 1 if facts.is_count(facts.at(["previous", "generation"]))

next := null if {
	is_object(facts.at(["previous"]))
	not facts.is_count(facts.at(["previous", "generation"]))
}

same(one, other) if {
	is_string(one)
	one == other
}
