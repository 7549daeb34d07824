"""One file of a wheel from a package index. pip downloads the wheel; nothing of it is installed or run."""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
import tempfile
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.errors import FetchFailed, InputError, Unavailable
from trtops.interpreter import module_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO

_PYPI = re.compile(
    r"pypi://(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)/(?P<member>.+)",
    re.DOTALL,
)
_FORM = "write pypi://NAME==VERSION/path/in/wheel, with an exact version"
_CHUNK = 1 << 20
_LOG_BYTES = 64 << 10
_LOG_LINES = 8
TIMEOUT_SECONDS = 600.0
PIP: tuple[str, ...] = tuple(module_command("pip"))


@dataclass(frozen=True, slots=True)
class Member:
    """A file of a wheel."""

    uri: str
    name: str
    version: str
    path: str

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.name}=={self.version}"


def parse_pypi(uri: str) -> Member:
    """Read ``pypi://NAME==VERSION/path/in/wheel``.

    Raises:
        InputError: it has another form, or its path leads out of the wheel.
    """
    match = _PYPI.fullmatch(uri)
    if match is None:
        raise InputError(f"{uri!r} is no address of a file in a wheel", fix=_FORM)
    path = match["member"]
    if any(part in ("", ".", "..") for part in path.split("/")) or "\\" in path or not path.isprintable():
        raise InputError(f"{path!r} is no path inside a wheel", where=uri, fix=_FORM)
    return Member(uri, match["name"], match["version"], path)


def download_member(
    member: Member,
    target: Path,
    *,
    limit: int,
    on_progress: Callable[[str, int, int], None],
    pip: Sequence[str] = PIP,
    timeout: float = TIMEOUT_SECONDS,
) -> None:
    """Download a wheel and write one of its files.

    Args:
        member: which file.
        target: where it is written to.
        limit: largest size in bytes, of the file itself.
        on_progress: told what goes on.
        pip: the command that runs pip. The user's settings (index, proxy, certificates, cache) hold.
        timeout: seconds that pip may take.

    Raises:
        FetchFailed: pip failed (its last words are in the message) or took too long; the wheel is damaged, or has no
            such file, or the file is larger than the limit.
        Unavailable: this interpreter has no pip.
        OSError: the local disk failed.
    """
    with tempfile.TemporaryDirectory(prefix="trtops-wheel-") as folder:
        on_progress(f"asking pip for {member.requirement}", 0, 0)
        _run_pip(member, Path(folder), pip, timeout)
        wheels = sorted(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise FetchFailed(
                f"pip left {len(wheels)} wheels instead of one", where=member.uri, fix="check your pip configuration"
            )
        _extract(wheels[0], member, target, limit, on_progress)


def _run_pip(member: Member, folder: Path, pip: Sequence[str], timeout: float) -> None:
    command = [
        *pip,
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--ignore-requires-python",
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar=off",
        "-d",
        str(folder),
        member.requirement,
    ]
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise Unavailable(f"pip cannot be started: {error.strerror}", where=pip[0], fix=_NO_PIP) from error
        try:
            code = _wait(process, timeout)
        finally:
            _end(process)
        said = _tail(log)
    if code is None:
        raise FetchFailed(
            f"pip took longer than {timeout:g} s for {member.requirement}", where=member.uri, fix=_index_fix(said)
        )
    if code and re.search(r"No module named '?pip", said):
        raise Unavailable("this Python has no pip, which fetches pypi:// models", where=pip[0], fix=_NO_PIP)
    if code:
        raise FetchFailed(
            f"pip could not download {member.requirement}: {_reason(said)}", where=member.uri, fix=_index_fix(said)
        )


_NO_PIP = "install it into this environment: `python -m ensurepip`, or `uv pip install pip`"


def _reason(said: str) -> str:
    """The last of pip's errors, which sums the others up; its last line where it says none; its retries left out."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    told = [*(line for line in lines if not line.startswith("WARNING: ")), *errors]
    away = "no connection to the index; " if _BROKEN in said else ""
    return away + (told[-1] if told else "it does not say why")


_BROKEN = "connection broken by"


def _index_fix(said: str) -> str:
    if "No matching distribution" in said and _BROKEN not in said:
        return (
            "check the name and the version in `model.source`, that your index has a wheel of it, and that pip may ask "
            "an index (`pip config list`; PIP_NO_INDEX forbids it)"
        )
    return "check the network and your pip settings (`pip config list`), and try again"


def _wait(process: subprocess.Popen[bytes], timeout: float) -> int | None:
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop pip and what it started, if it still runs."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tail(log: IO[bytes]) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _LOG_BYTES))
    lines = [line.rstrip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    # An index may be addressed with credentials.
    return re.sub(r"://[^/\s@]+@", "://…@", "\n".join(lines[-_LOG_LINES:]))


def _extract(
    wheel: Path, member: Member, target: Path, limit: int, on_progress: Callable[[str, int, int], None]
) -> None:
    """Write one file of a wheel. Its name inside the wheel is never used as a path here."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = _find(archive, member)
            if info.file_size > limit:
                raise _too_large(member, limit)
            done = 0
            with archive.open(info) as stream, target.open("wb") as file:
                # zipfile reads no more than the header says, and then compares checksums: a header that lies is found.
                while chunk := stream.read(_CHUNK):
                    done += len(chunk)
                    file.write(chunk)
                    on_progress("unpacking", done, info.file_size)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise FetchFailed(
            f"the wheel {wheel.name} is damaged: {error}",
            where=member.uri,
            fix="clear pip's cache (`pip cache purge`) and try again",
        ) from None


def _find(archive: zipfile.ZipFile, member: Member) -> zipfile.ZipInfo:
    try:
        info = archive.getinfo(member.path)
    except KeyError:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        models = [name for name in names if name.endswith(".onnx")]
        near = difflib.get_close_matches(member.path, models or names, n=3, cutoff=0.3) or models[:3]
        listed = f"; nearest: {', '.join(near)}" if near else ""
        raise FetchFailed(
            f"the wheel of {member.requirement} has no file {member.path!r}",
            where=member.uri,
            fix=f"check the path in `model.source`{listed}",
        ) from None
    if info.is_dir():
        raise FetchFailed(f"{member.path!r} is a folder of the wheel", where=member.uri, fix="give the path of a file")
    return info


def _too_large(member: Member, limit: int) -> FetchFailed:
    return FetchFailed(
        f"the file {member.path!r} has more than {limit} bytes", where=member.uri, fix="ONNX files end at 2 GiB"
    )
