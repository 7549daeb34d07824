# METADATA
# scope: package
# title: Local files lie in the engine's folder
# description: |
#   A path that leaves the folder of the engine, by `..` or from the root, reads what no reviewer of the folder
#   has seen, and is another file on another machine.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Put the file beside `engine.yaml` and write its path relative to it.
package trtops.source.paths_inside

import data.trtops.lib.environments
import data.trtops.lib.facts
import data.trtops.lib.sources

findings contains finding if some finding in facts.unknown_sources

findings contains finding if {
	some finding in facts.malformed_each(
		sources.within,
		[
			{"fact": ["escapes"], "kind": "boolean", "path": []},
			{"fact": ["absolute"], "kind": "boolean", "path": []},
		],
	)
}

findings contains {
	"message": sprintf("the path of the %s leaves the folder of the engine", [sources.role(source)]),
	"path": sources.path(source),
} if {
	some source in facts.sources
	source.escapes == true
}

findings contains {
	"message": sprintf("the path of the %s is absolute, which is not allowed here", [sources.role(source)]),
	"path": sources.path(source),
} if {
	some source in facts.sources
	source.absolute == true
	not absolute_allowed
}

absolute_allowed if environments.of(data.sources).absolute_paths == true
