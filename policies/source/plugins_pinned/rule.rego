# METADATA
# scope: package
# title: Plugin libraries are pinned and reviewed
# description: |
#   The code of a plugin library runs with every right of the process that builds or loads the engine. So a
#   library is named by its digest, and the digest was reviewed; TensorRT's own plugins are named from a list.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Pin the library by `sha256`, and have the digest added to `policies/data/plugins.yaml` after a review.
package trtops.source.plugins_pinned

import data.trtops.lib.facts

needs := [{"fact": ["facts", "plugins"], "kind": "list of maps", "path": ["builder", "plugins"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains finding if {
	some finding in facts.malformed_each(
		{"fact": ["facts", "plugins"], "path": ["builder", "plugins"]},
		[
			{"fact": ["name"], "kind": "text?", "path": ["name"]},
			{"fact": ["library"], "kind": "text?", "path": ["library"]},
			{"fact": ["sha256"], "kind": "text?", "path": ["sha256"]},
		],
	)
}

findings contains {
	"message": sprintf("plugin library %s is not pinned by a digest", [plugin.library]),
	"path": ["builder", "plugins", index, "library"],
} if {
	some index, plugin in facts.plugins
	is_string(plugin.library)
	plugin.sha256 == null
}

findings contains {
	"message": sprintf("plugin library %s with digest %s was not reviewed", [plugin.library, plugin.sha256]),
	"path": ["builder", "plugins", index, "sha256"],
} if {
	some index, plugin in facts.plugins
	is_string(plugin.library)
	is_string(plugin.sha256)
	not reviewed(plugin)
}

findings contains {
	"message": sprintf("plugin %s is none of those that are allowed by name", [plugin.name]),
	"path": ["builder", "plugins", index, "name"],
} if {
	some index, plugin in facts.plugins
	plugin.library == null
	is_string(plugin.name)
	not builtin(plugin)
}

reviewed(plugin) if {
	some library in data.plugins.libraries
	library.sha256 == plugin.sha256
}

builtin(plugin) if plugin.name in data.plugins.builtin

findings contains {
	"message": "the plugin has neither a name nor a library",
	"path": ["builder", "plugins", index],
} if {
	some index, plugin in facts.plugins
	plugin.library == null
	plugin.name == null
}
