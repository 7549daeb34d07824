package trtops.source.packages_exact_test

import data.trtops.source.packages_exact

base := {"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": {"name": "rapidocr-onnxruntime", "version": "1.4.4", "exact": true, "member": "m.onnx"}, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}

sources := {"schemes": ["file", "pypi", "https"], "hosts": ["github.com"], "packages": [], "environments": {"local": {"indexes": ["*"], "absolute_paths": true}, "default": {"indexes": ["packages.example.org"], "absolute_paths": false}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in packages_exact.findings with input as document with data.sources as sources
}

test_exact if places({}) == set()

test_range if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": {"name": "rapidocr-onnxruntime", "version": "1.4.4", "exact": false, "member": "m.onnx"}, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_no_version if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": {"name": "rapidocr-onnxruntime", "version": null, "exact": true, "member": "m.onnx"}, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_empty_version if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": {"name": "rapidocr-onnxruntime", "version": "", "exact": true, "member": "m.onnx"}, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_no_member if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": {"name": "rapidocr-onnxruntime", "version": "1.4.4", "exact": true, "member": ""}, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_no_package if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_another_scheme if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == set()

test_package_wrong_type if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": "x", "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", 0], ["model", "source"]}

test_name_wrong_type if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": {"name": 7, "version": "1.4.4", "exact": true, "member": "m.onnx"}, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == set()

test_missing if complaints({}) == {["model"]}

test_not_listed if {
	found := {finding.path |
		some finding in packages_exact.findings with input as object.union(base, {}) with data.sources as {"schemes": ["file", "pypi", "https"], "hosts": ["github.com"], "packages": ["other"], "environments": {"local": {"indexes": ["*"], "absolute_paths": true}, "default": {"indexes": ["packages.example.org"], "absolute_paths": false}}}
	}
	found == {["model", "source"]}
}

test_listed if {
	found := {finding.path |
		some finding in packages_exact.findings with input as object.union(base, {}) with data.sources as {"schemes": ["file", "pypi", "https"], "hosts": ["github.com"], "packages": ["rapidocr-onnxruntime"], "environments": {"local": {"indexes": ["*"], "absolute_paths": true}, "default": {"indexes": ["packages.example.org"], "absolute_paths": false}}}
	}
	found == set()
}

test_no_list_no_pass if {
	found := {finding.path |
		some finding in packages_exact.findings with input as object.union(base, {}) with data.sources as {}
	}
	found == {["model", "source"]}
}
