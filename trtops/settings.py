"""Settings of the tool: one declaration gives flag, environment variable and key in ``trtops.toml``.

The order, strongest first: flag, environment (``TRTOPS_<NAME>``), file, default. Every value knows its source;
``trtops settings show`` prints both.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from trtops.errors import InputError, Location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_settings import PydanticBaseSettingsSource

ROOT_FILE = "trtops.toml"
PREFIX = "TRTOPS_"


class Settings(BaseSettings):
    """Every setting of the tool.

    Attributes:
        home: state: store, file registry, keys, caches. Relative paths are relative to the repository's root.
        environment: whose enforcement levels, overlays and channels count.
        store: where artifacts are: a path or any URL that fsspec opens. Default: ``<home>/store``.
        registry: ``file:PATH`` (default: ``file:<home>/registry``), or ``nacos://HOST:PORT``, ``nacos+tls://HOST:PORT``.
        nacos_user: who to log in as.
        nacos_password: the user's password. Prefer a file: environments of processes are easily seen.
        nacos_password_file: file that holds it.
        nacos_ca: PEM file of the authorities that a Nacos with TLS is trusted by.
        engine: what evaluates policies: ``auto`` takes OPA when it is there.
        opa_url: an OPA server that runs already.
        opa_token: its bearer token.
        opa_ca: its certificate authority's file.
        policies_from: git revision that policies, data, levels and waivers are read from, by every verb that judges;
            without it, the working tree, where no waiver counts as merged.
        build_timeout: seconds until a build is ended.
        build_memory: bytes of address space a build may take; 0: no limit.
        expires: days until a channel pointer expires if nobody refreshes it; 0: never.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    home: Path = Path(".trtops")
    environment: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")] = "local"
    store: str | None = None
    registry: str | None = None
    nacos_user: str | None = None
    nacos_password: str | None = Field(default=None, repr=False)
    nacos_password_file: Path | None = None
    nacos_ca: Path | None = None
    engine: Literal["auto", "opa", "embedded"] = "auto"
    opa_url: str | None = None
    opa_token: str | None = Field(default=None, repr=False)
    opa_ca: Path | None = None
    policies_from: str | None = None
    build_timeout: Annotated[float, Field(gt=0, le=86400)] = 3600.0
    build_memory: Annotated[int, Field(ge=0)] = 0
    expires: Annotated[int, Field(ge=0, le=3650)] = 0

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what :func:`resolve` merged and nothing else."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


SECRET = frozenset({"nacos_password", "opa_token"})


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings with their sources.

    Attributes:
        root: the repository's root: the folder of ``trtops.toml``.
        settings: the values.
        sources: field name -> ``flag --x``, ``environment TRTOPS_X``, ``file trtops.toml`` or ``default``.
    """

    root: Path
    settings: Settings
    sources: Mapping[str, str]

    @property
    def home(self) -> Path:
        """Where state is kept, absolute."""
        return self.root / self.settings.home.expanduser()

    @property
    def store(self) -> str:
        """Where artifacts are: an absolute path, or a URL as it was given."""
        return self._place(self.settings.store, self.home / "store")

    @property
    def registry(self) -> str:
        """The registry's URL."""
        given = self.settings.registry
        if given is None:
            return f"file:{self.home / 'registry'}"
        return f"file:{self._place(given[5:], self.home)}" if given.startswith("file:") else given

    def _place(self, given: str | None, default: Path) -> str:
        if given is None:
            return str(default)
        return given if "://" in given else str(self.root / Path(given).expanduser())

    def rows(self) -> tuple[tuple[str, str, str], ...]:
        """Name, value and source of every setting, in their order; secrets are masked."""
        values = self.settings.model_dump(mode="json")
        shown = {name: "(set)" if name in SECRET and value else value for name, value in values.items()}
        effective = {"home": str(self.home), "store": self.store, "registry": self.registry}
        return tuple(
            (name, str(effective.get(name, "" if value is None else value)), self.sources[name])
            for name, value in shown.items()
        )


def find_root(start: Path) -> Path:
    """The nearest folder upward that holds ``trtops.toml``.

    Raises:
        InputError: there is none; a repository without policies is never "allowed" (design §3).
    """
    here = start.absolute()
    for folder in (here, *here.parents):
        if (folder / ROOT_FILE).is_file():
            return folder
    raise InputError(
        f"no {ROOT_FILE} in {here} or any folder above it",
        where=str(here),
        fix=f"run trtops inside a repository of engines; an empty {ROOT_FILE} beside engines/, policies/ and "
        "governance/ marks its root",
    )


def resolve(root: Path, flags: Mapping[str, Any]) -> Resolved:
    """Merge the sources.

    Args:
        root: the repository's root.
        flags: what the command line gave; None stands for "not given".

    Raises:
        InputError: a value or key is not allowed; names its source.
    """
    path = root / ROOT_FILE
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    layers = {
        "file": _read_file(path, str(path)),
        "environment": EnvSettingsSource(Settings)(),
        "flag": {name: value for name, value in flags.items() if value is not None},
    }
    for layer, values in layers.items():
        merged.update(values)
        sources.update({name: _label(layer, name) for name in values})
    return _resolved(root, merged, sources)


def with_file(resolved: Resolved, content: bytes, label: str) -> Resolved:
    """The same flags and environment over another ``trtops.toml``, such as that of a git revision.

    Args:
        resolved: what was merged with the file that stands there.
        content: the other file.
        label: what messages call it.

    Raises:
        InputError: a value or key of it is not allowed.
    """
    with tempfile.TemporaryDirectory(prefix="trtops-settings-") as folder:
        path = Path(folder) / ROOT_FILE
        path.write_bytes(content)
        merged = _read_file(path, label)
    sources = dict.fromkeys(merged, f"file {label}")
    for name, source in resolved.sources.items():
        if source.startswith(("flag", "environment")):
            merged[name] = getattr(resolved.settings, name)
            sources[name] = source
    return _resolved(resolved.root, merged, sources)


def _resolved(root: Path, merged: Mapping[str, Any], sources: Mapping[str, str]) -> Resolved:
    sources = {**dict.fromkeys(Settings.model_fields, "default"), **sources}
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        raise _explain(error, sources) from None
    return Resolved(root, settings, sources)


def _label(layer: str, name: str) -> str:
    if layer == "flag":
        return f"flag --{name.replace('_', '-')}"
    return f"environment {PREFIX}{name.upper()}" if layer == "environment" else f"file {ROOT_FILE}"


def _read_file(path: Path, label: str) -> dict[str, Any]:
    try:
        return TomlConfigSettingsSource(Settings, toml_file=path)()
    except (ValueError, OSError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise InputError(f"{ROOT_FILE} cannot be read: {error}", where=Location(label), fix="correct it") from None


def _explain(error: ValidationError, sources: Mapping[str, str]) -> InputError:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "?"
    if first["type"] == "extra_forbidden":
        return InputError(
            f"unknown setting {name!r}",
            where=sources.get(name, ROOT_FILE),
            fix=f"settings are: {', '.join(Settings.model_fields)}",
        )
    found = "" if name in SECRET else f" (found {first['input']!r})"
    return InputError(
        f"{name}: {first['msg']}{found}",
        where=sources.get(name),
        fix="`trtops settings show` lists each setting with its source",
    )
