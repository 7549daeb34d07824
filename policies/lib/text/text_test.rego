package trtops.lib.text_test

import data.trtops.lib.text

test_bytes_take_the_largest_whole_unit if {
	text.bytes(0) == "0 bytes"
	text.bytes(1) == "1 bytes"
	text.bytes(1048575) == "1048575 bytes"
	text.bytes(1048576) == "1 MiB"
	text.bytes(1048577) == "1048577 bytes"
	text.bytes(1072693248) == "1023 MiB"
	text.bytes(1073741824) == "1 GiB"
	text.bytes(null) == text.unset
	text.bytes(1.5) == "1.5"
}

test_microseconds_become_whole_milliseconds if {
	text.microseconds(0) == "0 us"
	text.microseconds(999) == "999 us"
	text.microseconds(1000) == "1 ms"
	text.microseconds(1001) == "1001 us"
	text.microseconds("1ms") == text.unset
}

test_numbers_have_the_digits_they_need if {
	text.number(0) == "0"
	text.number(-3) == "-3"
	text.number(0.001) == "0.001"
	text.number(0.0000001) == "0.0000001"
	text.number(1.0) == "1"
	text.number(1.5) == "1.5"
	text.number(-0.25) == "-0.25"
	text.number(9007199254740991) == "9007199254740991"
	text.number(1e300) == "a number beyond 2^53"
	text.number(-1e300) == "a number beyond 2^53"
	text.number(null) == text.unset
}

test_nanoseconds_are_rounded_down if {
	text.nanoseconds(999) == "0 us"
	text.nanoseconds(1999) == "1 us"
}

test_versions_are_joined if {
	text.version([8, 6, 1]) == "8.6.1"
	text.version([]) == ""
}
