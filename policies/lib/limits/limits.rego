# METADATA
# scope: package
# title: Limits of the engine's tier
# description: |
#   Reads `policies/data/limits.yaml`. An unknown tier gets the limits of the strictest one (the rule `spec.tier_known`
#   denies it anyway). A limit that is missing is null in `value`, and undefined in `current`: compare with it in a rule
#   of its own (`within`), so that nothing is within it.
package trtops.lib.limits

import data.trtops.lib.facts

# The tier whose limits hold.
default tier := "none"

tier := facts.at(["tier"]) if known

tier := data.limits.strictest if not known

known if data.limits.tiers[facts.at(["tier"])]

current := data.limits.tiers[tier]

# A limit for a message or a comparison.
default value(_) := null

value(key) := current[key]

# A limit in MiB, in bytes; a limit in milliseconds, in microseconds. Null where there is none.
default bytes(_) := null

bytes(key) := current[key] * 1048576 if is_number(current[key])

default microseconds(_) := null

microseconds(key) := current[key] * 1000 if is_number(current[key])
