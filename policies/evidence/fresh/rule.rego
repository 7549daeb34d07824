# METADATA
# scope: package
# title: The evidence is fresh
# description: |
#   Drivers, libraries and neighbours change, and numbers of last year say little of today. Evidence from the
#   future comes from a machine whose clock is wrong, or from somebody who wants it to last.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Verify and measure again: `trtops bench`. Set the clock if the evidence is from the future.
package trtops.evidence.fresh

import data.trtops.lib.facts
import data.trtops.lib.limits
import data.trtops.lib.text

needs := [{"fact": ["evidence", "age_seconds"], "kind": "integer", "path": ["created"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("the evidence is %d hours old, tier %s takes it for %s", [
		floor(age / 3600),
		limits.tier,
		text.number(limits.value("evidence_hours")),
	]),
	"path": ["created"],
} if {
	age := facts.at(["evidence", "age_seconds"])
	facts.is_integer(age)
	age >= 0
	not young(age)
}

findings contains {
	"message": sprintf("the evidence was made %s seconds in the future", [text.number(0 - age)]),
	"path": ["created"],
} if {
	age := facts.at(["evidence", "age_seconds"])
	facts.is_integer(age)
	age < 0 - clock_skew_seconds
}

clock_skew_seconds := 300

default young(_) := false

young(age) if {
	hours := limits.value("evidence_hours")
	is_number(hours)
	age <= hours * 3600
}
