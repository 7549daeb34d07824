package trtops.release.interface_compatible_test

import data.trtops.release.interface_compatible

base := {"action": "release", "release": {"interface_numbers": [1, 2, 0]}, "previous": {"interface_numbers": [1, 2, 0]}, "interface_change": {"kind": "none", "changes": ["input x is gone"]}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in interface_compatible.findings with input as document
}

test_unchanged if places({}) == set()

test_lower if places({"release": {"interface_numbers": [1, 1, 9]}, "previous": {"interface_numbers": [1, 2, 0]}, "interface_change": {"kind": "none", "changes": ["input x is gone"]}}) == {["contract", "version"]}

test_rollback_goes_back if places({"release": {"interface_numbers": [1, 1, 9]}, "previous": {"interface_numbers": [1, 2, 0]}, "interface_change": {"kind": "breaking", "changes": ["input x is gone"]}, "action": "rollback"}) == set()

test_breaking_same_major if places({"release": {"interface_numbers": [1, 3, 0]}, "previous": {"interface_numbers": [1, 2, 0]}, "interface_change": {"kind": "breaking", "changes": ["input x is gone"]}}) == {["contract", "version"]}

test_breaking_new_major if places({"release": {"interface_numbers": [2, 0, 0]}, "previous": {"interface_numbers": [1, 2, 0]}, "interface_change": {"kind": "breaking", "changes": ["input x is gone"]}}) == set()

test_compatible_patch if places({"release": {"interface_numbers": [1, 2, 1]}, "previous": {"interface_numbers": [1, 2, 0]}, "interface_change": {"kind": "compatible", "changes": ["input x is gone"]}}) == {["contract", "version"]}

test_compatible_minor if places({"release": {"interface_numbers": [1, 3, 0]}, "previous": {"interface_numbers": [1, 2, 0]}, "interface_change": {"kind": "compatible", "changes": ["input x is gone"]}}) == set()

test_compatible_major if places({"release": {"interface_numbers": [2, 0, 0]}, "previous": {"interface_numbers": [1, 2, 0]}, "interface_change": {"kind": "compatible", "changes": ["input x is gone"]}}) == set()

test_none_patch if places({"release": {"interface_numbers": [1, 2, 1]}, "previous": {"interface_numbers": [1, 2, 0]}, "interface_change": {"kind": "none", "changes": ["input x is gone"]}}) == set()

test_unknown_kind_is_breaking if places({"release": {"interface_numbers": [1, 3, 0]}, "previous": {"interface_numbers": [1, 2, 0]}, "interface_change": {"kind": "maybe", "changes": ["input x is gone"]}}) == {["contract", "version"]}

test_numeric_not_text if places({"release": {"interface_numbers": [1, 10, 0]}, "previous": {"interface_numbers": [1, 9, 0]}, "interface_change": {"kind": "compatible", "changes": ["input x is gone"]}}) == set()

test_first if places({"previous": null, "interface_change": null}) == set()

test_change_unknown if places({"interface_change": null}) == {["contract"], ["contract", "version"]}

test_wrong_type if places({"release": {"interface_numbers": "1.2.0"}}) == {["contract", "version"]}

test_missing if complaints({}) == {["contract"], ["reason"], ["contract", "version"]}
