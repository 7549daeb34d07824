"""Where a Nacos is, and how its configurations are named and written. Pure.

A document's name is a ``dataId`` with ``:`` for ``/``, since a dataId knows no slash and a name no colon. The group is
``TRTOPS``, the namespace the environment. A body that is text stands there as it is, for people to read in a console;
anything else (an empty one, control characters, bytes that are no UTF-8) in base64 behind a marker.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

from trtops.errors import InputError
from trtops.registry.names import checked_name

GROUP = "TRTOPS"
SENTINEL = "trtops::environment"
"""dataId of the document that says that a namespace was set up for trtops; no document's name leads to it."""

ABSENT_MD5 = "0" * 32
"""Compared with an absent configuration's md5 this holds; with any other it does not: create-only."""

SCHEMES = {"nacos": False, "nacos+tls": True}
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:(?P<port>[0-9]{1,5}))?")
_DEFAULT_PORT = 8848
_MAX_PORT = 65_535
_MARKER = "base64:"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_FIX = "write nacos://HOST:PORT, or nacos+tls://HOST:PORT; several servers of a cluster with commas between"


@dataclass(frozen=True, slots=True)
class Place:
    """Servers of one Nacos.

    Attributes:
        addresses: ``HOST:PORT`` of each server; the clients' gRPC port is 1000 higher.
        tls: whether HTTP and gRPC are spoken over TLS.
    """

    addresses: tuple[str, ...]
    tls: bool = False

    def __str__(self) -> str:
        """Render as the URL that it was read from."""
        return f"{'nacos+tls' if self.tls else 'nacos'}://{','.join(self.addresses)}"

    def urls(self) -> tuple[str, ...]:
        """Base URL of each server's HTTP interface."""
        return tuple(f"{'https' if self.tls else 'http'}://{address}" for address in self.addresses)


def parse_place(url: str, *, where: str | None = None) -> Place:
    """Read ``nacos://HOST:PORT[,HOST:PORT]…`` or ``nacos+tls://…``.

    Raises:
        InputError: it is no such URL, or it holds a password: URLs are shown in reports and logs.
    """
    scheme, _, rest = url.partition("://")
    if "@" in rest:
        fix = "take user and password out of the URL; set nacos_user and nacos_password_file instead"
        raise InputError("the registry's URL holds a user or a password", where=where, fix=fix)
    addresses = []
    for part in rest.rstrip("/").split(","):
        match = _ADDRESS.fullmatch(part.strip())
        port = int(match["port"] or _DEFAULT_PORT) if match else 0
        if scheme not in SCHEMES or match is None or not 0 < port <= _MAX_PORT:
            raise InputError(f"not the URL of a Nacos: {url[:200]!r}", where=where, fix=_FIX)
        addresses.append(f"{match['host']}:{port}")
    return Place(tuple(addresses), SCHEMES[scheme])


def data_id(name: str) -> str:
    """The dataId of a document.

    Raises:
        ValueError: it is no name of a document.
    """
    return checked_name(name).replace("/", ":")


def name_of(identifier: str) -> str | None:
    """The document's name; None if somebody else's configuration, or the sentinel, has this dataId."""
    name = identifier.replace(":", "/")
    try:
        return checked_name(name) if "/" not in identifier else None
    except ValueError:
        return None


def text_of(body: bytes) -> str:
    """What a body is written as."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    plain = bool(text.strip()) and not _CONTROL.search(text) and not text.startswith(_MARKER)
    return text if plain else _MARKER + base64.b64encode(body).decode("ascii")


def body_of(text: str) -> bytes:
    """The body that a text stands for.

    Raises:
        ValueError: it has the marker and no base64 behind it (somebody else wrote it).
    """
    if not text.startswith(_MARKER):
        return text.encode("utf-8", errors="surrogatepass")
    try:
        return base64.b64decode(text.removeprefix(_MARKER), validate=True)
    except binascii.Error as error:
        raise ValueError(f"no base64: {error}") from None


def md5_of(text: str) -> str:
    """What Nacos compares in a compare-and-swap: lower case; upper case never matches. It protects nothing."""
    return hashlib.md5(text.encode("utf-8", errors="surrogatepass"), usedforsecurity=False).hexdigest()
