# METADATA
# scope: package
# title: Channels move when somebody is there
# description: |
#   A release that goes wrong on a Friday night meets nobody. Outside of its windows, and in a freeze, a channel
#   of the environment moves only by a rollback.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Wait for the next window of `policies/data/change_windows.yaml` (times are UTC).
package trtops.release.change_window

import data.trtops.lib.environments
import data.trtops.lib.facts

needs := [
	{"fact": ["clock", "weekday"], "kind": "text", "path": ["created"]},
	{"fact": ["clock", "time"], "kind": "text", "path": ["created"]},
	{"fact": ["clock", "date"], "kind": "text", "path": ["created"]},
	{"fact": ["action"], "kind": "text", "path": ["reason"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("%s %s %s UTC is in no change window of this environment", [
		facts.at(["clock", "weekday"]),
		facts.at(["clock", "date"]),
		facts.at(["clock", "time"]),
	]),
	"path": ["created"],
} if {
	judged
	not open
}

findings contains {
	"message": sprintf("%s is in a freeze until %s: %s", [date, freeze.last, freeze.reason]),
	"path": ["created"],
} if {
	judged
	date := facts.at(["clock", "date"])
	some freeze in data.change_windows.freezes
	date >= freeze.first
	date <= freeze.last
}

judged if {
	every need in needs {
		is_string(facts.at(need.fact))
	}
	facts.at(["action"]) != "rollback"
	not always
}

always if environments.of(data.change_windows).always == true

open if {
	some window in environments.of(data.change_windows).windows
	facts.at(["clock", "weekday"]) in window.days
	facts.at(["clock", "time"]) >= window.from
	facts.at(["clock", "time"]) < window.until
}
