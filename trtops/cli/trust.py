"""Commands on the root of trust: init, show, rotate, revoke, set, sign, publish, update."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtops.cli.guard import complain, guarded, say
from trtops.cli.options import EnvironmentOption, JsonOption
from trtops.cli.start import style, workspace

if TYPE_CHECKING:
    from trtops.release.root import Root, Tier
    from trtops.workflow.revoke import Consequences
    from trtops.workflow.trust import Shown, Turned

trust_app = typer.Typer(
    help="Who may sign what: keys by role, how many have to sign, what was revoked.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class RoleName(str, Enum):
    """Roles of keys."""

    root = "root"
    builder = "builder"
    release = "release"
    channel = "channel"
    refresh = "refresh"


def register(app: typer.Typer) -> None:
    """Add the group of this module."""
    for command in (init, show, rotate, revoke, sign, publish, update):
        trust_app.command()(command)
    trust_app.command("set")(set_)
    app.add_typer(trust_app, name="trust")


DaysOption = Annotated[int | None, typer.Option("--expires", metavar="DAYS", help="Days until it expires.", min=1)]


@guarded
def init(
    environment: EnvironmentOption = None,
    days: Annotated[int, typer.Option("--expires", metavar="DAYS", help="Days until it expires.", min=1)] = 365,
) -> int:
    """Make a root of trust that services can follow.

    With a root key, which signs the next version, and an online key, which keeps channels fresh and can move nothing.
    Keys of this home keep their roles. Hand the new root.json to services once; what follows they find themselves.
    """
    from trtops.workflow.trust import init as run

    with workspace({"environment": environment}, quiet=True) as here:
        done = run(here, days)
        say(_turned(done, here.environment))
        say(f"hand {here.resolved.home / 'root.json'} to services that have an older one\n")
        say(f"take {here.resolved.home / 'keys' / 'root.pem'} offline once you have a copy of it\n")
    return 0


@guarded
def show(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A version that waits: what it changes, before you sign it.")
    ] = None,
    environment: EnvironmentOption = None,
    json: JsonOption = False,
) -> int:
    """Show the trusted keys by role.

    Which of them are here, how many have to sign, what was revoked, and which version the registry has.
    """
    from trtops.report import jsonout
    from trtops.workflow.trust import show as run
    from trtops.workflow.trust import waiting

    with workspace({"environment": environment}, quiet=True) as here:
        if file is not None:
            done = waiting(here, file)
            say(f"root version {done.root.version}; version {here.keys.root().version} is trusted here\n")
            _show_changes(done)
            say(f"{done.problem}\n" if done.problem else f"enough have signed: trtops trust publish {file}\n")
            return 0
        found, now = run(here), here.now()
    if json:
        say(jsonout.trust(found.root, found.held, found.newest))
    else:
        say(_shown(found, now))
    return 0


@guarded
def rotate(
    role: RoleName,
    key: Annotated[
        str | None, typer.Option("--key", metavar="PUBLIC", help="Somebody else's public key, or a file of it.")
    ] = None,
    environment: EnvironmentOption = None,
) -> int:
    """Trust another key for a role.

    A new one of this home, which signs from now on, or with --key that of somebody else. What the old key has signed
    still counts, until it is revoked.
    """
    from trtops.workflow.trust import rotate as run

    with workspace({"environment": environment}, quiet=True) as here:
        done = run(here, role.value, key)
        say(_turned(done, here.environment))
    return 0 if done.problem is None else 2


@guarded
def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Id of a key, or the first digits of it.")],
    yes: Annotated[bool, typer.Option("--yes", help="Revoke it; without, only tell what hangs on it.")] = False,
    environment: EnvironmentOption = None,
) -> int:
    """Trust a key for nothing any more.

    Nor what it has signed: services keep what runs, and load nothing new that only this key vouches for. What that
    is, in every environment that can be reached, is listed first, also where no root key is; nothing is revoked
    (exit 2) without --yes. A role that would have too few keys left gets a new one of this home. Release again what
    the key had signed; seal anew what it vouched for as a release key, since whoever has it could have chosen the
    value.
    """
    from trtops.workflow.revoke import consequences
    from trtops.workflow.revoke import revoke as run

    with workspace({"environment": environment}, quiet=True) as here:
        found = consequences(here, key)
        say(_consequences(found))
        if found.hindrance is not None:
            return complain(found.hindrance)
        if not yes:
            sys.stderr.write(f"nothing is revoked yet: trtops trust revoke {found.key_id[:12]} --yes does it\n")
            return 2
        done = run(here, found.key_id)
        say(_turned(done, here.environment))
        if done.problem is None:
            say(f"what it had signed counts no more: trtops status --env {here.environment} tells; to sign it anew:\n")
            say("  trtops release ENGINE; and for secrets of a release key: trtops secret seal ENGINE PATH\n")
    return 0 if done.problem is None else 2


@guarded
def set_(
    threshold: Annotated[
        int | None, typer.Option("--threshold", metavar="N", help="How many root keys have to sign a version.", min=1)
    ] = None,
    tiers: Annotated[
        list[str] | None,
        typer.Option("--tier", metavar="TIER=N[:ENGINE,…]", help="How many release keys have to sign, e.g. gold=2."),
    ] = None,
    days: DaysOption = None,
    environment: EnvironmentOption = None,
) -> int:
    """Change how many keys have to sign, or the expiry.

    Root keys for a version of the root, release keys for an engine release of a tier. Engines that are named belong to
    their tier whatever their release says of itself. All else is signed by one key of its role, so that a rollback
    never waits for a second person.
    """
    from trtops.workflow.trust import change as run

    rules = _tiers(tiers or ())
    with workspace({"environment": environment}, quiet=True) as here:
        done = run(here, threshold=threshold, tiers=rules, days=days)
        say(_turned(done, here.environment))
    return 0 if done.problem is None else 2


def _consequences(found: Consequences) -> str:
    from trtops.report import text
    from trtops.report.escape import visible
    from trtops.report.rows import Table

    key = f"key {found.key_id[:12]} ({', '.join(found.roles)})"
    uses = {
        "runs": "runs there",
        "candidate": "the candidate there",
        "kept": "could be brought back",
        "secret": "sealed secret",
        "snapshot": "snapshot of all channels",
    }
    rows = tuple(
        (
            one.environment,
            one.subject,
            "" if one.generation is None else str(one.generation),
            uses[one.use],
            ", ".join(one.documents),
        )
        for one in found.hanging
    )
    table = Table(("environment", "engine", "generation", "what", "signed by it alone"), rows, frozenset({2}))
    told = f"{key}: without it this holds no more\n{text.table(table, style())}" if rows else ""
    away = "".join(f"{visible(f'{name} could not be looked at: {error.what}')}\n" for name, error in found.unseen)
    nothing = f"{key}: nothing hangs on it {'where it could be seen' if away else 'in any environment'}\n"
    return (told or nothing) + away


def _show_changes(done: Turned) -> None:
    for change in done.changes or ("changes nothing",):
        say(f"  {change}\n")


@guarded
def sign(
    what: Annotated[str, typer.Argument(metavar="FILE|RELEASE", help="A root that waits, or ENGINE@sha256:…")],
    key: Annotated[
        str, typer.Option("--as", metavar="KEY", help="Role or name of a key of this home, or a private key's path.")
    ],
    environment: EnvironmentOption = None,
) -> int:
    """Add a signature.

    To a version of the root that takes more keys than one machine holds, or to an engine release of a tier that does.
    """
    from trtops.workflow.approve import signer_of
    from trtops.workflow.trust import sign_release, sign_root

    with workspace({"environment": environment}, quiet=True) as here:
        own = key in RoleName.__members__ and here.keys.holds(RoleName(key).value)
        signer = here.keys.signer(RoleName(key).value) if own else signer_of(here, key)
        engine, at, digest = what.partition("@")
        if at:
            count, needed = sign_release(here, Path(engine).name, digest, signer)
            say(f"signed {what} by {signer.key_id[:12]}: {count} of {needed}\n")
            if count >= needed:
                say(f"its publisher may run: trtops release {engine} --env {here.environment}\n")
            return 0
        done = sign_root(here, Path(what), signer)
        say(f"signed root version {done.root.version} by {signer.key_id[:12]}\n")
        _show_changes(done)
        say(f"{done.problem}\n" if done.problem else f"enough have signed: trtops trust publish {what}\n")
    return 0


@guarded
def publish(
    path: Annotated[Path | None, typer.Argument(metavar="FILE", help="A version that enough keys signed.")] = None,
    environment: EnvironmentOption = None,
) -> int:
    """Publish the root.

    A version whose signatures were gathered in a file; with no file, every version that this home has kept, which an
    environment needs that was set up later.
    """
    from trtops.workflow.trust import publish as run

    with workspace({"environment": environment}, quiet=True) as here:
        new = run(here, path)
        for root in new:
            say(f"root version {root.version} published in {here.environment}\n")
        if not new:
            say(f"nothing to do: {here.environment} has every version\n")
    return 0


@guarded
def update(environment: EnvironmentOption = None) -> int:
    """Follow the root in the registry.

    As a service does: each version has to be signed by the one before.
    """
    from trtops.workflow.trust import update as run

    with workspace({"environment": environment}, quiet=True) as here:
        before, now = run(here)
    same = before.version == now.version
    say(f"root version {now.version}: " + ("nothing newer\n" if same else f"was {before.version}\n"))
    return 0


def _turned(done: Turned, environment: str) -> str:
    if done.problem is None:
        return f"root version {done.root.version} is signed, trusted here and published in {environment}\n"
    return (
        f"root version {done.root.version} is not trusted yet: {done.problem}\n"
        f"holders of root keys sign it: trtops trust sign {done.path} --as KEY\n"
        f"then: trtops trust publish {done.path}\n"
    )


def _shown(found: Shown, now: int) -> str:
    from trtops.report import text
    from trtops.report.rows import Outcome, Table

    root = found.root
    rows: list[tuple[str, ...]] = []
    tones: list[Outcome] = []
    for role, listed in root.roles.items():
        for number, key_id in enumerate(listed.keys):
            takes = f"{listed.threshold} of {len(listed.keys)}" if not number else ""
            place = "here" if key_id in found.held else "elsewhere"
            rows.append((role if not number else "", takes, key_id[:12], root.keys[key_id].public, place))
            tones.append("done")
    for key_id, key in root.revoked.items():
        rows.append(("revoked", "", key_id[:12], key.public, ""))
        tones.append("failed")
    table = text.table(Table(("role", "signs", "key", "public", "private"), tuple(rows), tones=tuple(tones)), style())
    tiers = "".join(
        f"tier {name}: {rule.threshold} release keys{_also(rule)}\n" for name, rule in sorted(root.tiers.items())
    )
    return table + tiers + _life(root, found.newest, now)


def _also(rule: Tier) -> str:
    return f"; also {', '.join(rule.engines)}" if rule.engines else ""


def _life(root: Root, newest: int | None, now: int) -> str:
    ends = "never expires" if root.expires is None else f"expires in {(root.expires - now) // 86_400} days"
    if root.expires is not None and root.expires <= now:
        ends = "has EXPIRED: trtops trust set --expires DAYS"
    there = "the registry has none" if newest is None else f"the registry has version {newest}"
    follow = "" if root.followed else "; nothing can follow it: trtops trust init"
    return f"version {root.version}, {ends}; {there}{follow}\n"


def _tiers(texts: list[str] | tuple[()]) -> dict[str, Tier]:
    from pydantic import ValidationError

    from trtops.errors import InputError
    from trtops.release.root import Tier

    found = {}
    for text in texts:
        name, _, rest = text.partition("=")
        count, _, engines = rest.partition(":")
        try:
            found[name] = Tier(threshold=int(count), engines=tuple(one for one in engines.split(",") if one))
        except (ValueError, ValidationError):
            fix = "e.g. gold=2, or gold=2:ppocr-cls,ppocr-det"
            raise InputError(f"not a tier and a number: {text[:80]!r}", where="--tier", fix=fix) from None
    return found
