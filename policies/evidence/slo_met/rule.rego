# METADATA
# scope: package
# title: The target reaches its SLO
# description: |
#   The SLO of a target is what its clients were promised. The p99 must hold at every batch size that is
#   measured, the throughput at the best of them.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Make the engine faster, lower `batching.max_batch`, or agree another SLO with the clients.
package trtops.evidence.slo_met

import data.trtops.lib.facts
import data.trtops.lib.measured
import data.trtops.lib.text

needs := [
	{"fact": ["declared", "target"], "kind": "map", "path": ["target"]},
	{"fact": ["declared", "target", "slo"], "kind": "map?", "path": ["target", "slo"]},
	{"fact": ["evidence", "benchmark"], "kind": "map?", "path": ["benchmark"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if {
	is_object(slo)
	some finding in facts.malformed([
		{"fact": ["declared", "target", "slo", "p99_us"], "kind": "count?", "path": ["target", "slo", "p99"]},
		{"fact": ["declared", "target", "slo", "throughput_milli"], "kind": "count?", "path": ["target", "slo", "throughput"]},
	])
}

findings contains {"message": "the target has an SLO, and was not measured", "path": ["benchmark"]} if {
	is_object(slo)
	count(measured.rows) == 0
}

findings contains {
	"message": sprintf("p99 is %s at batch %s, the SLO is %s", [
		text.nanoseconds(p99),
		text.number(row.batch),
		text.microseconds(slo.p99_us),
	]),
	"path": ["benchmark", "rows", index, "p99"],
} if {
	facts.is_count(slo.p99_us)
	some index, row in measured.rows
	facts.is_count(row.batch)
	p99 := row.p99_ns.value
	facts.is_count(p99)
	p99 > slo.p99_us * 1000
}

findings contains {
	"message": sprintf("throughput is %d rows a second at best, the SLO is %d", [
		floor(best / 1000),
		floor(slo.throughput_milli / 1000),
	]),
	"path": ["benchmark", "rows"],
} if {
	facts.is_count(slo.throughput_milli)
	best := max([row.throughput_milli.value | some row in measured.rows; facts.is_count(row.throughput_milli.value)])
	best < slo.throughput_milli
}

findings contains finding if {
	is_object(slo)
	some finding in measured.malformed(["p99_ns", "throughput_milli"])
}

slo := facts.at(["declared", "target", "slo"])
