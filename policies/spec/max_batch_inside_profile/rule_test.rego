package trtops.spec.max_batch_inside_profile_test

import data.trtops.spec.max_batch_inside_profile

base := {"tier": "bronze", "facts": {"batching": {"max_batch": 8, "preferred": [4, 8], "max_queue_delay_us": 2000, "queue_max_size": 16, "queue_timeout_us": 10000, "priorities": 2}, "profiles": [{"name": "p", "batch": {"min": 1, "opt": 1, "max": 8}}]}, "runtime": {"batching": {"max_batch": null, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {place(finding) |
	some finding in max_batch_inside_profile.findings with input as document
}

place(finding) := array.concat([finding.document], finding.path)

place(finding) := finding.path if not finding.document

test_preflight_says_so if places({"preflight": {"facts": [{"code": "batching.outside-profile", "severity": "error", "message": "m", "path": ["batching", "max_batch"], "node": null, "fix": "f"}]}}) == {["batching", "max_batch"]}

test_said_once if places({"facts": {"batching": {"max_batch": 9}}, "preflight": {"facts": [{"code": "batching.outside-profile", "severity": "error", "message": "m", "path": ["batching", "max_batch"], "node": null, "fix": "f"}]}}) == {["batching", "max_batch"]}

test_said_of_preferred if places({"preflight": {"facts": [{"code": "batching.outside-profile", "severity": "error", "message": "m", "path": ["batching", "preferred", 0], "node": null, "fix": "f"}]}}) == set()

test_the_override_is_said_too if places({"runtime": {"batching": {"max_batch": 9, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}, "preflight": {"facts": [{"code": "batching.outside-profile", "severity": "error", "message": "m", "path": ["batching", "max_batch"], "node": null, "fix": "f"}]}}) == {["batching", "max_batch"], ["runtime", "batching", "max_batch"]}

test_at_the_largest if places({}) == set()

test_one_above if places({"facts": {"batching": {"max_batch": 9}}}) == {["batching", "max_batch"]}

test_below_the_smallest if places({"facts": {"profiles": [{"name": "p", "batch": {"min": 9, "opt": 9, "max": 16}}]}}) == {["batching", "max_batch"]}

test_second_profile if places({"facts": {"batching": {"max_batch": 32}, "profiles": [{"name": "p", "batch": {"min": 1, "opt": 1, "max": 8}}, {"name": "p", "batch": {"min": 16, "opt": 16, "max": 32}}]}}) == set()

test_between_profiles if places({"facts": {"batching": {"max_batch": 12}, "profiles": [{"name": "p", "batch": {"min": 1, "opt": 1, "max": 8}}, {"name": "p", "batch": {"min": 16, "opt": 16, "max": 32}}]}}) == {["batching", "max_batch"]}

test_no_batch_dimension if places({"facts": {"batching": {"max_batch": 1}, "profiles": [{"name": "p", "batch": null}]}}) == set()

test_no_batch_dimension_two_rows if places({"facts": {"batching": {"max_batch": 2}, "profiles": [{"name": "p", "batch": null}]}}) == {["batching", "max_batch"]}

test_no_profile if places({"facts": {"batching": {"max_batch": 1}, "profiles": []}}) == {["batching", "max_batch"]}

test_override_inside if places({"runtime": {"batching": {"max_batch": 8, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}) == set()

test_override_above if places({"runtime": {"batching": {"max_batch": 9, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}) == {["runtime", "batching", "max_batch"]}

test_override_empty if places({"runtime": {"batching": {"max_batch": null, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}) == set()

test_override_wrong_type if places({"runtime": {"batching": {"max_batch": "9", "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}) == {["runtime", "batching", "max_batch"]}

test_wrong_type if places({"facts": {"batching": {"max_batch": "8"}}}) == {["batching", "max_batch"]}

test_fraction if places({"facts": {"batching": {"max_batch": 7.5}}}) == {["batching", "max_batch"]}

test_missing if complaints({}) == {["batching", "max_batch"], ["profiles"], ["runtime", "batching", "max_batch"]}
