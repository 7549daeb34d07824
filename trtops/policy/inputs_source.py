"""Input of the stage ``source``: where everything would come from, judged before anything is fetched or opened."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field, JsonValue

from trtops.digest import Value
from trtops.model.indexes import DEFAULT
from trtops.policy.inputs import StageInput
from trtops.policy.inputs_secrets import secret_fields, withhold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtops.spec.engine import EngineSpec

Role = Literal["model", "samples", "calibration", "plugin"]

_BRACKET = re.compile(r"[\[\]]")
_IPV6 = re.compile(r"(?:[^@]*@)?\[[0-9A-Fa-f:.]+\](?::[0-9]*)?")
_ODD = re.compile(r"[\s\\\x00-\x1f\x7f]")
_PYPI = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9.!+*_-]+))?")
_EXACT = re.compile(r"\d+(?:!\d+)?(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?(?:\+[A-Za-z0-9.]+)?")


class Link(Value):
    """One link of a URI; fsspec chains them with ``::`` (``zip://model.onnx::https://host/file.zip``).

    Attributes:
        scheme: lower case; ``file`` where none is written.
        host: lower case; null where the scheme has none.
        port: null where none is written.
        has_credentials: a user or a password stands in it.
        path: decoded.
    """

    scheme: str
    host: str | None
    port: int | None
    has_credentials: bool
    path: str


class Package(Value):
    """What a ``pypi:`` URI names.

    Attributes:
        name: normalised (lower case, runs of ``-_.`` are one dash).
        version: as written; null where there is none.
        exact: the version names one release: no wildcard, no range.
        member: path of the file within the wheel.
    """

    name: str
    version: str | None
    exact: bool
    member: str


class SourceFacts(Value):
    """One thing that would be read.

    Attributes:
        role: what it is for.
        path: where the URI stands in ``engine.yaml``.
        uri: as written, credentials withheld.
        well_formed: no control character, white space, backslash, or part that cannot be read.
        links: of the chain, outermost first; empty where it is not well formed.
        local: every link is a local file.
        absolute: a local path from the root of the file system.
        escapes: a local path that leaves the folder of the engine by ``..``.
        wheel: for ``pypi:``: the package, its version and the file in its wheel.
        sha256: digest that the spec pins; null where it pins none.
        size_bytes: size if it is known without fetching; null where it is not.
    """

    role: Role
    path: tuple[str | int, ...]
    uri: str
    well_formed: bool
    links: tuple[Link, ...]
    local: bool
    absolute: bool
    escapes: bool
    wheel: Package | None
    sha256: str | None
    size_bytes: int | None


class Index(Value):
    """A package index that pip would ask. ``host`` is null for a folder; ``url`` has its credentials withheld.

    ``scheme`` is ``default`` for the index that pip asks when no setting names one.
    """

    url: str
    scheme: str
    host: str | None


class PluginFacts(Value):
    """A plugin of the builder: its library runs as code of this process when the engine is built or loaded."""

    path: tuple[str | int, ...]
    name: str | None
    library: str | None
    sha256: str | None


class SourcesFacts(Value):
    """All that would be read, and from where."""

    sources: tuple[SourceFacts, ...]
    indexes: tuple[Index, ...]
    plugins: tuple[PluginFacts, ...]


class SourceInput(StageInput):
    """``trtops.source/v1``. ``document`` is ``engine.yaml`` as its author wrote it."""

    schema_id: Literal["trtops.source/v1"] = Field(default="trtops.source/v1", alias="schema")
    document: dict[str, JsonValue]
    facts: SourcesFacts


def _without_credentials(uri: str) -> str:
    return re.sub(r"(?<=://)[^/@?#]*@", "…@", uri)


def _link(text: str) -> Link:
    """Read one link.

    Raises:
        ValueError: a port or an IPv6 address that cannot be.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text) is None:
        return Link(scheme="file", host=None, port=None, has_credentials=False, path=text)
    parts = urlsplit(text)
    if _BRACKET.search(parts.netloc) and not _IPV6.fullmatch(parts.netloc):
        raise ValueError(f"not a host: {parts.netloc}")  # CPython before 3.11.4 takes it for one
    if parts.scheme in ("file", "local"):
        path = unquote(parts.netloc + parts.path if parts.netloc != "localhost" else parts.path)
        return Link(scheme="file", host=None, port=None, has_credentials=False, path=path)
    if parts.scheme == "pypi":
        return Link(scheme="pypi", host=None, port=None, has_credentials="@" in parts.netloc, path=unquote(parts.path))
    return Link(
        scheme=parts.scheme,
        host=parts.hostname,
        port=parts.port,
        has_credentials="@" in parts.netloc,
        path=unquote(parts.path),
    )


