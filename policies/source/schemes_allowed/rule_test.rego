package trtops.source.schemes_allowed_test

import data.trtops.source.schemes_allowed

base := {"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}

sources := {"schemes": ["file", "pypi", "https"], "hosts": ["github.com"], "packages": [], "environments": {"local": {"indexes": ["*"], "absolute_paths": true}, "default": {"indexes": ["packages.example.org"], "absolute_paths": false}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in schemes_allowed.findings with input as document with data.sources as sources
}

test_https if places({}) == set()

test_file if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "file", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == set()

test_http if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "http", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_chained if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "zip", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}, {"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_not_well_formed if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": false, "links": [], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_no_links if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_well_formed_wrong_type if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": "yes", "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", 0], ["model", "source"]}

test_links_wrong_type if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": "https", "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", 0], ["model", "source"]}

test_scheme_wrong_type if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": 7, "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_every_source_counts if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}, {"role": "model", "path": ["accuracy", "samples"], "well_formed": true, "links": [{"scheme": "s3", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["accuracy", "samples"]}

test_no_model if places({"facts": {"sources": [{"role": "samples", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_wrong_type if places({"facts": {"sources": "x"}}) == {["model"], ["model", "source"]}

test_missing if complaints({}) == {["model"], ["model", "source"]}

test_no_list_no_pass if {
	found := {finding.path |
		some finding in schemes_allowed.findings with input as object.union(base, {}) with data.sources as {}
	}
	found == {["model", "source"]}
}
