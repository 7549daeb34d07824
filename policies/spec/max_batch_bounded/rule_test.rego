package trtops.spec.max_batch_bounded_test

import data.trtops.spec.max_batch_bounded

base := {"tier": "bronze", "facts": {"batching": {"max_batch": 8, "preferred": [4, 8], "max_queue_delay_us": 2000, "queue_max_size": 16, "queue_timeout_us": 10000, "priorities": 2}, "profiles": [{"name": "p", "batch": {"min": 1, "opt": 1, "max": 8}}]}, "runtime": {"batching": {"max_batch": null, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}

limits := {"strictest": "gold", "tiers": {"bronze": {"max_batch": 8}, "gold": {"max_batch": 4}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {place(finding) |
	some finding in max_batch_bounded.findings with input as document with data.limits as limits
}

place(finding) := array.concat([finding.document], finding.path)

place(finding) := finding.path if not finding.document

test_at_the_limit if places({}) == set()

test_one_above if places({"facts": {"batching": {"max_batch": 9}}}) == {["batching", "max_batch"]}

test_override_above if places({"runtime": {"batching": {"max_batch": 9, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}) == {["runtime", "batching", "max_batch"]}

test_override_at_the_limit if places({"runtime": {"batching": {"max_batch": 8, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}) == set()

test_wrong_type if places({"facts": {"batching": {"max_batch": [8]}}}) == {["batching", "max_batch"]}

test_missing if complaints({}) == {["batching", "max_batch"], ["runtime", "batching", "max_batch"]}

test_no_limit_no_pass if {
	found := {place(finding) |
		some finding in max_batch_bounded.findings with input as object.union(base, {}) with data.limits as {}
	}
	found == {["batching", "max_batch"]}
}
