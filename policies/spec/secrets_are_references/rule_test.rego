package trtops.spec.secrets_are_references_test

import data.trtops.spec.secrets_are_references

base := {"runtime": {"secrets": [{"path": ["database", "password"], "key": "password", "kind": "reference"}]}}

secrets := {"harmless_keys": ["max_tokens"]}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {place(finding) |
	some finding in secrets_are_references.findings with input as document with data.secrets as secrets
}

place(finding) := array.concat([finding.document], finding.path)

test_reference if places({}) == set()

test_absent if places({"runtime": {"secrets": [{"path": ["database", "password"], "key": "password", "kind": "absent"}]}}) == set()

test_plain if places({"runtime": {"secrets": [{"path": ["database", "password"], "key": "password", "kind": "plain"}]}}) == {["runtime", "database", "password"]}

test_embedded if places({"runtime": {"secrets": [{"path": ["database", "password"], "key": "password", "kind": "embedded"}]}}) == {["runtime", "database", "password"]}

test_harmless_key if places({"runtime": {"secrets": [{"path": ["database", "password"], "key": "max_tokens", "kind": "plain"}]}}) == set()

test_harmless_key_embedded if places({"runtime": {"secrets": [{"path": ["database", "password"], "key": "max_tokens", "kind": "embedded"}]}}) == {["runtime", "database", "password"]}

test_unknown_kind if places({"runtime": {"secrets": [{"path": ["database", "password"], "key": "password", "kind": "sealed?"}]}}) == {["runtime", "database", "password"]}

test_none if places({"runtime": {"secrets": []}}) == set()

test_wrong_type if places({"runtime": {"secrets": "no"}}) == {["runtime"]}

test_wrong_element if places({"runtime": {"secrets": [{"kind": 1}]}}) == {["runtime", 0]}

test_missing if complaints({}) == {["runtime"]}

test_no_data if {
	found := {place(finding) |
		some finding in secrets_are_references.findings with input as object.union(base, {"runtime": {"secrets": [{"path": ["database", "password"], "key": "max_tokens", "kind": "plain"}]}}) with data.secrets as {}
	}
	found == {["runtime", "database", "password"]}
}
