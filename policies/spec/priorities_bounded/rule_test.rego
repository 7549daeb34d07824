package trtops.spec.priorities_bounded_test

import data.trtops.spec.priorities_bounded

base := {"tier": "bronze", "facts": {"batching": {"max_batch": 8, "preferred": [4, 8], "max_queue_delay_us": 2000, "queue_max_size": 16, "queue_timeout_us": 10000, "priorities": 2}, "profiles": [{"name": "p", "batch": {"min": 1, "opt": 1, "max": 8}}]}, "runtime": {"batching": {"max_batch": null, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}

limits := {"strictest": "gold", "tiers": {"bronze": {"priorities": 2}, "gold": {"priorities": 1}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {place(finding) |
	some finding in priorities_bounded.findings with input as document with data.limits as limits
}

place(finding) := array.concat([finding.document], finding.path)

place(finding) := finding.path if not finding.document

test_at_the_limit if places({}) == set()

test_above if places({"facts": {"batching": {"priorities": 3}}}) == {["batching", "priorities"]}

test_zero if places({"facts": {"batching": {"priorities": 0}}}) == {["batching", "priorities"]}

test_override_above if places({"runtime": {"batching": {"max_batch": null, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": 3}}}) == {["runtime", "batching", "priorities"]}

test_wrong_type if places({"facts": {"batching": {"priorities": "2"}}}) == {["batching", "priorities"]}

test_missing if complaints({}) == {["batching", "priorities"], ["runtime", "batching", "priorities"]}
