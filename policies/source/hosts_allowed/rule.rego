# METADATA
# scope: package
# title: Sources come from allowed hosts
# description: |
#   Who runs the host decides what it serves. The digest protects the model, but nothing protects the machine
#   that asks a host which nobody looked at.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Fetch the file from a host of `policies/data/sources.yaml`, or have the host added there.
package trtops.source.hosts_allowed

import data.trtops.lib.facts
import data.trtops.lib.sources

findings contains finding if some finding in facts.unknown_sources

findings contains finding if {
	some finding in facts.malformed_each(
		sources.within,
		[
			{"fact": ["links"], "kind": "list of maps", "path": []},
		],
	)
}

findings contains {
	"message": sprintf("host %s is not allowed for the %s", [sources.text_of(link, "host"), sources.role(source)]),
	"path": sources.path(source),
} if {
	some source in facts.sources
	some link in sources.links(source)
	not local(link)
	not listed(link)
}

findings contains {
	"message": sprintf("the port of %s is not the scheme's own", [sources.text_of(link, "host")]),
	"path": sources.path(source),
} if {
	some source in facts.sources
	some link in sources.links(source)
	not facts.part(link, ["port"]) in {null, 443}
}

# Neither asks a host that the spec names: files are here, and the package index has a rule of its own.
local(link) if {
	link.scheme in {"file", "pypi"}
	link.host == null
}

listed(link) if link.host in data.sources.hosts
