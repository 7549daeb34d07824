"""Turns errors into messages and exit codes: never a traceback for a user's mistake."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, ParamSpec

import typer

from trtops.errors import BuildFailed, InputError, TrtopsError

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")

INTERRUPTED = 130
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if code not in (0x09, 0x0A)}


def printable(text: str) -> str:
    """Escape control characters, which a file's content could use to rewrite the terminal."""
    return text.translate(_CONTROL)


def describe(error: TrtopsError) -> str:
    """Lay an error out for people: what, where, what to do next."""
    problems = error.problems if isinstance(error, InputError) else ()
    if problems:
        lines = [f"{problem}" + (f"\n    {problem.fix}" if problem.fix else "") for problem in problems]
        lines.append(f"error: {error.what}")
    else:
        lines = [f"error: {error.what}"]
        if error.where:
            lines.append(f"  where: {error.where}")
    if isinstance(error, BuildFailed) and error.log:
        lines += ["  the builder's last words:", *(f"    {line}" for line in error.log.splitlines()[-12:])]
    if error.fix:
        lines.append(f"  next: {error.fix}")
    return printable("\n".join(lines))


def guarded(command: Callable[P, int | None]) -> Callable[P, None]:
    """Wrap a command: its result is the exit code, a TrtopsError becomes a message on standard error."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs) or 0
            sys.stdout.flush()
        except TrtopsError as error:
            typer.echo(describe(error), err=True)
            code = error.exit_code
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            code = INTERRUPTED
        except BrokenPipeError:
            # The reader of our output went away (`trtops … | head`): nothing is wrong, and nothing more can be said.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        raise typer.Exit(code)

    return run
