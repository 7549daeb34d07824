package trtops.source.remote_is_pinned_test

import data.trtops.source.remote_is_pinned

base := {"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in remote_is_pinned.findings with input as document
}

test_pinned if places({}) == set()

test_not_pinned if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": null, "size_bytes": null}]}}) == {["model", "source"]}

test_too_short if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "ab", "size_bytes": null}]}}) == {["model", "source"]}

test_local_needs_none if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "file", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": true, "absolute": false, "escapes": false, "wheel": null, "sha256": null, "size_bytes": null}]}}) == set()

test_samples_from_elsewhere if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}, {"role": "samples", "path": ["accuracy", "samples"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": null, "size_bytes": null}]}}) == {["accuracy", "samples"]}

test_role_wrong_type if places({"facts": {"sources": [{"role": 1, "path": "x", "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": null, "size_bytes": null}]}}) == {["model", "source"]}

test_wrong_type if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": "no", "absolute": false, "escapes": false, "wheel": null, "sha256": 5, "size_bytes": null}]}}) == {["model", 0]}

test_missing if complaints({}) == {["model"]}
