package trtops.release.schema_not_downgraded_test

import data.trtops.release.schema_not_downgraded

base := {"release": {"schema_version": 1}, "config": {"schema_version": 1}, "previous": {"schema_version": 1, "config_schema_version": 1}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in schema_not_downgraded.findings with input as document
}

test_the_same if places({}) == set()

test_newer if places({"release": {"schema_version": 2}}) == set()

test_older if places({"previous": {"schema_version": 2, "config_schema_version": 1}}) == {["apiVersion"]}

test_config_older if places({"previous": {"schema_version": 1, "config_schema_version": 2}}) == {["apiVersion"]}

test_config_before_unknown if places({"previous": {"schema_version": 1, "config_schema_version": null}}) == set()

test_older_config_before_unknown if places({"previous": {"schema_version": 2, "config_schema_version": null}}) == {["apiVersion"]}

test_first if places({"previous": null}) == set()

test_unknown if places({"release": {"schema_version": null}}) == {["apiVersion"]}

test_previous_unknown if places({"previous": {"schema_version": null, "config_schema_version": 1}}) == {["apiVersion"]}

test_previous_wrong_type if places({"previous": 7}) == {["apiVersion"]}

test_wrong_type if places({"config": {"schema_version": "1"}}) == {["apiVersion"]}

test_missing if complaints({}) == {["apiVersion"]}
