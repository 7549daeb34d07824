package trtops.spec.queue_bounded_test

import data.trtops.spec.queue_bounded

base := {"tier": "bronze", "facts": {"batching": {"max_batch": 8, "preferred": [4, 8], "max_queue_delay_us": 2000, "queue_max_size": 16, "queue_timeout_us": 10000, "priorities": 2}, "profiles": [{"name": "p", "batch": {"min": 1, "opt": 1, "max": 8}}]}, "runtime": {"batching": {"max_batch": null, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}

limits := {"strictest": "gold", "tiers": {"bronze": {"queue_size": 16, "queue_timeout_ms": 10, "queue_delay_ms": 2}, "gold": {"queue_size": 8, "queue_timeout_ms": 5, "queue_delay_ms": 1}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {place(finding) |
	some finding in queue_bounded.findings with input as document with data.limits as limits
}

place(finding) := array.concat([finding.document], finding.path)

place(finding) := finding.path if not finding.document

test_at_the_limits if places({}) == set()

test_too_long if places({"facts": {"batching": {"queue_max_size": 17}}}) == {["batching", "queue", "max_size"]}

test_timeout_too_long if places({"facts": {"batching": {"queue_timeout_us": 10001}}}) == {["batching", "queue", "timeout"]}

test_no_time if places({"facts": {"batching": {"queue_timeout_us": 0}}}) == {["batching", "queue", "timeout"]}

test_delay_too_long if places({"facts": {"batching": {"max_queue_delay_us": 2001}}}) == {["batching", "max_queue_delay"]}

test_delay_reaches_timeout if places({"facts": {"batching": {"queue_timeout_us": 2000}}}) == {["batching", "max_queue_delay"]}

test_delay_below_timeout if places({"facts": {"batching": {"queue_timeout_us": 2001}}}) == set()

test_override_too_long if places({"runtime": {"batching": {"max_batch": null, "preferred": null, "max_queue_delay_us": null, "queue_max_size": 17, "queue_timeout_us": null, "priorities": null}}}) == {["runtime", "batching", "queue", "max_size"]}

test_override_delay_meets_spec_timeout if places({"facts": {"batching": {"queue_timeout_us": 1500, "max_queue_delay_us": 1000}}, "runtime": {"batching": {"max_batch": null, "preferred": null, "max_queue_delay_us": 1500, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}) == {["runtime", "batching", "max_queue_delay"]}

test_override_timeout_meets_spec_delay if places({"runtime": {"batching": {"max_batch": null, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": 2000, "priorities": null}}}) == {["runtime", "batching", "max_queue_delay"]}

test_override_fine if places({"runtime": {"batching": {"max_batch": null, "preferred": null, "max_queue_delay_us": 1, "queue_max_size": 16, "queue_timeout_us": 10000, "priorities": null}}}) == set()

test_override_queue_wrong_type if places({"runtime": {"batching": {"max_batch": null, "preferred": null, "max_queue_delay_us": null, "queue_max_size": "long", "queue_timeout_us": null, "priorities": null}}}) == {["runtime", "batching", "queue", "max_size"]}

test_wrong_type if places({"facts": {"batching": {"queue_max_size": "16"}}}) == {["batching", "queue", "max_size"]}

test_missing if complaints({}) == {["batching", "queue", "max_size"], ["batching", "queue", "timeout"], ["batching", "max_queue_delay"], ["runtime", "batching", "queue", "max_size"], ["runtime", "batching", "queue", "timeout"], ["runtime", "batching", "max_queue_delay"]}

test_no_limit_no_pass if {
	found := {place(finding) |
		some finding in queue_bounded.findings with input as object.union(base, {}) with data.limits as {}
	}
	found == {["batching", "queue", "max_size"], ["batching", "queue", "timeout"], ["batching", "max_queue_delay"]}
}
