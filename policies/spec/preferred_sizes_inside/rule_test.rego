package trtops.spec.preferred_sizes_inside_test

import data.trtops.spec.preferred_sizes_inside

base := {"tier": "bronze", "facts": {"batching": {"max_batch": 8, "preferred": [4, 8], "max_queue_delay_us": 2000, "queue_max_size": 16, "queue_timeout_us": 10000, "priorities": 2}, "profiles": [{"name": "p", "batch": {"min": 1, "opt": 1, "max": 8}}]}, "runtime": {"batching": {"max_batch": null, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {place(finding) |
	some finding in preferred_sizes_inside.findings with input as document
}

place(finding) := array.concat([finding.document], finding.path)

place(finding) := finding.path if not finding.document

test_preflight_says_so if places({"preflight": {"facts": [{"code": "batching.outside-profile", "severity": "error", "message": "m", "path": ["batching", "preferred", 1], "node": null, "fix": "f"}]}}) == {["batching", "preferred", 1]}

test_said_once if places({"facts": {"batching": {"preferred": [9]}}, "preflight": {"facts": [{"code": "batching.preferred-above-max", "severity": "error", "message": "m", "path": ["batching", "preferred", 0], "node": null, "fix": "f"}]}}) == {["batching", "preferred", 0]}

test_said_of_another if places({"facts": {"batching": {"preferred": [9, 9]}}, "preflight": {"facts": [{"code": "batching.preferred-above-max", "severity": "error", "message": "m", "path": ["batching", "preferred", 0], "node": null, "fix": "f"}]}}) == {["batching", "preferred", 0], ["batching", "preferred", 1]}

test_said_of_max_batch if places({"preflight": {"facts": [{"code": "batching.outside-profile", "severity": "error", "message": "m", "path": ["batching", "max_batch"], "node": null, "fix": "f"}]}}) == set()

test_inside if places({}) == set()

test_above_max_batch if places({"facts": {"batching": {"preferred": [4, 9]}, "profiles": [{"name": "p", "batch": {"min": 1, "opt": 1, "max": 16}}]}}) == {["batching", "preferred", 1]}

test_at_max_batch if places({"facts": {"batching": {"preferred": [8]}}}) == set()

test_outside_profile if places({"facts": {"profiles": [{"name": "p", "batch": {"min": 5, "opt": 5, "max": 8}}]}}) == {["batching", "preferred", 0]}

test_none if places({"facts": {"batching": {"preferred": []}}}) == set()

test_override_above if places({"runtime": {"batching": {"max_batch": null, "preferred": [9], "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}, "facts": {"profiles": [{"name": "p", "batch": {"min": 1, "opt": 1, "max": 16}}]}}) == {["runtime", "batching", "preferred", 0]}

test_override_with_its_own_max if places({"runtime": {"batching": {"max_batch": 9, "preferred": [9], "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}, "facts": {"profiles": [{"name": "p", "batch": {"min": 1, "opt": 1, "max": 16}}]}}) == set()

test_wrong_type if places({"facts": {"batching": {"preferred": "8"}}}) == {["batching", "preferred"]}

test_wrong_element if places({"facts": {"batching": {"preferred": [4, "8"]}}}) == {["batching", "preferred"]}

test_missing if complaints({}) == {["batching", "preferred"], ["batching", "max_batch"], ["profiles"], ["runtime", "batching", "preferred"], ["runtime", "batching", "max_batch"]}
