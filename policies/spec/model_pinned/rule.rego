# METADATA
# scope: package
# title: The model is pinned by its digest
# description: |
#   What is built must be what was reviewed. A digest in the spec makes a changed file a change of the spec.
#   Digests that stand for nothing (zeros, the empty file) pin nothing.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Write the file's SHA-256 under `model.sha256`: `sha256sum MODEL.onnx`.
package trtops.spec.model_pinned

import data.trtops.lib.facts

needs := [
	{"fact": ["facts", "model_sha256"], "kind": "text", "path": ["model", "sha256"]},
	{"fact": ["preflight", "model", "content"], "kind": "text", "path": ["model", "sha256"]},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("%s is the digest of no model", [digest]),
	"path": ["model", "sha256"],
} if {
	digest := input.facts.model_sha256
	is_string(digest)
	not pins(digest)
}

findings contains {
	"message": sprintf("the model that was checked is %s, the spec pins sha256:%s", [content, digest]),
	"path": ["model", "sha256"],
} if {
	digest := input.facts.model_sha256
	content := input.preflight.model.content
	is_string(digest)
	is_string(content)
	content != sprintf("sha256:%s", [digest])
	pins(digest)
}

pins(digest) if {
	regex.match(`^[0-9a-f]{64}$`, digest)
	not digest in {zeros, empty_file}
}

zeros := "0000000000000000000000000000000000000000000000000000000000000000"

empty_file := "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
