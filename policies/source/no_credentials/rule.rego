# METADATA
# scope: package
# title: No URI carries credentials
# description: |
#   A user, password or token in a URI is a secret in the repository, and it ends up in every log that names the
#   source.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Take the part before `@` out of the URI; let pip, git or the environment hold the credentials.
package trtops.source.no_credentials

import data.trtops.lib.facts
import data.trtops.lib.sources

needs := [
	{"fact": ["facts", "sources"], "kind": "list of maps", "path": ["model"]},
	{"fact": ["facts", "indexes"], "kind": "list of maps", "path": ["model", "source"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("the URI of the %s carries credentials", [sources.role(source)]),
	"path": sources.path(source),
} if {
	some source in facts.sources
	some link in sources.links(source)
	link.has_credentials != false
}

findings contains finding if {
	some index, source in facts.sources
	some place, link in sources.links(source)
	not facts.is_kind(facts.part(link, ["has_credentials"]), "boolean")
	finding := {
		"message": sprintf("link %d of source %d does not say whether it carries credentials", [place, index]),
		"path": sources.path(source),
	}
}
