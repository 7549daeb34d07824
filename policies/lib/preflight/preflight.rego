# METADATA
# scope: package
# title: What preflight found
# description: |
#   Reads a fact of preflight into a finding. A fact whose parts are broken still becomes one.
package trtops.lib.preflight

import data.trtops.lib.facts

# What preflight found, as far as it can be read; the rule `spec.preflight_errors` denies the rest.
found := [fact | some fact in facts.list(["preflight", "facts"]); is_object(fact)]

finding(fact) := {"message": message(fact), "path": path(fact), "fix": fix(fact)}

# Facts that a rule of their own judges: it emits each of them, or says the same in stronger words. So a finding has one
# owner, and one waiver.
owners := [
	{"code": "batching.outside-profile", "path": ["batching", "max_batch"], "rule": "spec.max_batch_inside_profile"},
	{"code": "batching.outside-profile", "path": ["batching", "preferred"], "rule": "spec.preferred_sizes_inside"},
	{"code": "batching.preferred-above-max", "path": ["batching", "preferred"], "rule": "spec.preferred_sizes_inside"},
	{"code": "memory.workspace-absent", "path": ["memory", "workspace"], "rule": "spec.workspace_set"},
]

owned(fact) if {
	some owner in owners
	is_about(fact, owner.code, owner.path)
}

is_about(fact, code, beginning) if {
	fact.code == code
	is_array(fact.path)
	array.slice(fact.path, 0, count(beginning)) == beginning
}

default severity(_) := "unknown"

severity(fact) := fact.severity if is_string(fact.severity)

default message(_) := "preflight found something that it could not describe"

message(fact) := fact.message if {
	is_string(fact.message)
	not names_node(fact)
}

message(fact) := sprintf("%s (%s)", [fact.message, fact.node]) if {
	is_string(fact.message)
	names_node(fact)
}

names_node(fact) if is_string(fact.node)

default path(_) := []

path(fact) := fact.path if is_array(fact.path)

default fix(_) := "run `trtops check` again, and report what it prints if this stays"

fix(fact) := fact.fix if is_string(fact.fix)
