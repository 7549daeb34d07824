package trtops.source.paths_inside_test

import data.trtops.source.paths_inside

base := {"environment": "prod", "facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "file", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}

sources := {"schemes": ["file", "pypi", "https"], "hosts": ["github.com"], "packages": [], "environments": {"local": {"indexes": ["*"], "absolute_paths": true}, "default": {"indexes": ["packages.example.org"], "absolute_paths": false}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in paths_inside.findings with input as document with data.sources as sources
}

test_inside if places({}) == set()

test_escapes if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "file", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": true, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_absolute if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "file", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": true, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_absolute_here if places({"environment": "local", "facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "file", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": true, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == set()

test_escapes_here if places({"environment": "local", "facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "file", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": true, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_wrong_type if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "file", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": "no", "escapes": null, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", 0]}

test_missing if complaints({}) == {["model"]}

test_no_data if {
	found := {finding.path |
		some finding in paths_inside.findings with input as object.union(base, {"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": true, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) with data.sources as {}
	}
	found == {["model", "source"]}
}
