# METADATA
# scope: package
# title: The pointer expires in time
# description: |
#   A service that is cut off from its registry learns from the expiry that what it knows may be old. A pointer
#   that lasts too long keeps an attacker's freeze unnoticed; what runs keeps serving either way.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Let the pointer expire within the environment's limit; `trtops registry refresh` renews it.
package trtops.release.pointer_expires

import data.trtops.lib.environments
import data.trtops.lib.facts
import data.trtops.lib.text

needs := [{"fact": ["binding", "lifetime_seconds"], "kind": "integer?", "path": ["expires"]}]

findings contains finding if some finding in facts.malformed(needs)

findings contains {
	"message": sprintf("the pointer never expires, here it may last %s hours", [text.number(limit)]),
	"path": ["expires"],
} if {
	limit != null
	lifetime == null
}

findings contains {
	"message": sprintf("the pointer lasts %s seconds, here it may last %s hours", [text.number(lifetime), text.number(limit)]),
	"path": ["expires"],
} if {
	limit != null
	facts.is_integer(lifetime)
	lifetime > 0
	not within(lifetime)
}

findings contains {
	"message": sprintf("the pointer lasts %s seconds: it is expired when it is written", [text.number(lifetime)]),
	"path": ["expires"],
} if {
	facts.is_integer(lifetime)
	lifetime <= 0
}

lifetime := facts.at(["binding", "lifetime_seconds"])

default limit := 0

limit := environments.of(data.release).max_lifetime_hours

within(seconds) if seconds <= limit * 3600
