# METADATA
# scope: package
# title: Packages come from allowed indexes
# description: |
#   pip asks every index that it is told of, and takes the best version of all of them. An index that anybody can
#   publish to can answer for a private name (dependency confusion).
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Point pip at an index of `policies/data/sources.yaml`, over https.
package trtops.source.indexes_allowed

import data.trtops.lib.environments
import data.trtops.lib.facts
import data.trtops.lib.sources

needs := [
	{"fact": ["facts", "indexes"], "kind": "list of maps", "path": ["model", "source"]},
	{"fact": ["facts", "sources"], "kind": "list of maps", "path": ["model", "source"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("package index %s is not allowed here; allowed are %s", [
		sources.text_of(index, "url"),
		concat(", ", allowed),
	]),
	"path": path,
} if {
	some path in asking
	some index in facts.list(["facts", "indexes"])
	not trusted(index)
}

findings contains {"message": "which package index would be asked is not known", "path": path} if {
	some path in asking
	count(facts.list(["facts", "indexes"])) == 0
}

# Sources that would ask an index.
asking := {sources.path(source) |
	some source in facts.sources
	some link in sources.links(source)
	link.scheme == "pypi"
}

allowed := [index | some index in environments.of(data.sources).indexes]

trusted(_) if "*" in allowed

trusted(index) if {
	index.scheme == "default"
	"default" in allowed
}

trusted(index) if {
	index.scheme == "https"
	index.host in allowed
}
