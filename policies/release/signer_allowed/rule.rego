# METADATA
# scope: package
# title: A key that may sign signed the release
# description: |
#   A service loads only what a builder's key signed, since loading an engine runs its code. On a person's own
#   machine the key that was made there is good enough; elsewhere the keys are listed.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Sign with a key of `policies/data/signers.yaml`, in the builder that holds it.
package trtops.release.signer_allowed

import data.trtops.lib.environments
import data.trtops.lib.facts

needs := [{"fact": ["signatures"], "kind": "list of maps", "path": ["signatures"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("the signature by %s does not hold", [key_of(signature)]),
	"path": ["signatures", index],
} if {
	some index, signature in facts.list(["signatures"])
	not facts.part(signature, ["valid"]) == true
}

findings contains {"message": "the release is not signed", "path": ["signatures"]} if {
	count(facts.list(["signatures"])) == 0
}

findings contains {
	"message": sprintf("signed by %s, which may not sign here", [concat(", ", signing)]),
	"path": ["signatures"],
} if {
	count(signing) > 0
	not accepted
}

signing := [key_of(signature) |
	some signature in facts.list(["signatures"])
	signature.valid == true
]

accepted if {
	some signature in facts.list(["signatures"])
	signature.valid == true
	signature.key in environments.of(data.signers).keys
}

accepted if {
	environments.of(data.signers).first_use == true
	some signature in facts.list(["signatures"])
	signature.valid == true
	signature.first_use == true
}

default key_of(_) := "(no key)"

key_of(signature) := signature.key if is_string(signature.key)
