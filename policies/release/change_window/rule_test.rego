package trtops.release.change_window_test

import data.trtops.release.change_window

base := {"environment": "prod", "action": "release", "clock": {"weekday": "mon", "time": "08:00", "date": "2026-03-02"}}

change_windows := {"environments": {"local": {"always": true, "windows": []}, "default": {"always": false, "windows": [{"days": ["mon", "tue"], "from": "08:00", "until": "16:00"}]}}, "freezes": [{"first": "2026-12-18", "last": "2027-01-03", "reason": "holidays"}]}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in change_window.findings with input as document with data.change_windows as change_windows
}

test_it_opens if places({}) == set()

test_before_it_opens if places({"clock": {"weekday": "mon", "time": "07:59", "date": "2026-03-02"}}) == {["created"]}

test_before_it_closes if places({"clock": {"weekday": "mon", "time": "15:59", "date": "2026-03-02"}}) == set()

test_it_closes if places({"clock": {"weekday": "mon", "time": "16:00", "date": "2026-03-02"}}) == {["created"]}

test_another_day if places({"clock": {"weekday": "fri", "time": "08:00", "date": "2026-03-02"}}) == {["created"]}

test_rollback if places({"action": "rollback", "clock": {"weekday": "sun", "time": "08:00", "date": "2026-03-02"}}) == set()

test_always if places({"environment": "local", "clock": {"weekday": "sun", "time": "08:00", "date": "2026-03-02"}}) == set()

test_day_before_the_freeze if places({"clock": {"weekday": "mon", "time": "08:00", "date": "2026-12-17"}}) == set()

test_first_day if places({"clock": {"weekday": "mon", "time": "08:00", "date": "2026-12-18"}}) == {["created"]}

test_last_day if places({"clock": {"weekday": "mon", "time": "08:00", "date": "2027-01-03"}}) == {["created"]}

test_day_after if places({"clock": {"weekday": "mon", "time": "08:00", "date": "2027-01-04"}}) == set()

test_wrong_type if places({"clock": {"weekday": 1, "time": "08:00", "date": "2026-03-02"}}) == {["created"]}

test_missing if complaints({}) == {["created"], ["reason"]}

test_no_table_no_pass if {
	found := {finding.path |
		some finding in change_window.findings with input as object.union(base, {}) with data.change_windows as {}
	}
	found == {["created"]}
}
