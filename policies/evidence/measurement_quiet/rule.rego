# METADATA
# scope: package
# title: The measurement had no trouble
# description: |
#   What disturbed a measurement (a busy machine, a clock that changed, too few runs for a quantile) stands in
#   the evidence. It does not deny; numbers that were taken in noise should be read so.
# custom:
#   severity: warn
#   since: 0.1.0
#   remediation: |
#     Measure again on a quiet machine.
package trtops.evidence.measurement_quiet

import data.trtops.lib.facts

needs := [{"fact": ["evidence", "benchmark"], "kind": "map?", "path": ["benchmark"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if {
	is_object(facts.at(["evidence", "benchmark"]))
	some finding in facts.malformed([warnings])
}

warnings := {"fact": ["evidence", "benchmark", "warnings"], "kind": "list of texts", "path": ["benchmark", "warnings"]}

findings contains {"message": warning, "path": ["benchmark", "warnings", index]} if {
	some index, warning in facts.list(["evidence", "benchmark", "warnings"])
	is_string(warning)
}
