package trtops.source.no_credentials_test

import data.trtops.source.no_credentials

base := {"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}], "indexes": [{"url": "https://packages.example.org/simple", "scheme": "https", "host": "packages.example.org"}]}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in no_credentials.findings with input as document
}

test_none if places({}) == set()

test_some if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": true, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_wrong_type if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": "no", "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_nobody_says if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_missing if complaints({}) == {["model"], ["model", "source"]}
