# METADATA
# scope: package
# title: Batching, of the spec and of the runtime config
# description: |
#   A runtime config may override the batching of its engine without a rebuild, so every rule on batching judges both.
package trtops.lib.batching

import data.trtops.lib.facts

# {"values": what is set, "origin": the document that sets it}; an override holds null where it sets nothing.
places := array.concat(
	[{"values": facts.map(["facts", "batching"]), "origin": {}}],
	[{"values": facts.map(["runtime", "batching"]), "origin": {"document": "runtime"}} | overlaid],
)

overlaid if is_object(facts.at(["runtime"]))

# Needs of a rule that reads one field, for both documents. An override's field may be null.
needs(path, kind) := array.concat(
	[
		{"fact": array.concat(["facts", "batching"], path), "kind": kind, "path": written(path)},
		{"fact": ["runtime"], "kind": "map?", "path": ["batching"], "document": "runtime"},
	],
	[need |
		overlaid
		some need in override_needs(path, kind)
	],
)

override_needs(path, kind) := [override_need(path, sprintf("%s?", [kind]))] if count(path) == 1

# The queue of an override is null or whole.
override_needs(path, _) := [] if {
	count(path) == 2
	facts.at(["runtime", "batching", path[0]]) == null
}

override_needs(path, kind) := [override_need(path, kind)] if {
	count(path) == 2
	facts.at(["runtime", "batching", path[0]]) != null
}

override_need(path, kind) := {
	"fact": array.concat(["runtime", "batching"], path),
	"kind": kind,
	"path": written(path),
	"document": "runtime",
}

# Where a fact stands in the document: its name there has no unit.
written(path) := array.concat(["batching"], [trim_suffix(name, "_us") | some name in path])

# What holds when both documents are read: the override's value where it has one.
effective(place, key) := place.values[key] if place.values[key] != null

effective(place, key) := facts.at(["facts", "batching", key]) if not sets(place, key)

sets(place, key) if place.values[key] != null

# Whether some profile takes this many rows. An engine without a batch dimension takes one.
fits(rows) if {
	some profile in facts.list(["facts", "profiles"])
	facts.at_least(rows, profile.batch.min)
	facts.at_most(rows, profile.batch.max)
}

fits(1) if {
	profiles := facts.list(["facts", "profiles"])
	count(profiles) > 0
	every profile in profiles {
		profile.batch == null
	}
}

# What the profiles take, in words.
ranges := concat(", ", [words |
	some profile in facts.list(["facts", "profiles"])
	is_string(profile.name)
	facts.is_count(profile.batch.min)
	facts.is_count(profile.batch.max)
	words := sprintf("%s: %d to %d rows", [profile.name, profile.batch.min, profile.batch.max])
])
