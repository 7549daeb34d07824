# METADATA
# scope: package
# title: What is released is a commit
# description: |
#   A release can be walked back to the commit that its spec was reviewed in. A tree with changes, or no
#   repository at all, leads to nothing that anybody else has.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Commit, let it be reviewed and merged, and release from there.
package trtops.release.commit_clean

import data.trtops.lib.environments
import data.trtops.lib.facts

needs := [
	{"fact": ["release", "commit"], "kind": "text?", "path": ["commit"]},
	{"fact": ["release", "dirty"], "kind": "boolean", "path": ["commit"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {"message": "the release names no commit", "path": ["commit"]} if {
	demanded
	facts.at(["release", "commit"]) in {null, ""}
}

findings contains {"message": "the tree had changes that are in no commit", "path": ["commit"]} if {
	demanded
	facts.at(["release", "dirty"]) == true
}

demanded if not environments.of(data.release).clean_commit == false
