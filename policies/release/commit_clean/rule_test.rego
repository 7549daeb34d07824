package trtops.release.commit_clean_test

import data.trtops.release.commit_clean

base := {"environment": "prod", "release": {"commit": "abc", "dirty": false}}

release := {"environments": {"local": {"clean_commit": false}, "default": {"clean_commit": true}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in commit_clean.findings with input as document with data.release as release
}

test_clean if places({}) == set()

test_dirty if places({"release": {"commit": "abc-dirty", "dirty": true}}) == {["commit"]}

test_none if places({"release": {"commit": null, "dirty": false}}) == {["commit"]}

test_blank if places({"release": {"commit": "", "dirty": false}}) == {["commit"]}

test_dirty_here if places({"environment": "local", "release": {"commit": "abc-dirty", "dirty": true}}) == set()

test_none_here if places({"environment": "local", "release": {"commit": null, "dirty": false}}) == set()

test_wrong_type if places({"release": {"commit": 5, "dirty": "no"}}) == {["commit"]}

test_missing if complaints({}) == {["commit"]}

test_no_table_no_pass if {
	found := {finding.path |
		some finding in commit_clean.findings with input as object.union(base, {"release": {"commit": null, "dirty": false}}) with data.release as {}
	}
	found == {["commit"]}
}
