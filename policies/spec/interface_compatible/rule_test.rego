package trtops.spec.interface_compatible_test

import data.trtops.spec.interface_compatible

base := {
	"facts": {"interface_numbers": [1, 2, 0]},
	"interface": {"released": "1.2.0", "released_numbers": [1, 2, 0], "change": {"kind": "none", "changes": ["input x is gone"]}},
}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in interface_compatible.findings with input as document
}

change(kind, numbers) := {"facts": {"interface_numbers": numbers}, "interface": {"change": {"kind": kind}}}

at_version := {["interface", "version"]}

test_unchanged if places({}) == set()

test_lower if places(change("none", [1, 1, 9])) == at_version

test_breaking_same_major if places(change("breaking", [1, 3, 0])) == at_version

test_breaking_new_major if places(change("breaking", [2, 0, 0])) == set()

test_compatible_patch if places(change("compatible", [1, 2, 1])) == at_version

test_compatible_minor if places(change("compatible", [1, 3, 0])) == set()

test_compatible_major if places(change("compatible", [2, 0, 0])) == set()

test_none_patch if places(change("none", [1, 2, 1])) == set()

test_unknown_kind_is_breaking if places(change("maybe", [1, 3, 0])) == at_version

test_numeric_not_text if places({
	"facts": {"interface_numbers": [1, 10, 0]},
	"interface": {"released_numbers": [1, 9, 0], "change": {"kind": "compatible"}},
}) == set()

test_says_what_breaks if {
	some finding in interface_compatible.findings with input as object.union(base, change("breaking", [1, 2, 1]))
	contains(finding.message, "input x is gone")
}

test_nothing_released if places({"interface": {"released": null, "released_numbers": null, "change": null}}) == set()

test_a_release_without_its_change if places({"interface": {"change": null}}) == {["interface"], ["interface", "version"]}

test_a_change_without_its_release if places({"interface": {"released_numbers": null}}) == at_version

test_wrong_type if places({"facts": {"interface_numbers": "1.2.0"}}) == at_version

test_missing if complaints({}) == {["interface"], ["interface", "version"]}
