# METADATA
# scope: package
# title: Batching, of the spec and of the runtime config
# description: |
#   A runtime config may override the batching of its engine without a rebuild, so every rule on batching judges both.
package trtops.lib.batching

import data.trtops.lib.facts
import data.trtops.lib.text

# {"values": what is set, "origin": the document that sets it}; an override holds null where it sets nothing.
places := [
	{"values": input.facts.batching, "origin": {}},
	{"values": input.runtime.batching, "origin": {"document": "runtime"}},
]

# What rules need of both documents, by field.
needs[field] := [
	{"fact": ["facts", "batching", field], "kind": setting.kind, "path": setting.path},
	{
		"fact": ["runtime", "batching", field],
		"kind": setting.override,
		"path": setting.path,
		"document": "runtime",
	},
] if {
	some field, setting in settings
}

# Findings for a field that is not what rules need, in either document.
broken[field] := facts.malformed(need) if some field, need in needs

settings := {
	"max_batch": {"kind": "count", "override": "count?", "path": ["batching", "max_batch"]},
	"preferred": {"kind": "list of counts", "override": "list of counts?", "path": ["batching", "preferred"]},
	"max_queue_delay_us": {"kind": "count", "override": "count?", "path": ["batching", "max_queue_delay"]},
	"queue_max_size": {"kind": "count", "override": "count?", "path": ["batching", "queue", "max_size"]},
	"queue_timeout_us": {"kind": "count", "override": "count?", "path": ["batching", "queue", "timeout"]},
	"priorities": {"kind": "count", "override": "count?", "path": ["batching", "priorities"]},
}

# What holds when both documents are read: the override's value where it has one.
effective(place, key) := place.values[key] if place.values[key] != null

effective(place, key) := input.facts.batching[key] if place.values[key] == null

# Whether some profile takes this many rows. An engine without a batch dimension takes one.
fits(rows) if {
	some profile in profiles
	is_number(profile.batch.min)
	is_number(profile.batch.max)
	rows >= profile.batch.min
	rows <= profile.batch.max
}

fits(1) if {
	count(profiles) > 0
	every profile in profiles {
		profile.batch == null
	}
}

profiles := facts.list(["facts", "profiles"])

# What the profiles take, in words.
ranges := concat(", ", [words |
	some profile in profiles
	is_string(profile.name)
	facts.is_count(profile.batch.min)
	facts.is_count(profile.batch.max)
	words := sprintf("%s: %s to %s rows", [
		profile.name,
		text.number(profile.batch.min),
		text.number(profile.batch.max),
	])
])
