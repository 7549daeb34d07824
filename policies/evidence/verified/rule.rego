# METADATA
# scope: package
# title: The engine was verified and measured
# description: |
#   An engine whose outputs nobody compared, or whose speed nobody measured, is not released. A machine that
#   cannot load an engine records why; that record is honest, and no proof.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Verify and measure on a machine that can load the engine; if outputs are off, see the worst element in the
#     report.
package trtops.evidence.verified

import data.trtops.lib.facts

needs := [
	{"fact": ["evidence", "accuracy"], "kind": "map?", "path": ["accuracy"]},
	{"fact": ["evidence", "benchmark"], "kind": "map?", "path": ["benchmark"]},
	{"fact": ["evidence", "unverified"], "kind": "text?", "path": ["unverified"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("not verified: %s", [reason]),
	"path": ["unverified"],
} if {
	reason := facts.at(["evidence", "unverified"])
	is_string(reason)
}

findings contains {"message": "no output was compared with the reference's", "path": ["accuracy"]} if {
	facts.at(["evidence", "unverified"]) == null
	facts.at(["evidence", "accuracy"]) == null
}

findings contains {"message": "no speed was measured", "path": ["benchmark"]} if {
	facts.at(["evidence", "unverified"]) == null
	facts.at(["evidence", "benchmark"]) == null
}

findings contains {"message": "outputs differ from the reference's", "path": ["accuracy", "passed"]} if {
	is_object(facts.at(["evidence", "accuracy"]))
	facts.at(["evidence", "accuracy", "passed"]) != true
}

findings contains {"message": "the comparison compared nothing", "path": ["accuracy", "elements"]} if {
	is_object(facts.at(["evidence", "accuracy"]))
	not facts.at_least(facts.at(["evidence", "accuracy", "elements"]), 1)
}
