# METADATA
# scope: package
# title: What is fetched has a size that the tier allows
# description: |
#   A file that is larger than anything the tier builds fills the disk of the machine that fetches it. A size
#   that nobody knows beforehand is no finding: the fetch itself stops at its limit, and the digest must match.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Use a smaller file, or raise the tier.
package trtops.source.size_bounded

import data.trtops.lib.facts
import data.trtops.lib.limits
import data.trtops.lib.sources
import data.trtops.lib.text

findings contains finding if some finding in facts.unknown_sources

findings contains finding if {
	some finding in facts.malformed_each(
		sources.within,
		[
			{"fact": ["size_bytes"], "kind": "count?", "path": []},
		],
	)
}

findings contains {
	"message": sprintf("the %s is %s, tier %s allows %s", [
		sources.role(source),
		text.bytes(size),
		limits.tier,
		text.bytes(limits.bytes("model_mib")),
	]),
	"path": sources.path(source),
} if {
	some source in facts.sources
	size := source.size_bytes
	facts.is_count(size)
	not facts.at_most(size, limits.bytes("model_mib"))
}

findings contains {
	"message": sprintf("the file of the %s is empty", [sources.role(source)]),
	"path": sources.path(source),
} if {
	some source in facts.sources
	source.size_bytes == 0
}
