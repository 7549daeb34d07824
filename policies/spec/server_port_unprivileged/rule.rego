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
import data.trtops.lib.text

needs := [
	{"fact": ["runtime", "present"], "kind": "boolean", "path": ["server", "port"], "document": "runtime"},
	{"fact": ["runtime", "server", "port"], "kind": "count?", "path": ["server", "port"], "document": "runtime"},
]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("port %s is not in 1025 to 65535", [text.number(port)]),
	"path": ["server", "port"],
	"document": "runtime",
} if {
	port := input.runtime.server.port
	is_number(port)
	not unprivileged(port)
}

findings contains {
	"message": "the config names no port",
	"path": ["server", "port"],
	"document": "runtime",
} if {
	input.runtime.present != false
	input.runtime.server.port == null
}

unprivileged(port) if {
	port > 1024
	port <= 65535
}
