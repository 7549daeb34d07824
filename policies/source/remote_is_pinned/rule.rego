# METADATA
# scope: package
# title: What comes from elsewhere is pinned by a digest
# description: |
#   The same URI may give another file tomorrow. A model has its digest in the spec; samples and calibration data
#   have no place for one, so they stand in the repository, where a change of them is reviewed.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Pin the model by `model.sha256`, and keep samples and calibration data beside the spec.
package trtops.source.remote_is_pinned

import data.trtops.lib.facts
import data.trtops.lib.sources

findings contains finding if some finding in facts.unknown_sources

findings contains finding if {
	some finding in facts.malformed_each(
		sources.within,
		[
			{"fact": ["local"], "kind": "boolean", "path": []},
			{"fact": ["sha256"], "kind": "text?", "path": []},
		],
	)
}

findings contains {
	"message": sprintf("the %s comes from elsewhere, and no digest pins it", [sources.role(source)]),
	"path": sources.path(source),
} if {
	some source in facts.sources
	source.local == false
	not pinned(source)
}

pinned(source) if {
	is_string(source.sha256)
	regex.match(`^[0-9a-f]{64}$`, source.sha256)
}
