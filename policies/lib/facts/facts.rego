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

# Findings for facts that are not what a rule needs. A need is {"fact": path in the input, "kind": …, "path": where it
# stands in the author's document}, with "document" where that is another than the engine's.
malformed(needs) := {finding |
	some need in needs
	value := at(need.fact)
	not is_kind(value, need.kind)
	finding := placed(describe(need.fact, value, need.kind), need.path, need)
}

# The same for each element of a list: `list` is {"fact": its path in the input, "path": its path in the document},
# `wants` are needs relative to an element.
malformed_each(within, wants) := {finding |
	some index, element in list(within.fact)
	some want in wants
	value := part(element, want.fact)
	not is_kind(value, want.kind)
	path := array.concat(array.concat(within.path, [index]), want.path)
	finding := placed(describe(want.fact, value, want.kind), path, within)
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

# Whether a value is of a kind; a kind that ends in "?" takes null as well.
is_kind(value, kind) if {
	value == null
	endswith(kind, "?")
}

is_kind(value, kind) if is_plain(value, trim_suffix(kind, "?"))

is_plain(value, "count") if is_count(value)

is_plain(value, "integer") if is_integer(value)

is_plain(value, "number") if is_number(value)

is_plain(value, "text") if is_string(value)

is_plain(value, "boolean") if is_boolean(value)

is_plain(value, "list") if is_array(value)

is_plain(value, "map") if is_object(value)

is_plain(value, "list of counts") if {
	is_array(value)
	every element in value {
		is_count(element)
	}
}

is_plain(value, "list of texts") if {
	is_array(value)
	every element in value {
		is_string(element)
	}
}

is_plain(value, "list of maps") if {
	is_array(value)
	every element in value {
		is_object(element)
	}
}

is_integer(value) if {
	is_number(value)
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
