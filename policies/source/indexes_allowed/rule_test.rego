package trtops.source.indexes_allowed_test

import data.trtops.source.indexes_allowed

base := {"environment": "prod", "facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}], "indexes": [{"url": "https://packages.example.org/simple", "scheme": "https", "host": "packages.example.org"}]}}

sources := {"schemes": ["file", "pypi", "https"], "hosts": ["github.com"], "packages": [], "environments": {"local": {"indexes": ["*"], "absolute_paths": true}, "default": {"indexes": ["packages.example.org"], "absolute_paths": false}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in indexes_allowed.findings with input as document with data.sources as sources
}

test_listed if places({}) == set()

test_not_listed if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}], "indexes": [{"url": "https://packages.example.org/simple", "scheme": "https", "host": "mirror.example"}]}}) == {["model", "source"]}

test_extra_index if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}], "indexes": [{"url": "https://packages.example.org/simple", "scheme": "https", "host": "packages.example.org"}, {"url": "https://packages.example.org/simple", "scheme": "https", "host": "evil.example"}]}}) == {["model", "source"]}

test_not_https if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}], "indexes": [{"url": "https://packages.example.org/simple", "scheme": "http", "host": "packages.example.org"}]}}) == {["model", "source"]}

test_mirror_here if places({"environment": "local", "facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}], "indexes": [{"url": "https://packages.example.org/simple", "scheme": "http", "host": "mirror.example"}]}}) == set()

test_unknown_index if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}], "indexes": []}}) == {["model", "source"]}

test_nobody_asks if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}], "indexes": [{"url": "https://packages.example.org/simple", "scheme": "https", "host": "evil.example"}]}}) == set()

test_wrong_element if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}], "indexes": ["https://packages.example.org"]}}) == {["model", "source"]}

test_wrong_type if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "pypi", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}], "indexes": "x"}}) == {["model", "source"]}

test_missing if complaints({}) == {["model", "source"]}

test_no_list_no_pass if {
	found := {finding.path |
		some finding in indexes_allowed.findings with input as object.union(base, {}) with data.sources as {}
	}
	found == {["model", "source"]}
}

pips_own := object.union(base, {"facts": {"indexes": [{"url": "default:", "scheme": "default", "host": null}]}})

allowing(index) := {"environments": {"default": {"indexes": [index], "absolute_paths": false}}}

test_pips_own_index_is_listed if {
	found := {finding | some finding in indexes_allowed.findings with input as pips_own with data.sources as allowing("default")}
	found == set()
}

test_pips_own_index_is_not_listed if {
	found := {finding.path | some finding in indexes_allowed.findings with input as pips_own with data.sources as allowing("packages.example.org")}
	found == {["model", "source"]}
}