def _links(uri: str) -> tuple[Link, ...]:
    """Read a chain; empty where it cannot be read."""
    if not uri or _ODD.search(uri):
        return ()
    pieces = uri.split("::")
    try:
        # `simplecache::https://…`: within a chain, a bare word is a protocol and no path.
        return tuple(_link(f"{piece}://" if len(pieces) > 1 and ":" not in piece else piece) for piece in pieces)
    except ValueError:
        return ()


def _package(uri: str, links: tuple[Link, ...]) -> Package | None:
    if len(links) != 1 or links[0].scheme != "pypi":
        return None
    head, _, member = uri.split(":", 1)[1].removeprefix("//").partition("/")
    match = _PYPI.fullmatch(unquote(head))
    if match is None:
        return Package(name=head.lower(), version=None, exact=False, member=unquote(member))
    version = match["version"]
    exact = version is not None and _EXACT.fullmatch(version) is not None
    return Package(
        name=re.sub(r"[-_.]+", "-", match["name"]).lower(), version=version, exact=exact, member=unquote(member)
    )


def _escapes(path: str) -> bool:
    normal = posixpath.normpath(path)
    return not path.startswith("/") and (normal == ".." or normal.startswith("../"))


def _source(
    role: Role, path: tuple[str | int, ...], uri: str, sha256: str | None, sizes: Mapping[str, int]
) -> SourceFacts:
    links = _links(uri)
    local = bool(links) and all(link.scheme == "file" for link in links)
    package = _package(uri, links)
    return SourceFacts(
        role=role,
        path=path,
        uri=_without_credentials(uri),
        well_formed=bool(links),
        links=links,
        local=local,
        absolute=any(link.scheme == "file" and link.path.startswith(("/", "~")) for link in links),
        escapes=any(link.scheme == "file" and _escapes(link.path) for link in links)
        or (package is not None and _escapes(package.member)),
        wheel=package,
        sha256=sha256,
        size_bytes=sizes.get(uri),
    )


def _index(url: str) -> Index:
    if url == DEFAULT:
        return Index(url=url, scheme="default", host=None)
    links = _links(url)
    if not links:
        return Index(url=_without_credentials(url), scheme="", host=None)
    return Index(url=_without_credentials(url), scheme=links[0].scheme, host=links[0].host)


def _sources(spec: EngineSpec, sizes: Mapping[str, int]) -> tuple[SourceFacts, ...]:
    found = [_source("model", ("model", "source"), spec.model.source, spec.model.sha256, sizes)]
    if spec.accuracy is not None and spec.accuracy.samples != "random":
        found.append(_source("samples", ("accuracy", "samples"), spec.accuracy.samples, None, sizes))
    calibration = spec.precision.calibration
    if calibration is not None and calibration.source != "random":
        found.append(_source("calibration", ("precision", "calibration", "source"), calibration.source, None, sizes))
    for index, plugin in enumerate(spec.builder.plugins):
        if plugin.library is not None:
            path = ("builder", "plugins", index, "library")
            found.append(_source("plugin", path, plugin.library, plugin.sha256, sizes))
    return tuple(found)


def source_input(
    spec: EngineSpec,
    *,
    environment: str,
    document: Mapping[str, Any] | None = None,
    indexes: Sequence[str] = (),
    sizes: Mapping[str, int] | None = None,
) -> SourceInput:
    """Build the document of the stage ``source``. Opens nothing.

    Args:
        spec: the spec.
        environment: whose rules hold.
        document: ``engine.yaml`` as written; by default what the spec sets.
        indexes: URLs of the package indexes that pip would ask, of its own settings; needed for ``pypi:`` sources.
        sizes: URI -> bytes, where they are known without fetching (a local file's size).
    """
    written = spec.model_dump(mode="json", exclude_unset=True) if document is None else document
    return SourceInput(
        environment=environment,
        engine=spec.name,
        tier=spec.tier,
        document=withhold(dict(written), secret_fields(written)),
        facts=SourcesFacts(
            sources=_sources(spec, sizes or {}),
            indexes=tuple(_index(url) for url in indexes),
            plugins=tuple(
                PluginFacts(
                    path=("builder", "plugins", index), name=plugin.name, library=plugin.library, sha256=plugin.sha256
                )
                for index, plugin in enumerate(spec.builder.plugins)
            ),
        ),
    )
