"""Plugins: TensorRT's own by name, and libraries by path and digest.

Loading a library runs its code. So its bytes are read once, held against the digest that the spec (or the signed
sidecar) names, and those very bytes are loaded from memory: nobody can change the file between the look and the load.
A library is one file, therefore: what lies beside it is covered by no digest and is not looked for.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trtops.digest import Digest
from trtops.errors import BuildFailed, IntegrityError, NotLoadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trtops.backend.port import Sidecar
    from trtops.spec.engine import Plugin

LIBRARIES = "plugin-libraries"
"""Key of the sidecar's ``extra`` whose value lists the digests of plugin libraries, separated by blanks."""

MAX_LIBRARY_BYTES = 1 << 30
"""Of one plugin library: no more is fetched for it."""

# What a library exports whose plugins the registry has to be told of; others register theirs when they are loaded.
_ENTRIES = ("getPluginCreators", "getCreators")


class Library(NamedTuple):
    """A plugin library: where it is, and what its bytes have to be."""

    path: Path
    digest: Digest


# A process loads a library once: a second copy would register the same plugins again.
_LOADED: dict[Digest, Any] = {}


def library_digests(plugins: Iterable[Plugin]) -> dict[str, str]:
    """What a sidecar's ``extra`` says of a spec's plugin libraries; nothing where there are none."""
    found = sorted({f"sha256:{plugin.sha256}" for plugin in plugins if plugin.library and plugin.sha256})
    return {LIBRARIES: " ".join(found)} if found else {}


def libraries_of(extra: Mapping[str, str]) -> tuple[Digest, ...]:
    """Digests of the plugin libraries that a sidecar's ``extra`` names."""
    return tuple(Digest.parse(text) for text in extra.get(LIBRARIES, "").split())


class _Keeps(Protocol):
    def path(self, digest: Digest, *, size: int | None = None) -> Path: ...


def bring_libraries(sidecar: Sidecar, store: _Keeps) -> None:
    """Have the plugin libraries that an engine needs on this machine, where loading looks for them: beside the engine.

    Args:
        sidecar: of the engine.
        store: where engines are; fetches what is elsewhere, and verifies it.

    Raises:
        FetchFailed, IntegrityError, StorageError: of the store.
    """
    for digest in libraries_of(sidecar.extra):
        store.path(digest, size=MAX_LIBRARY_BYTES)


def load_for_build(trt: Any, log: Any, plugins: Sequence[Plugin]) -> None:  # noqa: ANN401 - TensorRT has no types
    """Make a spec's plugins known to TensorRT.

    Args:
        trt: the library's module.
        log: its logger.
        plugins: of the spec; paths of libraries are absolute.

    Raises:
        BuildFailed: TensorRT does not know a plugin's name, or a library cannot be loaded; names it.
        IntegrityError: a library's bytes are not those of its digest.
    """
    trt.init_libnvinfer_plugins(log, "")
    for plugin in plugins:
        if plugin.library is None:
            continue
        path = Path(plugin.library)
        if plugin.sha256 is None:
            what = f"the plugin library {path.name} has no digest in the spec"
            raise BuildFailed(
                what, where="builder.plugins", fix="write its sha256: what is loaded is what was reviewed"
            )
        if reason := _load(trt, Library(path, Digest("sha256", plugin.sha256))):
            raise BuildFailed(reason, where=str(path), fix=_FIX, log="\n".join(log.errors))
    known = _creators(trt)
    for plugin in plugins:
        if plugin.name is not None and plugin.name not in known:
            what = f"TensorRT {trt.__version__} brings no plugin {plugin.name!r}"
            if plugin.library is not None:
                what = f"the library {plugin.library!r} brings no plugin {plugin.name!r}"
            fix = f"there are {len(known)}, among them {_some(known)}"
            raise BuildFailed(what, where="builder.plugins", fix=fix)


def load_for_session(trt: Any, log: Any, artifact: Path, sidecar: Sidecar) -> None:  # noqa: ANN401 - untyped
    """Make the plugins known that an engine needs before it is deserialised.

    Libraries lie where the engine lies: both are files of one content-addressed folder, ``ab/abcdef…``.

    Raises:
        NotLoadable: a library is not there or cannot be loaded; names it.
        IntegrityError: its bytes are not those of its digest.
    """
    trt.init_libnvinfer_plugins(log, "")
    for digest in libraries_of(sidecar.extra):
        path = artifact.parent.parent / digest.value[:2] / digest.value
        if digest not in _LOADED and not path.is_file():
            what = f"the engine needs the plugin library {digest.short}, which the store does not have"
            raise NotLoadable(what, where=str(artifact), fix="copy it from the store of the build, or build it again")
        if reason := _load(trt, Library(path, digest)):
            raise NotLoadable(reason, where=str(path), fix=_FIX)


_FIX = "a plugin has to be one shared library, built for this TensorRT and this machine, with all that it needs linked"


def _load(trt: Any, library: Library) -> str | None:  # noqa: ANN401 - TensorRT has no types
    """Load a library, if it is not loaded yet. Returns why it could not be.

    Raises:
        IntegrityError: its bytes are not those of its digest.
    """
    if library.digest in _LOADED:
        return None
    try:
        data = library.path.read_bytes()
    except OSError as error:
        return f"the plugin library cannot be read: {error.strerror}"
    if (found := Digest.of_bytes(data)) != library.digest:
        what = f"the plugin library is not the one that was reviewed: expected {library.digest}, found {found}"
        raise IntegrityError(what, where=str(library.path), fix="bring the file back, or write its new sha256")
    descriptor = os.memfd_create(library.path.name)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        place = f"/proc/self/fd/{descriptor}"
        try:
            loaded = ctypes.CDLL(place)
        except OSError as error:
            return f"the plugin library cannot be loaded: {str(error).replace(place, library.path.name)}"
        told = any(hasattr(loaded, name) for name in _ENTRIES)
        if told and trt.get_plugin_registry().load_library(place) is None:
            return "TensorRT does not take the plugin library: one of its plugins is known already, or none is there"
        _LOADED[library.digest] = loaded
    finally:
        # The descriptor of a library that is loaded stays open: its number is the library's name to the loader, which
        # would take the next one of that name for the same.
        if library.digest not in _LOADED:
            os.close(descriptor)
    return None


def _creators(trt: Any) -> set[str]:  # noqa: ANN401 - TensorRT has no types
    registry = trt.get_plugin_registry()
    creators = getattr(registry, "all_creators", None) or registry.plugin_creator_list
    return {creator.name for creator in creators}


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:8]) or "none"
