# METADATA
# scope: package
# title: Secrets are references, never text
# description: |
#   What stands in a repository is read by everybody who can read it, for ever. A key that looks like a secret
#   (password, token, key, credential, secret) must hold a reference to a sealed value, and no URL may carry a
#   password.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Write `secret:NAME/KEY` and seal the value with `trtops secret seal`; change the password that was written
#     down.
package trtops.spec.secrets_are_references

import data.trtops.lib.secrets

findings contains finding if some finding in secrets.malformed(["runtime", "secrets"])

findings contains {"message": secrets.message(field), "path": field.path, "document": "runtime"} if {
	some field in secrets.exposed(["runtime", "secrets"])
}
