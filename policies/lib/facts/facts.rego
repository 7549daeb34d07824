# METADATA
# scope: package
# title: Facts of the judged document
# description: |
#   Reads the input with no surprise: a missing or mistyped fact becomes a finding of the rule that needs it, and never
#   an undefined rule. `list` and `map` give something that can be walked whatever the input holds.
package trtops.lib.facts

# A set is nothing that JSON can hold, so no input can look like it.
missing := set()

# The value at a path of the input, or `missing`.
at(path) := object.get(input, path, missing)

# The array at a path of the input; empty where there is none.
default list(_) := []

list(path) := value if {
	value := at(path)
	is_array(value)
}

# The object at a path of the input; empty where there is none.
default map(_) := {}

map(path) := value if {
	value := at(path)
	is_object(value)
}

# Lists that many rules walk, read once a document.
targets := list(["facts", "targets"])

sources := list(["facts", "sources"])

plugins := list(["facts", "plugins"])

# Findings for such a list that is none, or that holds anything but objects.
unknown_targets := malformed([{"fact": ["facts", "targets"], "kind": "list of maps", "path": ["targets"]}])

unknown_sources := malformed([{"fact": ["facts", "sources"], "kind": "list of maps", "path": ["model"]}])

# Findings for facts that are not what a rule needs. A need is {"fact": path in the input, "kind": one of those below,
# "path": where it stands in the author's document}, with "document" where that is another than the engine's.
malformed(needs) := {finding |
	some need in needs
	value := object.get(input, need.fact, missing)
	kind := object.get(need, "kind", "known")
	not types[kind][type_name(value)]
	not is_whole(value, kind)
	not is_listed(value, kind)
	finding := placed(describe(need.fact, value, kind), need.path, need)
}

# The same for each element of a list: `within` is {"fact": its path in the input, "path": its path in the document},
# `wants` are needs relative to an element. An element that is no object is a finding of the list itself.
malformed_each(within, wants) := {finding |
	some index, element in list(within.fact)
	is_object(element)
	some want in wants
	value := object.get(element, want.fact, missing)
	kind := object.get(want, "kind", "known")
	not types[kind][type_name(value)]
	not is_whole(value, kind)
	not is_listed(value, kind)
	path := array.concat(array.concat(within.path, [index]), want.path)
	finding := placed(describe(want.fact, value, kind), path, within)
}

# A finding, in the document that `origin` names.
placed(message, path, origin) := {"message": message, "path": path, "document": origin.document}

placed(message, path, origin) := {"message": message, "path": path} if not origin.document

# The value at a path within a value of any type, or `missing`.
default part(_, _) := set()

part(value, path) := object.get(value, path, missing) if is_object(value)

describe(fact, value, kind) := sprintf("%s is %s, and this rule needs %s", [
	concat(".", fact),
	type_of(value),
	spelled(kind),
])

type_of(value) := "missing" if value == missing

type_of(value) := type_name(value) if value != missing

spelled(kind) := sprintf("a %s or null", [trim_suffix(kind, "?")]) if endswith(kind, "?")

spelled(kind) := sprintf("a %s", [kind]) if not endswith(kind, "?")

# Whether a value is of a kind: its type is enough, or it is a whole number, or its elements are of a type. A kind that
# ends in "?" takes null as well.
is_kind(value, kind) if types[kind][type_name(value)]

is_kind(value, kind) if is_whole(value, kind)

is_kind(value, kind) if is_listed(value, kind)

is_whole(value, kind) if {
	is_number(value)
	value >= least[kind]
	value <= 9007199254740991
	floor(value) == value
}

is_listed(value, kind) if {
	is_array(value)
	elements := element_types[kind]
	every element in value {
		type_name(element) == elements
	}
}

is_listed(value, kind) if {
	is_array(value)
	kind in {"list of counts", "list of counts?"}
	every element in value {
		is_count(element)
	}
}

# Types that are enough for a kind; every kind is here. Of one that is not, no value is.
types := {
	"boolean": {"boolean"},
	"count": set(),
	"count?": {"null"},
	"integer": set(),
	"integer?": {"null"},
	"list": {"array"},
	"list of counts": set(),
	"list of counts?": {"null"},
	"list of maps": set(),
	"list of texts": set(),
	"map": {"object"},
	"map?": {"object", "null"},
	"number": {"number"},
	"text": {"string"},
	"text?": {"string", "null"},
}

least := {"count": 0, "count?": 0, "integer": -9007199254740991, "integer?": -9007199254740991}

element_types := {"list of maps": "object", "list of texts": "string"}

# An integer that every engine carries exactly: 2^53 - 1 at most, as JSON itself promises no more.
is_integer(value) if {
	is_number(value)
	value <= 9007199254740991
	value >= -9007199254740991
	floor(value) == value
}

is_count(value) if {
	is_integer(value)
	value >= 0
}

# Comparisons that no other type can pass: a limit that is missing or no number bounds everything away.
at_most(value, limit) if {
	is_number(value)
	is_number(limit)
	value <= limit
}

at_least(value, limit) if {
	is_number(value)
	is_number(limit)
	value >= limit
}
