"""Reports of a check into files: several formats at once, each whole or not there."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from trtops.errors import InputError, StorageError, TrtopsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.report.checks import CheckReport
    from trtops.report.text import Style

Format = Literal["text", "json", "sarif", "junit", "github", "markdown"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True, slots=True)
class Output:
    """A file that a report goes to."""

    format: Format
    path: Path


def parse_outputs(words: Sequence[str]) -> tuple[Output, ...]:
    """Read ``FORMAT=FILE`` options.

    Raises:
        InputError: an unknown format, no file, a folder, or one file twice.
    """
    outputs: list[Output] = []
    for word in words:
        name, sign, file = word.partition("=")
        form = next((known for known in FORMATS if known == name), None)
        if form is None:
            near = get_close_matches(name, FORMATS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InputError(
                f"unknown format {name!r}", where="--output", fix=f"{hint}formats are {', '.join(FORMATS)}"
            )
        if not sign or not file or "\0" in file:
            raise InputError(f"{word!r} names no file", where="--output", fix=f"write --output {name}=FILE")
        path = Path(file)
        if path.is_dir():
            raise InputError(f"{file} is a folder", where="--output", fix=f"write --output {name}={file}/report")
        if any(_same(path, other.path) for other in outputs):
            raise InputError(f"two reports would go to {file}", where="--output", fix="give each a file of its own")
        outputs.append(Output(form, path))
    return tuple(outputs)


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def render(report: CheckReport, form: Format, style: Style | None = None) -> str:
    """A report as one document of a format; with what could not be decided, in each of them.

    Args:
        report: what was found.
        form: the format.
        style: of the format ``text``; plain by default.
    """
    if form == "json":
        from trtops.report import jsonout

        return jsonout.check(report)
    if form == "sarif":
        from trtops.report import sarif

        return sarif.check(report)
    if form == "junit":
        from trtops.report import junit

        return junit.check(report)
    if form == "github":
        from trtops.report import github

        return github.check(report)
    if form == "markdown":
        from trtops.report import markdown

        return markdown.check(report)
    from trtops.report import text

    return text.check(report, style or text.PLAIN)


def write_outputs(report: CheckReport, outputs: Sequence[Output]) -> tuple[TrtopsError, ...]:
    """Write every report. One that cannot be written hinders no other; what stood in its file is still there.

    Returns:
        Why files could not be written.
    """
    found = (_failure(output.path, render(report, output.format)) for output in outputs)
    return tuple(error for error in found if error is not None)


def _failure(path: Path, text: str) -> TrtopsError | None:
    """Write a file; why it could not be, or None."""
    try:
        _write(path, text.encode("utf-8", "backslashreplace"))
    except StorageError as error:
        return error
    return None


def _write(path: Path, body: bytes) -> None:
    """Replace a file in one step; a pipe or a device is written to.

    Raises:
        StorageError: it cannot be written.
    """
    from trtops.durable import write_durably

    try:
        if path.exists() and not path.is_file():
            path.write_bytes(body)
        else:
            write_durably(path.resolve(), [body])
    except (OSError, StorageError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        reason = (cause.strerror if isinstance(cause, OSError) else None) or str(error)
        raise StorageError(
            f"the report cannot be written: {reason}", where=str(path), fix="free space there, or name another file"
        ) from error
