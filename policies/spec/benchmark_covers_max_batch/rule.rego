# METADATA
# scope: package
# title: The largest batch is measured
# description: |
#   Latency is worst at the largest batch that clients can meet. If that size is not measured, no gate has seen
#   it.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Add `batching.max_batch` to `benchmark.batch_sizes`.
package trtops.spec.benchmark_covers_max_batch

import data.trtops.lib.batching
import data.trtops.lib.facts
import data.trtops.lib.text

needs := [{"fact": ["facts", "benchmark", "batch_sizes"], "kind": "list of counts", "path": ["benchmark", "batch_sizes"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if some finding in batching.broken.max_batch

findings contains {
	"message": sprintf("max_batch is %s, and the benchmark measures %s", [text.number(rows), measured]),
	"path": ["benchmark", "batch_sizes"],
} if {
	some place in batching.places
	rows := place.values.max_batch
	is_number(rows)
	not rows in sizes
}

sizes := facts.list(["facts", "benchmark", "batch_sizes"])

measured := concat(", ", [text.number(rows) | some rows in sizes; is_number(rows)])
