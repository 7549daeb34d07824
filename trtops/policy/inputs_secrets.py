"""Which values of a runtime config look like secrets, and whether each is a sealed reference.

The value itself never leaves this module: policies, reports and digests see where it stands and what it is.
"""

from __future__ import annotations

import re
import unicodedata
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from trtops.digest import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SecretKind = Literal["reference", "plain", "embedded", "absent"]
Path = tuple[str | int, ...]

_EMPTY = frozenset({"null", "~", "true", "false", "|", ">", "[", "{"})
WITHHELD = "(plain text, withheld)"
"""What stands in an input document in place of a secret that somebody wrote as text."""

_REFERENCE = re.compile(r"secret:[a-z0-9][a-z0-9_-]{0,62}(?:/[a-z0-9][a-z0-9_-]{0,62}){0,3}")
_SECRET_WORDS = re.compile(
    r"(?:^|_)(?:passwords?|passwds?|passphrases?|pass|pwd|tokens?|keys?|credentials?|creds?|secrets?)(?:_|\d|$)"
)
_RUN_TOGETHER = re.compile(
    r"password|passwd|passphrase|credential|secret|apikey|accesskey|privatekey|secretkey|sshkey|authtoken|accesstoken"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NETLOC = re.compile(r"://([^/?#\s]*)")
_ASSIGNMENT = re.compile(r"""(?:^|[?&;,{\s])([A-Za-z_.-]+)[ \t]*=(?!=)[ \t]*["']?([^&;\s"']+)""")
_ENTRY = re.compile(
    r"""(?:^[ \t]*(?:-[ \t]+)*|[{,][ \t]*)([A-Za-z_][A-Za-z_.-]{0,63})[ \t]*:[ \t]+["']?([^\s"',}][^\n"',}]*)"""
    r"""|"([^"\n]{1,64})"[ \t]*:[ \t]*["']?([^\s"',}][^\n"',}]*)""",
    re.MULTILINE,
)
_PRIVATE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----|AGE-SECRET-KEY-1|\bgh[pousr]_[A-Za-z0-9]{20,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\bgithub_pat_[A-Za-z0-9_]{20,}|\bglpat-[A-Za-z0-9_-]{20,}|\bhf_[A-Za-z0-9]{20,}|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|\bsk-[A-Za-z0-9_-]{20,}|\bBearer [A-Za-z0-9._~+/-]{16,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"
)
_NAMES, _VALUES = ("name", "key", "variable"), ("value", "values", "default")
_ALIKE = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u043a\u0455\u0456\u0501\u0442\u0432\u043d"  # Cyrillic, small
    "\u0410\u0415\u041e\u0420\u0421\u0423\u0425\u041a\u0405\u0406\u0422\u0412\u041d"
    "\u03b1\u03bf\u03c1\u03c4\u03ba\u03b5\u03b9\u03bd\u0391\u0395\u039a\u039f\u03a1\u03a4\u0399\u0395\u039d",
    "aeopcyxksidtbnAEOPCYXKSITBNaoptkeivAEKOPTIEN",
)
"""Letters that look like Latin ones: what a reviewer reads as `password` counts as that."""


class SecretField(Value):
    """One place of a config that holds, or should hold, a secret.

    Attributes:
        path: where it stands.
        key: the key that looks like a secret; for an embedded one, the key of the value that holds it.
        kind: ``reference`` to a sealed value, ``plain`` text (or a number), ``embedded`` (a URL with a password, a
            private key under a harmless name), ``absent`` (null).
    """

    path: Path
    key: str
    kind: SecretKind


def looks_secret(key: str) -> bool:
    """Tell whether a key names a secret: ``password``, ``api_key``, ``accessToken``, ``DB-CREDENTIALS``."""
    folded = unicodedata.normalize("NFKC", key).translate(_ALIKE)
    folded = "".join(mark for mark in folded if unicodedata.category(mark) != "Cf")
    words = re.sub(r"[^A-Za-z0-9]+", "_", _CAMEL.sub("_", folded)).lower()
    return bool(_SECRET_WORDS.search(words) or _RUN_TOGETHER.search(words.replace("_", "")))


def is_reference(value: object) -> bool:
    """Tell whether a value is ``secret:PATH`` (one to four segments, as sealed values are named) and nothing else."""
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def _netloc_leaks(netloc: str, rest: str) -> bool:
    user, at, _ = netloc.rpartition("@")
    if at:
        password = user.partition(":")[2]
        return bool(password) and not is_reference(password)
    port = netloc.rpartition("]")[2].partition(":")[2]
    return bool(port) and not port.isdigit() and "@" in rest  # a password with a slash in it


def _embeds_secret(text: str) -> bool:
    if _PRIVATE.search(text):
        return True
    if any(_netloc_leaks(match[1], text[match.end() :]) for match in _NETLOC.finditer(text)):
        return True
    if any(looks_secret(match[1]) and not is_reference(match[2]) for match in _ASSIGNMENT.finditer(text)):
        return True
    return _structured(text) and any(_entry_leaks(match) for match in _ENTRY.finditer(text))


def _structured(text: str) -> bool:
    """Whether a text may be a document of its own, and no sentence: ``the token: see the manual`` is none."""
    return "\n" in text.strip() or text.lstrip().startswith(("{", "["))


def _entry_leaks(match: re.Match[str]) -> bool:
    key, value = match[1] or match[3], (match[2] or match[4]).strip()
    return looks_secret(key) and not is_reference(value) and value not in _EMPTY


def _named(value: Mapping[str, Any]) -> str | None:
    """The secret that a pair names: ``{name: DB_PASSWORD, value: …}``."""
    if not any(key in value for key in _VALUES):
        return None
    names = (value.get(key) for key in _NAMES)
    return next((name for name in names if isinstance(name, str) and looks_secret(name)), None)


def _leaves(value: Any, path: Path, key: str, *, secret: bool) -> Iterator[tuple[Path, str, bool, Any]]:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict):
        pair = _named(value)
        for name, child in value.items():
            if pair is not None and name in (*_NAMES, *_VALUES):
                yield from _leaves(child, (*path, str(name)), pair, secret=secret or name in _VALUES)
                continue
            named = looks_secret(str(name))
            yield from _leaves(
                child, (*path, str(name)), str(name) if named or not secret else key, secret=secret or named
            )
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _leaves(child, (*path, index), key, secret=secret)
    else:
        yield path, key, secret, value


