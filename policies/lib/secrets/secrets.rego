# METADATA
# scope: package
# title: Places that hold, or should hold, a secret
# description: |
#   Judges the list of secret-like fields that is computed beforehand; the values themselves are in no input.
package trtops.lib.secrets

import data.trtops.lib.facts

# Findings for a list that cannot be read.
malformed(list) := union({
	facts.malformed([{"fact": list, "kind": "list of maps", "path": [], "document": "runtime"}]),
	facts.malformed_each(
		{"fact": list, "path": [], "document": "runtime"},
		[
			{"fact": ["kind"], "kind": "text", "path": []},
			{"fact": ["key"], "kind": "text", "path": []},
			{"fact": ["path"], "kind": "list", "path": []},
		],
	),
})

# Fields whose value is neither a reference nor absent, less those whose key is known to be harmless.
exposed(list) := {field |
	some field in facts.list(list)
	is_array(field.path)
	is_string(field.key)
	not sealed(field)
	not harmless(field)
}

sealed(field) if field.kind in {"reference", "absent"}

harmless(field) if {
	field.kind == "plain"
	field.key in data.secrets.harmless_keys
}

message(field) := sprintf("%s holds a secret in plain text", [field.key]) if field.kind != "embedded"

message(field) := sprintf("%s carries a secret within its text", [field.key]) if field.kind == "embedded"
