"""Which built-in functions rules may call: those that OPA and regorus both have and answer alike.

The list is a list of what is allowed, so that a built-in of a newer OPA is refused until somebody looked at it. Numbers
are of arguments; a call may have one more, which receives the result (``walk(x, [path, value])``). A contract test
holds the list against the real engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ALLOWED: Mapping[str, int] = {
    "abs": 1,
    "array.concat": 2,
    "array.reverse": 1,
    "array.slice": 3,
    "base64.decode": 1,
    "base64.encode": 1,
    "base64.is_valid": 1,
    "bits.and": 2,
    "bits.lsh": 2,
    "bits.negate": 1,
    "bits.or": 2,
    "bits.rsh": 2,
    "bits.xor": 2,
    "ceil": 1,
    "concat": 2,
    "contains": 2,
    "count": 1,
    "endswith": 2,
    "floor": 1,
    "format_int": 2,
    "glob.match": 3,
    "glob.quote_meta": 1,
    "graph.reachable": 2,
    "hex.decode": 1,
    "hex.encode": 1,
    "indexof": 2,
    "intersection": 1,
    "is_array": 1,
    "is_boolean": 1,
    "is_null": 1,
    "is_number": 1,
    "is_object": 1,
    "is_set": 1,
    "is_string": 1,
    "json.filter": 2,
    "json.remove": 2,
    "lower": 1,
    "max": 1,
    "min": 1,
    "numbers.range": 2,
    "object.filter": 2,
    "object.get": 3,
    "object.keys": 1,
    "object.remove": 2,
    "object.subset": 2,
    "object.union": 2,
    "object.union_n": 1,
    "regex.find_n": 3,
    "regex.is_valid": 1,
    "regex.match": 2,
    "regex.replace": 3,
    "regex.split": 2,
    "replace": 3,
    "round": 1,
    "sort": 1,
    "split": 2,
    "sprintf": 2,
    "startswith": 2,
    "strings.any_prefix_match": 2,
    "strings.any_suffix_match": 2,
    "strings.count": 2,
    "strings.reverse": 1,
    "substring": 3,
    "sum": 1,
    "trim": 2,
    "trim_left": 2,
    "trim_prefix": 2,
    "trim_right": 2,
    "trim_space": 1,
    "trim_suffix": 2,
    "type_name": 1,
    "union": 1,
    "walk": 1,
}

_CLOCK = "the clock is a fact of the input (epoch seconds), so that a verdict can be repeated"
_FACTS = "engines differ; the input holds it as a fact, computed beforehand"
_OUTSIDE = "a rule sees its input and its data, nothing else"

BANNED: Mapping[str, str] = {
    "semver.": "engines differ; versions are lists of integers in the input",
    "time.parse_": "engines differ; times are epoch seconds in the input",
    "time.now_ns": _CLOCK,
    "time.": _FACTS,
    "rego.": "engines differ; metadata is read by trtops",
    "http.send": _OUTSIDE,
    "net.": _OUTSIDE,
    "opa.runtime": _OUTSIDE,
    "rand.": "a verdict must be the same every time",
    "uuid.": "a verdict must be the same every time",
    "trace": "a rule has no output but its findings",
    "print": "a rule has no output but its findings",
    "to_number": "engines differ (white space); numbers are numbers in the input",
    "upper": "engines differ beyond ASCII; compare lower case",
    "product": "engines round fractions differently",
    "json.marshal": "engines write numbers differently",
    "json.unmarshal": _FACTS,
    "yaml.": _FACTS,
    "units.": "sizes are bytes and durations microseconds in the input",
    "crypto.": "regorus has none",
    "io.jwt.": "regorus has none",
}
"""Name, or its beginning where it ends in ``.`` or ``_`` -> why."""


def banned(name: str) -> str | None:
    """Why a built-in may not be called; None if it is not named here."""
    for entry, reason in BANNED.items():
        if name == entry or (entry.endswith((".", "_")) and name.startswith(entry)):
            return reason
    return None
