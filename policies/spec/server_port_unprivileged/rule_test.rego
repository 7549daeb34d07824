package trtops.spec.server_port_unprivileged_test

import data.trtops.spec.server_port_unprivileged

base := {"runtime": {"present": true, "server": {"port": 8000}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {place(finding) |
	some finding in server_port_unprivileged.findings with input as document
}

place(finding) := array.concat([finding.document], finding.path)

test_usual if places({}) == set()

test_zero if places({"runtime": {"present": true, "server": {"port": 0}}}) == {["runtime", "server", "port"]}

test_http if places({"runtime": {"present": true, "server": {"port": 80}}}) == {["runtime", "server", "port"]}

test_last_privileged if places({"runtime": {"present": true, "server": {"port": 1023}}}) == {["runtime", "server", "port"]}

test_the_last_denied if places({"runtime": {"present": true, "server": {"port": 1024}}}) == {["runtime", "server", "port"]}

test_first_allowed if places({"runtime": {"present": true, "server": {"port": 1025}}}) == set()

test_last if places({"runtime": {"present": true, "server": {"port": 65535}}}) == set()

test_beyond if places({"runtime": {"present": true, "server": {"port": 65536}}}) == {["runtime", "server", "port"]}

test_no_runtime if places({"runtime": {"present": false, "server": {"port": null}}}) == set()

test_no_port if places({"runtime": {"present": true, "server": {"port": null}}}) == {["runtime", "server", "port"]}

test_negative if places({"runtime": {"present": true, "server": {"port": -1}}}) == {["runtime", "server", "port"]}

test_fraction if places({"runtime": {"present": true, "server": {"port": 8000.5}}}) == {["runtime", "server", "port"]}

test_wrong_type if places({"runtime": {"present": true, "server": {"port": "8000"}}}) == {["runtime", "server", "port"]}

test_missing if complaints({}) == {["runtime", "server", "port"]}
