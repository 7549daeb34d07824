"""Which names and bodies a registry takes: one rule for every adapter."""

from __future__ import annotations

import re

from trtops.registry.port import MAX_DOCUMENT_BYTES

MAX_NAME = 200
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")


def checked_name(name: str) -> str:
    """The name itself.

    Raises:
        ValueError: it is no name of a document (a mistake of the caller: names are made by ``release.layout``).
    """
    segments = name.split("/")
    if len(name) > MAX_NAME or not all(_SEGMENT.fullmatch(one) and one not in {".", ".."} for one in segments):
        raise ValueError(f"not a document's name: {name[:80]!r}")
    return name


def checked_body(name: str, body: bytes) -> bytes:
    """The body itself.

    Raises:
        ValueError: it is larger than a document may be, or the name is none.
    """
    checked_name(name)
    if len(body) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"document {name} has {len(body)} bytes; {MAX_DOCUMENT_BYTES} are allowed")
    return body
