# METADATA
# scope: package
# title: The released engine can be compared with
# description: |
#   A regression is found only where the same batch sizes were measured on equal devices. What cannot be compared
#   is said, so that a regression never hides behind another machine or a batch size that is not measured any
#   more.
# custom:
#   severity: warn
#   since: 0.1.0
#   remediation: |
#     Measure on the kind of device that the released artifact was measured on, with its batch sizes.
package trtops.evidence.baseline_comparable

import data.trtops.lib.facts
import data.trtops.lib.text

needs := [{"fact": ["comparison"], "kind": "map?", "path": ["benchmark"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if {
	is_object(facts.at(["comparison"]))
	some finding in facts.malformed([{"fact": ["comparison", "missing"], "kind": "list", "path": ["benchmark", "rows"]}])
}

findings contains {
	"message": sprintf("the released artifact cannot be compared with: %s", [reason]),
	"path": ["benchmark", "device"],
} if {
	is_object(facts.at(["comparison"]))
	facts.at(["comparison", "comparable"]) != true
}

findings contains {
	"message": sprintf("batch size %s was measured of the released artifact, and is not any more", [shown(batch)]),
	"path": ["benchmark", "rows"],
} if {
	some batch in facts.list(["comparison", "missing"])
}

default reason := "nobody says why"

reason := facts.at(["comparison", "reason"]) if is_string(facts.at(["comparison", "reason"]))

shown(batch) := text.number(batch) if is_number(batch)

shown(batch) := type_name(batch) if not is_number(batch)
