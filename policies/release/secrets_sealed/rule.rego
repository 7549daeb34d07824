# METADATA
# scope: package
# title: The released config holds references, never secrets
# description: |
#   A released config is copied to registries, services and backups. It names secrets; their sealed values are
#   documents of their own, so that a rollback never brings back a password that was revoked.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Write `secret:NAME/KEY` in `runtime.yaml` and seal the value with `trtops secret seal`; change the password
#     that was written down.
package trtops.release.secrets_sealed

import data.trtops.lib.secrets

findings contains finding if some finding in secrets.malformed(["config", "secrets"])

findings contains {"message": secrets.message(field), "path": field.path, "document": "runtime"} if {
	some field in secrets.exposed(["config", "secrets"])
}
