"""How a module is run in a process of its own: by this interpreter, and never by what lies in the working directory.

``python -m`` looks there first, and that may be the checkout of somebody's change: a folder ``pip`` or a file
``runpy.py`` in it would be run. ``-P`` and ``PYTHONSAFEPATH`` are unknown to CPython 3.10.
"""

from __future__ import annotations

import sys
from pathlib import Path

_RUN = "import sys; sys.path[:] = {path}; import runpy; runpy.run_module({name!r}, {{}}, '__main__', True)"


def module_command(name: str, *arguments: str) -> list[str]:
    """The command that runs a module as ``python -m NAME`` does, with nothing taken from the working directory.

    This very package is found by it also where it is not installed.
    """
    own = f", {str(Path(__file__).parent.parent)!r}" if name.partition(".")[0] == __name__.partition(".")[0] else ""
    return [sys.executable, "-c", _RUN.format(path=f"[*filter(None, sys.path){own}]", name=name), *arguments]