def _kind(value: object, *, secret: bool) -> SecretKind | None:
    if is_reference(value):
        return "reference"
    if isinstance(value, str) and value.strip().lower().startswith("secret:"):
        return "plain"  # it looks like a reference and can be none
    if isinstance(value, str) and _embeds_secret(value):
        return "embedded"
    if not secret or isinstance(value, bool):
        return None
    return "absent" if value is None else "plain"


def secret_fields(config: Mapping[str, Any]) -> tuple[SecretField, ...]:
    """Find every value of a config that looks like a secret, sorted as the config is.

    A key counts with all that stands under it: each leaf of ``credentials: {user: …, pin: …}`` is one. True and false
    are switches, never secrets.
    """
    found = []
    for path, key, secret, value in _leaves(dict(config), (), "", secret=False):
        kind = _kind(value, secret=secret)
        if kind is not None:
            found.append(SecretField(path=path, key=key, kind=kind))
    return tuple(found)


def withhold(config: Any, fields: tuple[SecretField, ...]) -> Any:  # noqa: ANN401 - any JSON value
    """Copy a config with every plain or embedded secret replaced by :data:`WITHHELD`."""
    hidden = {field.path for field in fields if field.kind in ("plain", "embedded")}

    def copy(value: Any, path: Path) -> Any:  # noqa: ANN401 - any JSON value
        if path in hidden:
            return WITHHELD
        if isinstance(value, dict):
            return {str(key): copy(child, (*path, str(key))) for key, child in value.items()}
        if isinstance(value, list | tuple):
            return [copy(child, (*path, index)) for index, child in enumerate(value)]
        plain = value is None or isinstance(value, str | int) or (isinstance(value, float) and isfinite(value))
        return value if plain else str(value)  # YAML knows dates and .nan, JSON does not

    return copy(config, ())
