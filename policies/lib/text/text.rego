# METADATA
# scope: package
# title: Values in words
# description: |
#   Writes numbers so that every engine writes them alike: `sprintf` with %v does not, for fractions.
package trtops.lib.text

# Bytes in the largest binary unit that leaves no fraction.
bytes(count) := sprintf("%d GiB", [count / 1073741824]) if {
	count >= 1073741824
	count % 1073741824 == 0
}

bytes(count) := sprintf("%d MiB", [count / 1048576]) if {
	count >= 1048576
	count % 1048576 == 0
	count % 1073741824 != 0
}

bytes(count) := sprintf("%d bytes", [count]) if count % 1048576 != 0

bytes(count) := "0 bytes" if count == 0

# Microseconds, as milliseconds where they are whole.
microseconds(count) := sprintf("%d ms", [count / 1000]) if {
	count >= 1000
	count % 1000 == 0
}

microseconds(count) := sprintf("%d us", [count]) if count % 1000 != 0

microseconds(count) := "0 us" if count == 0

# A number: integers as they are, fractions with the digits they need (twelve after the point at most).
number(value) := sprintf("%d", [value]) if floor(value) == value

number(value) := trim_right(sprintf("%.12f", [value]), "0") if floor(value) != value

# Nanoseconds as whole microseconds, rounded down.
nanoseconds(count) := sprintf("%d us", [floor(count / 1000)])

# Integers of a version joined by points.
version(numbers) := concat(".", [part | some number in numbers; part := sprintf("%d", [number])])

# A limit for a message: what it is, or that it is not set.
limit(value) := number(value) if is_number(value)

limit(value) := "nothing (no limit is set)" if not is_number(value)

