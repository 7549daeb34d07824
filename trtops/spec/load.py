"""From the files of an engine's folder to its spec and its runtime config, every problem told at once."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from trtops.document import Document, invalid, load_document
from trtops.errors import InputError, Location, Problem
from trtops.spec.engine import EngineSpec, RuntimeConfig
from trtops.spec.problems import closest, problems_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trtops.digest import Value
    from trtops.spec.problems import Source

    Path_ = Sequence[str | int]

ENGINES = "engines"
ENGINE_FILE = "engine.yaml"
RUNTIME_FILE = "runtime.yaml"

_ENVIRONMENT = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_Model = TypeVar("_Model", bound="Value")


@dataclass(frozen=True)
class LoadedEngine:
    """A spec and the document that it was read from."""

    spec: EngineSpec
    document: Document

    def locate(self, path: Path_) -> Location:
        """Position of the value at a path of the spec (a fact's or a finding's)."""
        return self.document.locate(path)


@dataclass(frozen=True)
class LoadedRuntime:
    """A runtime config, the base document, and the environment's overlay if there is one.

    Attributes:
        config: the merged config.
        environment: whose overlay was looked for.
        base: ``runtime.yaml``.
        overlay: ``runtime.<environment>.yaml``; None where that file does not exist.
        data: the merged values.
    """

    config: RuntimeConfig
    environment: str
    base: Document
    overlay: Document | None
    data: dict[str, Any] = field(repr=False)

    @property
    def documents(self) -> tuple[Document, ...]:
        """The documents that were read, base first."""
        return (self.base, self.overlay) if self.overlay else (self.base,)

    def locate(self, path: Path_) -> Location:
        """Position of the value at a path, in the overlay where it came from there."""
        return _Merged(self.base, self.overlay, self.data).locate(path)


@dataclass(frozen=True)
class _Merged:
    """A base with an overlay, as one source of positions."""

    base: Document
    overlay: Document | None
    data: dict[str, Any]

    def _document(self, path: Path_) -> Document:
        if self.overlay is not None and self.overlay.depth(path) >= max(self.base.depth(path), 1):
            return self.overlay
        return self.base

    def locate(self, path: Path_) -> Location:
        return self._document(path).locate(path)

    def locate_key(self, path: Path_) -> Location:
        return self._document(path).locate_key(path)

    def raw(self, path: Path_) -> str | None:
        return self._document(path).raw(path)


def engine_names(root: Path) -> tuple[str, ...]:
    """Names of the engines under a repository's root, sorted; a spec that is a link to nowhere is one that is wrong."""
    folders = (root / ENGINES).glob("*")
    return tuple(sorted(path.name for path in folders if os.path.lexists(path / ENGINE_FILE)))


def find_engine(root: Path, name_or_path: str) -> Path:
    """The folder of an engine, by its name (``ppocr-cls``), its folder or its ``engine.yaml``.

    Args:
        root: the repository's root, where ``engines/`` stands.
        name_or_path: what the user wrote. A path is taken relative to the working directory, then to the root.

    Raises:
        InputError: there is no such engine; those that exist are listed, the closest first.
    """
    if "\0" not in name_or_path and name_or_path.strip():
        given = Path(name_or_path)
        for path in (given, root / given, root / ENGINES / given):
            if path.name == ENGINE_FILE and path.is_file():
                return path.parent
            if (path / ENGINE_FILE).is_file():
                return path
    wanted = Path(name_or_path).name or name_or_path
    names = closest(wanted, engine_names(root))
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")  # noqa: PLR2004
    fix = (
        f"engines here: {shown}"
        if names
        else f"there are none here yet: `trtops new {wanted} --model M.onnx` writes one"
    )
    raise InputError(f"there is no engine {name_or_path!r}", where=str(root / ENGINES), fix=fix)


def load_engine(folder_or_file: Path, *, name: str | None = None) -> LoadedEngine:
    """Read an engine's spec.

    Args:
        folder_or_file: the engine's folder, or the YAML file itself.
        name: what errors call the file; by default its path.

    Raises:
        InputError: the file is missing or wrong; ``problems`` has every problem with its position.
    """
    path = folder_or_file / ENGINE_FILE if folder_or_file.is_dir() else folder_or_file
    document = load_document(path, name=name)
    spec = _validated(EngineSpec, document)
    if problems := list(_repeats(spec, document)):
        raise invalid(document.file, problems)
    return LoadedEngine(spec, document)


def load_runtime(folder: Path, environment: str) -> LoadedRuntime:
    """Read an engine's runtime config with the overlay of an environment merged over it.

    Mappings are merged key by key; anything else of the overlay replaces what the base has, lists as a whole; a
    ``null`` in the overlay removes the base's key. ``apiVersion`` and ``kind`` may be left out of an overlay.

    Args:
        folder: the engine's folder.
        environment: e.g. ``prod``: ``runtime.prod.yaml`` is merged if it exists.

    Raises:
        InputError: no ``runtime.yaml``, or it or the overlay is wrong; ``problems`` name the file each came from.
    """
    if not _ENVIRONMENT.fullmatch(environment):
        raise InputError(
            f"{environment!r} is not the name of an environment",
            fix="write lower-case letters, digits and dashes, such as prod",
        )
    base = load_document(folder / RUNTIME_FILE)
    path = folder / f"runtime.{environment}.yaml"
    overlay = load_document(path) if path.exists() else None
    data = merge(base.data, overlay.data) if overlay else base.data
    config = _validated(RuntimeConfig, _Merged(base, overlay, data), base.file)
    return LoadedRuntime(config, environment, base, overlay, data)


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Merge an overlay over a base into a new mapping; neither is changed.

    Laws: ``merge(a, {}) == a`` and ``merge(a, a) == a`` for an ``a`` without null; every value of the overlay that is
    neither a mapping nor null is in the result at its path.
    """
    merged = dict(base)
    for key, value in overlay.items():
        below = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = merge(below if isinstance(below, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def _validated(model: type[_Model], source: Source, file: str | None = None) -> _Model:
    """Validate strictly, as JSON: ``"32"`` is no number and ``yes`` is no truth value, but a list is a tuple."""
    try:
        return model.model_validate_json(json.dumps(source.data), strict=True)
    except ValidationError as error:
        raise invalid(file or source.locate(()).file, problems_of(error, model, source)) from None


def _repeats(spec: EngineSpec, document: Document) -> Iterable[Problem]:
    """Ids that must be unique within a spec and are not."""
    for kind, names, fix in (
        ("targets", [target.id for target in spec.targets], "change its backend, version or device, or remove it"),
        ("profiles", [profile.name for profile in spec.profiles], "give each profile a `name:` of its own"),
    ):
        for index, name in enumerate(names):
            first = names.index(name)
            if first != index:
                line = document.locate((kind, first)).line
                message = f"`{kind}[{index}]` is {name!r} again, as `{kind}[{first}]` in line {line}"
                yield Problem("spec.repeated", message, document.locate((kind, index)), fix)
