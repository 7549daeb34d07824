# METADATA
# scope: package
# title: The server listens on an unprivileged port
# description: |
#   Ports up to 1024 need a privileged process, and 0 means a port that nobody knows beforehand. An inference
#   server needs neither.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Choose a port from 1025 to 65535 under `server.port` of `runtime.yaml`.
package trtops.spec.server_port_unprivileged

import data.trtops.lib.facts

findings contains finding if some finding in facts.malformed([runtime])

runtime := {"fact": ["runtime"], "kind": "map?", "path": ["server", "port"], "document": "runtime"}

findings contains finding if {
	is_object(facts.at(["runtime"]))
	some finding in facts.malformed([object.union(runtime, {"fact": ["runtime", "server", "port"], "kind": "count"})])
}

findings contains facts.placed(sprintf("port %d is not in 1025 to 65535", [port]), ["server", "port"], runtime) if {
	port := facts.at(["runtime", "server", "port"])
	facts.is_count(port)
	not unprivileged(port)
}

unprivileged(port) if {
	port > 1024
	port <= 65535
}
