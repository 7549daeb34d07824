package trtops.source.plugins_pinned_test

import data.trtops.source.plugins_pinned

base := {"facts": {"plugins": []}}

plugins := {"builtin": ["ROIAlign_TRT"], "libraries": [{"sha256": "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd", "name": "p", "reviewed_by": "x"}]}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in plugins_pinned.findings with input as document with data.plugins as plugins
}

test_none if places({}) == set()

test_reviewed if places({"facts": {"plugins": [{"name": null, "library": "p.so", "sha256": "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"}]}}) == set()

test_not_reviewed if places({"facts": {"plugins": [{"name": null, "library": "p.so", "sha256": "efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef"}]}}) == {["builder", "plugins", 0, "sha256"]}

test_not_pinned if places({"facts": {"plugins": [{"name": null, "library": "p.so", "sha256": null}]}}) == {["builder", "plugins", 0, "library"]}

test_builtin if places({"facts": {"plugins": [{"name": "ROIAlign_TRT", "library": null, "sha256": null}]}}) == set()

test_unknown_name if places({"facts": {"plugins": [{"name": "Mine", "library": null, "sha256": null}]}}) == {["builder", "plugins", 0, "name"]}

test_a_library_with_a_builtin_name if places({"facts": {"plugins": [{"name": "ROIAlign_TRT", "library": "p.so", "sha256": null}]}}) == {["builder", "plugins", 0, "library"]}

test_nothing if places({"facts": {"plugins": [{"name": null, "library": null, "sha256": null}]}}) == {["builder", "plugins", 0]}

test_wrong_type if places({"facts": {"plugins": [{"name": null, "library": 5, "sha256": null}]}}) == {["builder", "plugins", 0, "library"]}

test_missing if complaints({}) == {["builder", "plugins"]}

test_no_list_no_pass if {
	found := {finding.path |
		some finding in plugins_pinned.findings with input as object.union(base, {"facts": {"plugins": [{"name": null, "library": "p.so", "sha256": "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"}]}}) with data.plugins as {}
	}
	found == {["builder", "plugins", 0, "sha256"]}
}
