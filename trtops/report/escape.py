"""Text that came from files, made harmless before it is shown."""

from __future__ import annotations

import re

# C0 and C1 control characters and DEL (terminal escape sequences begin with one), lone surrogates (no terminal can
# encode them), line and paragraph separators, marks that reorder text (bidirectional controls: what is shown would not
# be what is there), and the byte order mark.
_HARMFUL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_NO_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def visible(text: str) -> str:
    r"""Write harmful characters as escapes (``\x1b``, ``\u202e``). Law: doing it twice changes nothing more."""
    return _HARMFUL.sub(lambda match: _escape(match[0]), text)


def visible_lines(text: str) -> list[str]:
    """The lines of a text, each of them made harmless; tabs become four blanks."""
    return [visible(line.expandtabs(4)) for line in re.split(r"\r\n|\n|\r", text)]


def path_bytes(text: str) -> bytes:
    """Bytes of a path: those that the file system gave where it is not UTF-8 (PEP 383)."""
    return _NO_BYTES.sub("\ufffd", text).encode("utf-8", "surrogateescape")


def _escape(character: str) -> str:
    code = ord(character)
    names = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
    return names.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")  # noqa: PLR2004 - one byte
