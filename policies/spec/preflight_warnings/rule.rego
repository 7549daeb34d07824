# METADATA
# scope: package
# title: Preflight found nothing to think about
# description: |
#   What preflight warns of can be built and may be slow, large or imprecise. It does not deny; it stays in the
#   report.
# custom:
#   severity: warn
#   since: 0.1.0
#   remediation: |
#     Do what the finding says, or leave it: it blocks nothing.
package trtops.spec.preflight_warnings

import data.trtops.lib.facts
import data.trtops.lib.preflight

findings contains preflight.finding(fact) if {
	some fact in preflight.found
	not preflight.owned(fact)
	preflight.severity(fact) == "warning"
}

needs := [{"fact": ["preflight", "facts"], "kind": "list of maps", "path": []}]

findings contains finding if some finding in facts.malformed(needs)
