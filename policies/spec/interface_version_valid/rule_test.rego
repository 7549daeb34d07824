package trtops.spec.interface_version_valid_test

import data.trtops.spec.interface_version_valid

base := {"facts": {"interface_version": "1.0.0", "interface_numbers": [1, 0, 0]}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in interface_version_valid.findings with input as document
}

test_valid if places({}) == set()

test_smallest if places({"facts": {"interface_version": "0.0.1", "interface_numbers": [0, 0, 1]}}) == set()

test_zeros if places({"facts": {"interface_version": "0.0.0", "interface_numbers": [0, 0, 0]}}) == {["interface", "version"]}

test_two_parts if places({"facts": {"interface_version": "1.0", "interface_numbers": [1, 0]}}) == {["interface", "version"]}

test_leading_zero if places({"facts": {"interface_version": "01.0.0", "interface_numbers": [1, 0, 0]}}) == {["interface", "version"]}

test_suffix if places({"facts": {"interface_version": "1.0.0-rc1", "interface_numbers": [1, 0, 0]}}) == {["interface", "version"]}

test_numbers_of_another if places({"facts": {"interface_version": "1.0.0", "interface_numbers": [1, 0, 1]}}) == {["interface", "version"]}

test_no_numbers if places({"facts": {"interface_version": "1.0.0", "interface_numbers": null}}) == {["interface", "version"]}

test_wrong_type if places({"facts": {"interface_version": 1.0, "interface_numbers": [1, 0, 0]}}) == {["interface", "version"]}

test_missing if complaints({}) == {["interface", "version"]}
