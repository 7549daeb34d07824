# METADATA
# scope: package
# title: Rows of the benchmark
# description: Reads `evidence.benchmark.rows`; a broken row becomes a finding, and never one that is left out.
package trtops.lib.measured

import data.trtops.lib.facts

rows := facts.list(["evidence", "benchmark", "rows"])

# Findings for rows without a batch size, a number of runs, or a value of one of these metrics.
malformed(metrics) := union({
	{finding |
		is_object(facts.at(["evidence", "benchmark"]))
		some finding in facts.malformed([{
			"fact": ["evidence", "benchmark", "rows"],
			"kind": "list of maps",
			"path": ["benchmark", "rows"],
		}])
	},
	facts.malformed_each(
		{"fact": ["evidence", "benchmark", "rows"], "path": ["benchmark", "rows"]},
		array.concat(
			[
				{"fact": ["batch"], "kind": "count", "path": ["batch"]},
				{"fact": ["runs"], "kind": "count", "path": ["runs"]},
			],
			[{"fact": [metric, "value"], "kind": "count", "path": [metric]} | some metric in metrics],
		),
	),
})
