package trtops.release.server_port_unprivileged_test

import data.trtops.release.server_port_unprivileged

base := {"config": {"port": 8000}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {place(finding) |
	some finding in server_port_unprivileged.findings with input as document
}

place(finding) := array.concat([finding.document], finding.path)

test_usual if places({}) == set()

test_the_last_denied if places({"config": {"port": 1024}}) == {["runtime", "server", "port"]}

test_first_allowed if places({"config": {"port": 1025}}) == set()

test_last if places({"config": {"port": 65535}}) == set()

test_beyond if places({"config": {"port": 65536}}) == {["runtime", "server", "port"]}

test_wrong_type if places({"config": {"port": "8000"}}) == {["runtime", "server", "port"]}

test_missing if complaints({}) == {["runtime", "server", "port"]}
