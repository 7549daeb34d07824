package trtops.release.pointer_expires_test

import data.trtops.release.pointer_expires

base := {"environment": "prod", "binding": {"lifetime_seconds": 7200}}

release := {"environments": {"local": {"max_lifetime_hours": null}, "default": {"max_lifetime_hours": 2}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in pointer_expires.findings with input as document with data.release as release
}

test_at_the_limit if places({}) == set()

test_too_long if places({"binding": {"lifetime_seconds": 7201}}) == {["expires"]}

test_never if places({"binding": {"lifetime_seconds": null}}) == {["expires"]}

test_never_here if places({"environment": "local", "binding": {"lifetime_seconds": null}}) == set()

test_long_here if places({"environment": "local", "binding": {"lifetime_seconds": 1000000000}}) == set()

test_one_second if places({"binding": {"lifetime_seconds": 1}}) == set()

test_expired if places({"binding": {"lifetime_seconds": 0}}) == {["expires"]}

test_expired_here if places({"environment": "local", "binding": {"lifetime_seconds": -1}}) == {["expires"]}

test_wrong_type if places({"binding": {"lifetime_seconds": "2h"}}) == {["expires"]}

test_missing if complaints({}) == {["expires"]}

test_no_table_no_pass if {
	found := {finding.path |
		some finding in pointer_expires.findings with input as object.union(base, {}) with data.release as {}
	}
	found == {["expires"]}
}
