# METADATA
# scope: package
# title: Limits of the engine's tier
# description: |
#   Reads `policies/data/limits.yaml`. An unknown tier gets the limits of the strictest one (the rule `spec.tier_known`
#   denies it anyway); a limit that is missing is null, which no value is within.
package trtops.lib.limits

default value(_) := null

value(key) := data.limits.tiers[tier][key]

# The tier whose limits hold.
default tier := "none"

tier := input.tier if data.limits.tiers[input.tier]

tier := data.limits.strictest if not data.limits.tiers[input.tier]

known if data.limits.tiers[input.tier]

# A limit in MiB, in bytes; a limit in milliseconds, in microseconds. Null where there is none.
default bytes(_) := null

bytes(key) := limit * 1048576 if {
	limit := value(key)
	is_number(limit)
}

default microseconds(_) := null

microseconds(key) := limit * 1000 if {
	limit := value(key)
	is_number(limit)
}
