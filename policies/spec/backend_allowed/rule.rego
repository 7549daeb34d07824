# METADATA
# scope: package
# title: The backend and its version are looked after
# description: |
#   An engine of a backend version that nobody maintains gets no fixes and may not load on the fleet's drivers.
#   `fake`, which plays engines, is for people's own machines.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Choose a backend and a version that `policies/data/backends.yaml` lists for the environment.
package trtops.spec.backend_allowed

import data.trtops.lib.environments
import data.trtops.lib.facts

findings contains finding if some finding in facts.unknown_targets

findings contains finding if {
	some finding in facts.malformed_each(
		{"fact": ["facts", "targets"], "path": ["targets"]},
		[
			{"fact": ["backend"], "kind": "text", "path": ["backend"]},
			{"fact": ["version"], "kind": "text?", "path": ["version"]},
		],
	)
}

findings contains {
	"message": sprintf("backend %s is not allowed here; allowed are %s", [backend, concat(", ", allowed)]),
	"path": ["targets", index, "backend"],
} if {
	some index, target in facts.targets
	backend := target.backend
	is_string(backend)
	not backend in allowed
}

findings contains {
	"message": sprintf("%s %s is not looked after", [target.backend, target.version]),
	"path": ["targets", index, "version"],
} if {
	some index, target in facts.targets
	is_string(target.version)
	target.backend in allowed
	not maintained(target)
}

allowed := [name | some name in environments.of(data.backends).allowed]

maintained(target) if {
	facts.is_kind(target.version_numbers, "list of counts")
	target.version_numbers >= data.backends.versions[target.backend].first
	target.version_numbers < data.backends.versions[target.backend].before
}
