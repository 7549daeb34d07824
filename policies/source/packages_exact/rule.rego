# METADATA
# scope: package
# title: A package is named with one exact version
# description: |
#   A range or a wildcard is another package tomorrow. The digest would stop the build then; an exact version
#   keeps it building. A platform owner may also list the packages that are allowed.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Write `pypi://NAME==VERSION/path/in/wheel` with one release's version.
package trtops.source.packages_exact

import data.trtops.lib.facts
import data.trtops.lib.sources

findings contains finding if some finding in facts.unknown_sources

findings contains finding if {
	some finding in facts.malformed_each(
		sources.within,
		[
			{"fact": ["wheel"], "kind": "map?", "path": []},
			{"fact": ["links"], "kind": "list of maps", "path": []},
		],
	)
}

findings contains {
	"message": sprintf("package %s is not named with one exact version", [sources.text_of(facts.part(source, ["wheel"]), "name")]),
	"path": sources.path(source),
} if {
	some source in packages
	not exact(source)
}

findings contains {
	"message": sprintf("package %s is not among those that are allowed", [sources.text_of(facts.part(source, ["wheel"]), "name")]),
	"path": sources.path(source),
} if {
	some source in packages
	not allowed(source)
}

findings contains {
	"message": sprintf("the URI names no file within package %s", [sources.text_of(facts.part(source, ["wheel"]), "name")]),
	"path": sources.path(source),
} if {
	some source in packages
	not names_file(source)
}

# A source by `pypi:` without a readable package is in here as well, as one that is not exact.
packages := {source |
	some source in facts.sources
	some link in sources.links(source)
	link.scheme == "pypi"
}

exact(source) if {
	source.wheel.exact == true
	is_string(source.wheel.version)
	source.wheel.version != ""
}

allowed(_) if count(data.sources.packages) == 0

allowed(source) if source.wheel.name in data.sources.packages

# A source without a package is not exact, and that is enough to say.
names_file(source) if source.wheel.member != ""

names_file(source) if not is_object(facts.part(source, ["wheel"]))
