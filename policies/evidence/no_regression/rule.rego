# METADATA
# scope: package
# title: The engine is no slower than the released one
# description: |
#   Compared with what is released now, on an equal device, batch size by batch size. Noise is left out: a row
#   counts only if the two 95 % intervals are further apart than the tier tolerates.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Find what made it slower (`trtops bench` prints both), or let a waiver say why it may be.
package trtops.evidence.no_regression

import data.trtops.lib.facts
import data.trtops.lib.limits
import data.trtops.lib.text

needs := [
	{"fact": ["comparison"], "kind": "map?", "path": ["benchmark"]},
	{"fact": ["evidence", "benchmark"], "kind": "map?", "path": ["benchmark"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if {
	is_object(facts.at(["comparison"]))
	some finding in facts.malformed([{"fact": ["comparison", "rows"], "kind": "list of maps", "path": ["benchmark", "rows"]}])
}

findings contains {
	"message": sprintf("the data set no tolerated %s for tier %s", [key, limits.tier]),
	"path": ["benchmark"],
} if {
	is_object(facts.at(["comparison"]))
	some key in ["p50_percent", "p99_percent", "throughput_percent"]
	not facts.is_kind(tolerated(key), "count?")
}

findings contains {
	"message": sprintf("%s at batch %s is %s (interval from %s), released is %s (interval to %s), tolerated are %s %%", [
		metric,
		text.number(row.batch),
		text.nanoseconds(current.value),
		text.nanoseconds(current.low),
		text.nanoseconds(released.value),
		text.nanoseconds(released.high),
		text.number(percent),
	]),
	"path": ["benchmark", "rows"],
} if {
	some metric in ["p50", "p99"]
	percent := tolerated(sprintf("%s_percent", [metric]))
	facts.is_count(percent)
	some row in rows
	current := row.current[sprintf("%s_ns", [metric])]
	released := row.baseline[sprintf("%s_ns", [metric])]
	interval(current)
	interval(released)
	current.low * 100 > released.high * (100 + percent)
}

findings contains {
	"message": sprintf("throughput at batch %s is %d rows a second, released is %d, tolerated are %s %%", [
		text.number(row.batch),
		floor(current.value / 1000),
		floor(released.value / 1000),
		text.number(percent),
	]),
	"path": ["benchmark", "rows"],
} if {
	percent := tolerated("throughput_percent")
	facts.is_count(percent)
	some row in rows
	current := row.current.throughput_milli
	released := row.baseline.throughput_milli
	interval(current)
	interval(released)
	current.high * 100 < released.low * (100 - percent)
}

findings contains {
	"message": sprintf("row %d of the comparison has no interval of %s", [index, metric]),
	"path": ["benchmark", "rows"],
} if {
	some index, row in rows
	some metric in ["p50_ns", "p99_ns", "throughput_milli"]
	not comparable(row, metric)
}

rows := facts.list(["comparison", "rows"])

default tolerated(_) := false

tolerated(key) := limits.value("regression")[key]

comparable(row, metric) if {
	facts.is_count(row.batch)
	interval(row.current[metric])
	interval(row.baseline[metric])
}

interval(value) if {
	facts.is_count(value.value)
	facts.is_count(value.low)
	facts.is_count(value.high)
}
