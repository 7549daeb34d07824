# METADATA
# scope: package
# title: What preflight found
# description: |
#   Reads a fact of preflight into a finding. A fact whose parts are broken still becomes one.
package trtops.lib.preflight

default severity(_) := "unknown"

severity(fact) := fact.severity if is_string(fact.severity)

default message(_) := "preflight found something that it could not describe"

message(fact) := fact.message if {
	is_string(fact.message)
	not is_string(fact.node)
}

message(fact) := sprintf("%s (%s)", [fact.message, fact.node]) if {
	is_string(fact.message)
	is_string(fact.node)
}

default path(_) := []

path(fact) := fact.path if is_array(fact.path)

default fix(_) := "run `trtops check` again, and report what it prints if this stays"

fix(fact) := fact.fix if is_string(fact.fix)
