# METADATA
# scope: package
# title: Enough others approved this very release
# description: |
#   A release is approved by its digest, by people who are named for the tier, none of whom wrote or releases it.
#   Two keys of one person count once, and so does an approval that is repeated. An approval of another digest,
#   or one that is too old, does not count; for a rollback its age does not matter, since the release was
#   approved when it first went out. An engine that changes its tier needs what both tiers need: nobody lowers it
#   to need less.
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
	{"fact": ["previous"], "kind": "map?", "path": ["approvals"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if {
	is_object(facts.at(["previous"]))
	some finding in facts.malformed([{"fact": ["previous", "tier"], "kind": "text", "path": ["approvals"]}])
}

findings contains {
	"message": sprintf("the data does not say how many approvals tier %s needs here", [tier]),
	"path": ["approvals"],
} if {
	some tier in tiers
	not facts.is_count(required(tier))
}

findings contains {
	"message": "approvals are needed, and who wrote the change is not known",
	"path": ["authors"],
} if {
	some tier in tiers
	required(tier) != 0
	count(facts.list(["authors"])) == 0
}

findings contains {
	"message": sprintf("%d of %d approvals%s", [given, needed, remarks]),
	"path": ["approvals"],
} if {
	some tier in tiers
	needed := required(tier)
	facts.is_count(needed)
	given := count(approvers(tier))
	given < needed
	remarks := concat("", array.concat([today(tier)], uncounted(tier)))
}

# Those whose demands hold: the engine's, and the one that the channel has today.
tiers contains limits.tier

tiers contains tier if {
	facts.at(["action"]) != "rollback"
	tier := facts.at(["previous", "tier"])
	is_string(tier)
}

default today(_) := ""

today(tier) := sprintf(" that tier %s needs, which the engine has today", [tier]) if tier != limits.tier

default required(_) := null

required(tier) := environments.of(data.approvals)[tier].required

# Key and identity of everybody who may approve for a tier here.
holders(tier) := {[entry.key, person(entry.identity)] |
	some group in environments.of(data.approvals)[tier].approvers
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

approvers(tier) := {identity |
	some approval in facts.list(["approvals"])
	some [key, identity] in holders(tier)
	key == facts.part(approval, ["key"])
	not objection(approval, tier)
}

uncounted(tier) := sort([reason |
	some approval in facts.list(["approvals"])
	reason := sprintf("; %s: %s", [facts.part(approval, ["key"]), objection(approval, tier)])
	is_string(facts.part(approval, ["key"]))
])

# Why an approval does not count; undefined where it does.
objection(approval, _) := "its signature does not hold" if not approval.valid == true

objection(approval, _) := "it approves another release" if {
	approval.valid == true
	not current(approval)
}

objection(approval, tier) := "its key may not approve here" if {
	approval.valid == true
	current(approval)
	not held(approval, tier)
}

objection(approval, tier) := "it is by an author" if {
	approval.valid == true
	current(approval)
	held(approval, tier)
	own(approval, tier)
}

objection(approval, tier) := "it is too old, or from the future" if {
	approval.valid == true
	current(approval)
	held(approval, tier)
	not own(approval, tier)
	not timely(approval)
}

held(approval, tier) if {
	some [key, _] in holders(tier)
	key == approval.key
}

current(approval) if approval.over == facts.at(["release", "identity"])

own(approval, _) if approval.key in facts.list(["authors"])

own(approval, tier) if {
	some [key, identity] in holders(tier)
	key == approval.key
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
