# METADATA
# scope: package
# title: Values in words
# description: |
#   Writes numbers so that every engine writes them alike: `sprintf` with %v does not, for fractions.
package trtops.lib.text

import data.trtops.lib.facts

# What stands in a message for a limit that is missing from the data: nothing is within it.
unset := "nothing (the limit is not set)"

# Bytes in the largest binary unit that leaves no fraction.
bytes(amount) := scaled(amount, [
	{"size": 1073741824, "name": "GiB"},
	{"size": 1048576, "name": "MiB"},
	{"size": 1, "name": "bytes"},
])

# Microseconds, as milliseconds where they are whole.
microseconds(amount) := scaled(amount, [{"size": 1000, "name": "ms"}, {"size": 1, "name": "us"}])

scaled(amount, units) := sprintf("%d %s", [floor(amount / fitting[0].size), fitting[0].name]) if {
	facts.is_count(amount)
	fitting := [unit | some unit in units; amount >= unit.size; amount % unit.size == 0]
	count(fitting) > 0
}

scaled(amount, units) := sprintf("0 %s", [units[count(units) - 1].name]) if amount == 0

# What is no count is malformed, and only written so that it can be found.
scaled(amount, _) := number(amount) if not facts.is_count(amount)

# A number: integers as they are, fractions with the digits they need (twelve after the point at most).
number(value) := digits(value) if {
	is_number(value)
	value >= 0
	not beyond(value)
}

# regorus writes two signs in front of a negative number.
number(value) := concat("", ["-", digits(0 - value)]) if {
	is_number(value)
	value < 0
	not beyond(value)
}

number(value) := "a number beyond 2^53" if {
	is_number(value)
	beyond(value)
}

number(value) := unset if not is_number(value)

digits(value) := sprintf("%d", [floor(value)]) if facts.is_integer(value)

digits(value) := trim_right(sprintf("%.12f", [value]), "0") if not facts.is_integer(value)

beyond(value) if value > 9007199254740991

beyond(value) if value < -9007199254740991

# Nanoseconds as whole microseconds, rounded down.
nanoseconds(amount) := sprintf("%d us", [floor(amount / 1000)])

# Integers of a version joined by points.
version(numbers) := concat(".", [sprintf("%d", [floor(part)]) | some part in numbers])
