# METADATA
# scope: package
# title: Enough others approved this very release
# description: |
#   A release is approved by its digest, by people who are named for the tier, none of whom wrote or releases it.
#   Two keys of one person count once, and so does an approval that is repeated. An approval of another digest,
#   or one that is too old, does not count; for a rollback its age does not matter, since the release was
#   approved when it first went out.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Ask somebody of `policies/data/approvals.yaml` who is no author to approve this digest.
package trtops.release.approvals_met

import data.trtops.lib.environments
import data.trtops.lib.facts
import data.trtops.lib.limits

needs := [
	{"fact": ["approvals"], "kind": "list of maps", "path": ["approvals"]},
	{"fact": ["authors"], "kind": "list of texts", "path": ["authors"]},
	{"fact": ["release", "identity"], "kind": "text", "path": []},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("the data does not say how many approvals tier %s needs here", [limits.tier]),
	"path": ["approvals"],
} if {
	not facts.is_count(required)
}

findings contains {
	"message": "approvals are needed, and who wrote the change is not known",
	"path": ["authors"],
} if {
	required != 0
	count(facts.list(["authors"])) == 0
}

findings contains {
	"message": sprintf("%d of %d approvals%s", [count(approvers), required, concat("", uncounted)]),
	"path": ["approvals"],
} if {
	facts.is_count(required)
	count(approvers) < required
}

default required := null

required := environments.of(data.approvals)[limits.tier].required

# Key -> identity, of everybody who may approve here.
holders[entry.key] contains person(entry.identity) if {
	some group in environments.of(data.approvals)[limits.tier].approvers
	some entry in data.approvals.groups[group]
}

# Authors are named by key or by identity; whoever holds an author's key is one, whatever other keys they hold.
authors contains person(author) if {
	some author in facts.list(["authors"])
	is_string(author)
}

authors contains person(entry.identity) if {
	some group in data.approvals.groups
	some entry in group
	entry.key in facts.list(["authors"])
}

# An address is written in capitals by one program and not by the next: it is one person's all the same.
person(name) := lower(trim(name, " "))

approvers contains identity if {
	some approval in facts.list(["approvals"])
	some identity in holders[approval.key]
	not objection(approval)
}

uncounted := sort([reason |
	some approval in facts.list(["approvals"])
	reason := sprintf("; %s: %s", [facts.part(approval, ["key"]), objection(approval)])
	is_string(facts.part(approval, ["key"]))
])

# Why an approval does not count; undefined where it does.
objection(approval) := "its signature does not hold" if not approval.valid == true

objection(approval) := "it approves another release" if {
	approval.valid == true
	not current(approval)
}

objection(approval) := "its key may not approve here" if {
	approval.valid == true
	current(approval)
	not held(approval)
}

objection(approval) := "it is by an author" if {
	approval.valid == true
	current(approval)
	held(approval)
	own(approval)
}

objection(approval) := "it is too old, or from the future" if {
	approval.valid == true
	current(approval)
	held(approval)
	not own(approval)
	not timely(approval)
}

held(approval) if holders[approval.key]

current(approval) if approval.over == facts.at(["release", "identity"])

own(approval) if approval.key in facts.list(["authors"])

own(approval) if {
	some identity in holders[approval.key]
	identity in authors
}

timely(approval) if {
	facts.at(["action"]) == "rollback"
	facts.is_integer(approval.age_seconds)
}

timely(approval) if {
	facts.is_integer(approval.age_seconds)
	approval.age_seconds >= -300
	approval.age_seconds <= data.approvals.max_age_hours * 3600
}
