"""Turns errors into messages and exit codes: never a traceback for a user's mistake."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, ParamSpec

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.errors import TrtopsError

P = ParamSpec("P")

INTERRUPTED = 130


def guarded(command: Callable[P, int | None]) -> Callable[P, None]:
    """Wrap a command: its result is the exit code, a TrtopsError becomes a message on standard error."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from trtops.errors import TrtopsError

        try:
            code = command(*args, **kwargs) or 0
            sys.stdout.flush()
        except TrtopsError as error:
            code = complain(error)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            code = INTERRUPTED
        except BrokenPipeError:
            # The reader of our output went away (`trtops … | head`): nothing is wrong, and nothing more can be said.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        raise typer.Exit(code)

    return run


def complain(error: TrtopsError) -> int:
    """Write an error to standard error.

    Returns:
        its exit code.
    """
    from trtops.report import text

    sys.stdout.flush()
    sys.stderr.write(text.error(error, text.Style.of(sys.stderr, os.environ)))
    return error.exit_code


def say(report: str) -> None:
    """Write a report to standard output."""
    sys.stdout.write(report)
    sys.stdout.flush()


def passed_over(error: TrtopsError, what: str) -> None:
    """Tell on standard error what a command did without, and what that means; the command goes on.

    Args:
        error: why.
        what: is done about it, in a few words.
    """
    from trtops.report.escape import visible

    sys.stdout.flush()
    where = f"{error.where}: " if error.where else ""
    sys.stderr.write(f"{visible(f'{where}{error.what}')}: {what}\n")
