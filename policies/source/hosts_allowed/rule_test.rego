package trtops.source.hosts_allowed_test

import data.trtops.source.hosts_allowed

base := {"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}

sources := {"schemes": ["file", "pypi", "https"], "hosts": ["github.com"], "packages": [], "environments": {"local": {"indexes": ["*"], "absolute_paths": true}, "default": {"indexes": ["packages.example.org"], "absolute_paths": false}}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in hosts_allowed.findings with input as document with data.sources as sources
}

test_listed if places({}) == set()

test_not_listed if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "evil.example", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_suffix_is_another if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com.evil.example", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_subdomain_is_another if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "raw.github.com", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_file_has_none if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "file", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == set()

test_https_without_host if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_file_with_host if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "file", "host": "nas", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_port_of_the_scheme if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": 443, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == set()

test_another_port if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": "github.com", "port": 8443, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_within_a_chain if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "zip", "host": null, "port": null, "has_credentials": false, "path": "/m.onnx"}, {"scheme": "https", "host": "evil.example", "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_host_wrong_type if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": [{"scheme": "https", "host": 5, "port": null, "has_credentials": false, "path": "/m.onnx"}], "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", "source"]}

test_wrong_type if places({"facts": {"sources": [{"role": "model", "path": ["model", "source"], "well_formed": true, "links": null, "local": false, "absolute": false, "escapes": false, "wheel": null, "sha256": "abababababababababababababababababababababababababababababababab", "size_bytes": null}]}}) == {["model", 0]}

test_missing if complaints({}) == {["model"]}

test_no_list_no_pass if {
	found := {finding.path |
		some finding in hosts_allowed.findings with input as object.union(base, {}) with data.sources as {}
	}
	found == {["model", "source"]}
}
