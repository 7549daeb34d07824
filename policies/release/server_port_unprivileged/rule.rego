# METADATA
# scope: package
# title: The released config listens on an unprivileged port
# description: |
#   The config that is released may come from another overlay than the one that was checked with the spec; its
#   port is held to the same rule.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Choose a port from 1025 to 65535 under `server.port` of the environment's `runtime.yaml`.
package trtops.release.server_port_unprivileged

import data.trtops.lib.facts
import data.trtops.lib.text

needs := [{"fact": ["config", "port"], "kind": "count", "path": ["server", "port"], "document": "runtime"}]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("port %s is not in 1025 to 65535", [text.number(port)]),
	"path": ["server", "port"],
	"document": "runtime",
} if {
	port := facts.at(["config", "port"])
	facts.is_count(port)
	not unprivileged(port)
}

unprivileged(port) if {
	port > 1024
	port <= 65535
}
