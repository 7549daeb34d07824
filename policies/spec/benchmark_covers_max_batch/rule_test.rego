package trtops.spec.benchmark_covers_max_batch_test

import data.trtops.spec.benchmark_covers_max_batch

base := {"facts": {"batching": {"max_batch": 8, "preferred": [4, 8], "max_queue_delay_us": 2000, "queue_max_size": 16, "queue_timeout_us": 10000, "priorities": 2}, "benchmark": {"batch_sizes": [1, 8]}}, "runtime": {"batching": {"max_batch": null, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {place(finding) |
	some finding in benchmark_covers_max_batch.findings with input as document
}

place(finding) := array.concat([finding.document], finding.path)

place(finding) := finding.path if not finding.document

test_covered if places({}) == set()

test_not_covered if places({"facts": {"benchmark": {"batch_sizes": [1, 4]}}}) == {["benchmark", "batch_sizes"]}

test_more_is_fine if places({"facts": {"benchmark": {"batch_sizes": [1, 8, 16]}}}) == set()

test_none if places({"facts": {"benchmark": {"batch_sizes": []}}}) == {["benchmark", "batch_sizes"]}

test_override_not_covered if places({"runtime": {"batching": {"max_batch": 4, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}) == {["benchmark", "batch_sizes"]}

test_override_covered if places({"runtime": {"batching": {"max_batch": 1, "preferred": null, "max_queue_delay_us": null, "queue_max_size": null, "queue_timeout_us": null, "priorities": null}}}) == set()

test_wrong_type if places({"facts": {"benchmark": {"batch_sizes": "8"}}}) == {["benchmark", "batch_sizes"]}

test_wrong_element if places({"facts": {"benchmark": {"batch_sizes": ["8"]}}}) == {["benchmark", "batch_sizes"]}

test_missing if complaints({}) == {["benchmark", "batch_sizes"], ["batching", "max_batch"], ["runtime", "batching", "max_batch"]}
