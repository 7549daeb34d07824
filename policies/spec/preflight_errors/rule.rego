# METADATA
# scope: package
# title: Preflight found nothing that stops the build
# description: |
#   Preflight compares the spec with the model before anything is built: names, ranks, ranges, shapes. What it
#   calls an error ends in a failed build or a failed request.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Do what the finding says; `trtops check` repeats preflight in a second.
package trtops.spec.preflight_errors

import data.trtops.lib.facts
import data.trtops.lib.preflight

needs := [{"fact": ["preflight", "facts"], "kind": "list of maps", "path": []}]

findings contains finding if some finding in facts.malformed(needs)

findings contains preflight.finding(fact) if {
	some fact in preflight.found
	not preflight.owned(fact)
	not preflight.severity(fact) in {"warning", "repaired"}
}
