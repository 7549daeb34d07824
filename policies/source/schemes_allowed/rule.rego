# METADATA
# scope: package
# title: Sources come by allowed schemes
# description: |
#   A scheme decides who can change what is read, and which code reads it. fsspec chains schemes with `::`; every
#   link counts. A URI that cannot be read without doubt (white space, backslashes, control characters) is
#   refused, since two programs would read it differently.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Use a scheme of `policies/data/sources.yaml`, such as `file:`, `pypi://NAME==VERSION/path` or `https://`.
package trtops.source.schemes_allowed

import data.trtops.lib.facts
import data.trtops.lib.sources

findings contains finding if some finding in facts.unknown_sources

findings contains finding if {
	some finding in facts.malformed_each(
		sources.within,
		[
			{"fact": ["links"], "kind": "list of maps", "path": []},
			{"fact": ["well_formed"], "kind": "boolean", "path": []},
		],
	)
}

findings contains {"message": "where the model comes from is not known", "path": ["model", "source"]} if {
	count([source | some source in facts.sources; source.role == "model"]) == 0
}

findings contains {
	"message": sprintf("the source of the %s is no URI that can be read without doubt", [sources.role(source)]),
	"path": sources.path(source),
} if {
	some source in facts.sources
	is_object(source)
	not readable(source)
}

findings contains {
	"message": sprintf("scheme %s is not allowed for the %s; allowed are %s", [
		sources.text_of(link, "scheme"),
		sources.role(source),
		concat(", ", schemes),
	]),
	"path": sources.path(source),
} if {
	some source in facts.sources
	some link in sources.links(source)
	not allowed(link)
}

schemes := [scheme | some scheme in data.sources.schemes]

allowed(link) if link.scheme in schemes

readable(source) if {
	source.well_formed == true
	count(sources.links(source)) > 0
}
