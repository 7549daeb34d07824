package trtops.release.pointer_consistent_test

import data.trtops.release.pointer_consistent

base := {"environment": "prod", "engine": "e", "release": {"identity": "sha256:r"}, "config": {"identity": "sha256:c", "environment": "prod", "engine": "e"}, "binding": {"engine_release": "sha256:r", "config_release": "sha256:c", "generation": 4}, "previous": {"generation": 3}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in pointer_consistent.findings with input as document
}

test_consistent if places({}) == set()

test_another_release if places({"binding": {"engine_release": "sha256:x"}}) == {["engine_release"]}

test_another_config if places({"binding": {"config_release": null}}) == {["config_release"]}

test_config_of_another_environment if places({"config": {"environment": "dev"}}) == {["environment"]}

test_config_of_another_engine if places({"config": {"engine": "f"}}) == {["engine"]}

test_generation_kept if places({"binding": {"generation": 3}}) == {["generation"]}

test_generation_skipped if places({"binding": {"generation": 5}}) == {["generation"]}

test_first if places({"binding": {"generation": 1}, "previous": null}) == set()

test_first_is_one if places({"previous": null}) == {["generation"]}

test_previous_wrong_type if places({"previous": {"generation": "3"}}) == {["generation"]}

test_wrong_type if places({"binding": {"generation": "4"}}) == {["generation"]}

test_missing if complaints({}) == {["engine_release"], ["config_release"], ["environment"], ["engine"], ["generation"]}
