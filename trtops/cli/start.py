"""Opens the workspace of a command, with its progress on standard error."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtops.report.text import Style
    from trtops.workflow.workspace import Workspace


@contextmanager
def workspace(flags: Mapping[str, object] | None = None, *, quiet: bool = False) -> Iterator[Workspace]:
    """The workspace of the working directory.

    Args:
        flags: settings that the command line gave; None stands for "not given".
        quiet: show no progress.

    Raises:
        InputError: no repository, or a setting that is not allowed.
    """
    from trtops.workflow.workspace import open_workspace

    if quiet:
        yield open_workspace(flags)
        return
    from trtops.backend.port import Progress
    from trtops.report.progress import ProgressDisplay

    color = not os.environ.get("NO_COLOR")
    with ProgressDisplay(sys.stderr, clock=time.monotonic, color=color) as display:

        def show(stage: str, phase: str, done: int = 0, total: int = 0) -> None:
            display.step(stage, Progress(phase=phase, done=done, total=total))

        yield open_workspace(flags, progress=show)


def style() -> Style:
    """How to write to standard output."""
    from trtops.report.text import Style

    return Style.of(sys.stdout, os.environ)
