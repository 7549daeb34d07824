"""Which package indexes pip would ask, read off pip's own settings without running it.

pip reads, strongest first: environment variables, the file that ``PIP_CONFIG_FILE`` names, the virtual environment's
``pip.conf``, the user's, the host's (https://pip.pypa.io/en/stable/topics/configuration/).
"""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT = "default:"
"""Stands for the index that pip asks when no setting names one."""

_SECTIONS = ("global", "download")


def package_indexes(environ: Mapping[str, str], *, files: Iterable[Path] | None = None) -> tuple[str, ...]:
    """URLs of the indexes that ``pip download`` asks, the main one first; :data:`DEFAULT` where no setting names one.

    Folders of ``find-links`` count too, since pip takes wheels from them.

    Args:
        environ: of the process.
        files: settings files, weakest first; None: those that pip reads here.
    """
    values: dict[str, list[str]] = {}
    if environ.get("PIP_NO_INDEX", "").lower() not in ("1", "true", "yes", "on"):
        values["index-url"] = [DEFAULT]
    for path in _files(environ) if files is None else files:
        values.update(_read(path))
    for key in ("index-url", "extra-index-url", "find-links"):
        given = environ.get(f"PIP_{key.upper().replace('-', '_')}")
        if given:
            values[key] = given.split()
    found = [url for key in ("index-url", "extra-index-url", "find-links") for url in values.get(key, ())]
    return tuple(dict.fromkeys(found))


def _files(environ: Mapping[str, str]) -> list[Path]:
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path.home()
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    host = [Path(folder) / "pip" / "pip.conf" for folder in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")]
    places = [*host, Path("/etc/pip.conf"), home / ".pip" / "pip.conf", config / "pip" / "pip.conf"]
    return [*places, Path(sys.prefix) / "pip.conf", *([Path(named)] if named else [])]


def _read(path: Path) -> dict[str, list[str]]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}  # pip itself will complain when it is asked
    return {
        key: parser.get(section, key).split()
        for section in _SECTIONS
        if parser.has_section(section)
        for key in ("index-url", "extra-index-url", "find-links")
        if parser.has_option(section, key)
    }
