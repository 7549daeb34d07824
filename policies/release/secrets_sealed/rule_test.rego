package trtops.release.secrets_sealed_test

import data.trtops.release.secrets_sealed

base := {"config": {"secrets": [{"path": ["database", "password"], "key": "password", "kind": "reference"}]}}

secrets := {"harmless_keys": ["max_tokens"]}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {place(finding) |
	some finding in secrets_sealed.findings with input as document with data.secrets as secrets
}

place(finding) := array.concat([finding.document], finding.path)

test_reference if places({}) == set()

test_plain if places({"config": {"secrets": [{"path": ["database", "password"], "key": "password", "kind": "plain"}]}}) == {["runtime", "database", "password"]}

test_embedded if places({"config": {"secrets": [{"path": ["database", "password"], "key": "password", "kind": "embedded"}]}}) == {["runtime", "database", "password"]}

test_harmless if places({"config": {"secrets": [{"path": ["database", "password"], "key": "max_tokens", "kind": "plain"}]}}) == set()

test_none if places({"config": {"secrets": []}}) == set()

test_wrong_type if places({"config": {"secrets": null}}) == {["runtime"]}

test_missing if complaints({}) == {["runtime"]}
