# METADATA
# scope: package
# title: Every declared batch size was measured often enough
# description: |
#   A batch size that is missing, or that was run a handful of times, was not measured. How many runs are enough
#   follows from the tier.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Measure again with the spec's batch sizes; raise `benchmark.duration` if there are too few runs.
package trtops.evidence.benchmark_complete

import data.trtops.lib.facts
import data.trtops.lib.limits
import data.trtops.lib.measured
import data.trtops.lib.text

needs := [
	{"fact": ["declared", "batch_sizes"], "kind": "list of counts", "path": ["benchmark", "rows"]},
	{"fact": ["evidence", "benchmark"], "kind": "map?", "path": ["benchmark"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if some finding in measured.malformed([])

findings contains {
	"message": sprintf("batch size %s was not measured", [text.number(batch)]),
	"path": ["benchmark", "rows"],
} if {
	is_object(facts.at(["evidence", "benchmark"]))
	some batch in facts.list(["declared", "batch_sizes"])
	facts.is_count(batch)
	not batch in {row.batch | some row in measured.rows}
}

findings contains {
	"message": sprintf("batch size %s was run %s times, tier %s needs %s", [
		text.number(row.batch),
		text.number(runs),
		limits.tier,
		text.number(limits.value("benchmark_runs")),
	]),
	"path": ["benchmark", "rows", index, "runs"],
} if {
	some index, row in measured.rows
	runs := row.runs
	facts.is_count(row.batch)
	facts.is_count(runs)
	not facts.at_least(runs, limits.value("benchmark_runs"))
}
