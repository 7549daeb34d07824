"""The registry that settings name, whose credentials it is used with, and ``trtops registry init nacos``."""

from __future__ import annotations

import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.errors import InputError, StorageError, TrustError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.registry.nacos.http import Credentials
    from trtops.registry.nacos.place import Place
    from trtops.registry.nacos.setup import Setup, Step
    from trtops.registry.port import Registry
    from trtops.settings import Resolved
    from trtops.workflow.workspace import Workspace

KINDS = "write file:PATH, nacos://HOST:PORT or nacos+tls://HOST:PORT"
_MAX_PASSWORD_BYTES = 4096
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def open_registry(resolved: Resolved, environment: str) -> Registry:
    """The registry of an environment. Nothing is asked of a server yet.

    Raises:
        InputError: the URL is of no known kind, or half of a login is missing.
        StorageError, TrustError: a password file cannot be read, or others may read it.
    """
    url = resolved.registry
    kind, _, rest = url.partition(":")
    if kind == "file" and rest:
        from trtops.registry.file import FileRegistry

        return FileRegistry(Path(rest), environment)
    place = nacos_place(resolved)
    from trtops.registry.nacos.registry import NacosRegistry

    return NacosRegistry(place, environment, credentials(resolved, environment), ca=nacos_ca(resolved))


def nacos_place(resolved: Resolved) -> Place:
    """The Nacos that the registry's URL names.

    Raises:
        InputError: it names none.
    """
    from trtops.registry.nacos.place import SCHEMES, parse_place

    url, where = resolved.registry, resolved.sources["registry"]
    if url.partition("://")[0] not in SCHEMES:
        shown = url if "@" not in url else f"{url.partition(':')[0]}:…"
        raise InputError(f"unknown kind of registry {shown[:200]!r}", where=where, fix=KINDS)
    return parse_place(url, where=where)


def nacos_ca(resolved: Resolved) -> Path | None:
    """The authorities' file, absolute."""
    given = resolved.settings.nacos_ca
    return resolved.root / given.expanduser() if given else None


def password_file(resolved: Resolved, user: str) -> Path:
    """Where this home keeps the password of a user that ``registry init`` made."""
    return resolved.home / "nacos" / f"{user}.password"


def credentials(resolved: Resolved, environment: str) -> Credentials | None:
    """Who to log in as: the user that settings name, else one that this home has a password of for the environment.

    Raises:
        InputError: half of a login is missing.
        StorageError, TrustError: a password file cannot be read, or others may read it.
    """
    from trtops.registry.nacos.http import Credentials
    from trtops.registry.nacos.setup import ROLES, user_name

    settings = resolved.settings
    if settings.nacos_user is not None:
        return Credentials(settings.nacos_user, _password(resolved, settings.nacos_user))
    if settings.nacos_password is not None or settings.nacos_password_file is not None:
        name = "nacos_password" if settings.nacos_password is not None else "nacos_password_file"
        raise InputError(f"{name} is set and nacos_user is not", where=resolved.sources[name], fix="set nacos_user")
    for role in ROLES:
        user = user_name(environment, role)
        path = password_file(resolved, user)
        if path.exists():
            return Credentials(user, _read(path))
    return None


def _password(resolved: Resolved, user: str) -> str:
    settings = resolved.settings
    if settings.nacos_password is not None:
        return settings.nacos_password
    if settings.nacos_password_file is not None:
        return _read(resolved.root / settings.nacos_password_file.expanduser())
    kept = password_file(resolved, user)
    if kept.exists():
        return _read(kept)
    fix = "set nacos_password_file to a file that only you can read (or TRTOPS_NACOS_PASSWORD)"
    raise InputError(f"there is no password of the user {user}", where=resolved.sources["nacos_user"], fix=fix)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            body = file.read(_MAX_PASSWORD_BYTES + 1)
        text = body.decode("utf-8").strip("\r\n")
    except OSError as error:
        raise StorageError(f"the password cannot be read: {error.strerror or error}", where=str(path)) from error
    except UnicodeDecodeError:
        raise InputError("the password is no text", where=str(path), fix="write it as UTF-8") from None
    if mode & _OTHERS:
        fix = f"chmod 600 {path}; change the password if others may have read it"
        raise TrustError(f"others than its owner may read this password (mode {mode:04o})", where=str(path), fix=fix)
    if not text or len(body) > _MAX_PASSWORD_BYTES:
        raise InputError("the file holds no password", where=str(path), fix="write the password and nothing else")
    return text


def setup_of(workspace: Workspace) -> Setup:
    """What sets the workspace's environment up, as the administrator that settings name.

    Raises:
        InputError: settings name no Nacos, or no administrator.
    """
    from trtops.registry.nacos.http import Credentials
    from trtops.registry.nacos.setup import Setup

    resolved = workspace.resolved
    if resolved.registry.startswith("file:"):
        raise InputError(
            "the registry here is a folder, no Nacos",
            where=resolved.sources["registry"],
            fix="name one: TRTOPS_REGISTRY=nacos+tls://HOST:PORT, or `registry` in trtops.toml",
        )
    place = nacos_place(resolved)
    user = resolved.settings.nacos_user
    if user is None:
        fix = "set TRTOPS_NACOS_USER and TRTOPS_NACOS_PASSWORD for this one command"
        raise InputError("setting Nacos up takes an administrator, and none is named", fix=fix)
    administrator = Credentials(user, _password(resolved, user))
    return Setup(place, workspace.environment, administrator, ca=nacos_ca(resolved))


def init_nacos(workspace: Workspace, done: Callable[[Step], None], *, dry_run: bool) -> tuple[Path, ...]:
    """Set the workspace's environment up; does only what is missing.

    Args:
        workspace: its settings name the server and the administrator.
        done: called after each step; with ``dry_run`` for each that would be done.
        dry_run: change nothing.

    Returns:
        files of passwords that were made for new users; none is shown.

    Raises:
        InputError: as for :func:`setup_of`.
        StorageError, Unavailable: the server; what was done until then stays.
    """
    from trtops.release.keys import private_file

    setup = setup_of(workspace)
    if dry_run:
        for step in setup.missing():
            done(step)
        return ()
    made: list[Path] = []

    def password(user: str) -> str:
        path = password_file(workspace.resolved, user)
        made.append(path)
        return private_file(path, lambda: secrets.token_urlsafe(24).encode()).decode().strip("\r\n")

    setup.apply(password, done)
    return tuple(made)
