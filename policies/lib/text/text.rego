# METADATA
# scope: package
# title: Values in words
# description: |
#   Writes numbers so that every engine writes them alike: `sprintf` with %v does not, for fractions.
package trtops.lib.text

# What stands in a message for a limit that is missing from the data: nothing is within it.
unset := "nothing (the limit is not set)"

# Bytes in the largest binary unit that leaves no fraction.
bytes(count) := sprintf("%d GiB", [count / 1073741824]) if {
	is_number(count)
	count >= 1073741824
	count % 1073741824 == 0
}

bytes(count) := sprintf("%d MiB", [count / 1048576]) if {
	is_number(count)
	count >= 1048576
	count % 1048576 == 0
	count % 1073741824 != 0
}

bytes(count) := sprintf("%d bytes", [count]) if {
	is_number(count)
	count % 1048576 != 0
}

bytes(count) := "0 bytes" if count == 0

bytes(count) := unset if not is_number(count)

# Microseconds, as milliseconds where they are whole.
microseconds(count) := sprintf("%d ms", [count / 1000]) if {
	is_number(count)
	count >= 1000
	count % 1000 == 0
}

microseconds(count) := sprintf("%d us", [count]) if {
	is_number(count)
	count % 1000 != 0
}

microseconds(count) := "0 us" if count == 0

microseconds(count) := unset if not is_number(count)

# A number: integers as they are, fractions with the digits they need (twelve after the point at most).
number(value) := sprintf("%d", [value]) if {
	is_number(value)
	floor(value) == value
}

number(value) := trim_right(sprintf("%.12f", [value]), "0") if {
	is_number(value)
	floor(value) != value
}

number(value) := unset if not is_number(value)

# Nanoseconds as whole microseconds, rounded down.
nanoseconds(count) := sprintf("%d us", [floor(count / 1000)])

# Integers of a version joined by points.
version(numbers) := concat(".", [part | some number in numbers; part := sprintf("%d", [number])])
