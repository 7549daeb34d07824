"""``trtops config diff``: what differs between two runtime configs, released or about to be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtops.errors import InputError, TrustError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtops.errors import TrtopsError
    from trtops.spec.engine import RuntimeConfig
    from trtops.workflow.workspace import Workspace

_SIDE = re.compile(
    r"(?P<here>\+?)(?P<environment>[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)(@(?P<generation>[1-9][0-9]{0,8}))?"
)
_FIX = "write ENV for what runs there, ENV@GENERATION for what ran, +ENV for what stands in the repository"


@dataclass(frozen=True)
class Difference:
    """One value that differs; None where a side has none.

    Secrets are references on both sides; what looks like one and is in clear is withheld.
    """

    path: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Diff:
    """What differs between two configs.

    Attributes:
        differences: sorted by path.
        skipped: what was passed over on the way, since nobody vouches for it but keys that were revoked.
    """

    differences: tuple[Difference, ...]
    skipped: tuple[TrtopsError, ...] = ()


def diff(workspace: Workspace, engine: str, before: str, after: str) -> Diff:
    """What differs between two configs of an engine.

    Args:
        workspace: the repository.
        engine: name or folder.
        before: ``ENV``, ``ENV@GENERATION`` or ``+ENV``.
        after: the same.

    Raises:
        InputError: a side is none, or there is no such config.
        TrustError: it is forged, or signed by a key that was revoked.
        Unavailable: the registry is away.
    """
    from trtops.policy.inputs_secrets import secret_fields, withhold

    skipped: list[TrtopsError] = []
    sides = [_config(workspace, engine, side, skipped).model_dump(mode="json") for side in (before, after)]
    one, other = (dict(_leaves(plain)) for plain in sides)
    # What was written in clear by mistake is compared and not shown: a diff is read aloud.
    shown, shown_other = (dict(_leaves(withhold(plain, secret_fields(plain)))) for plain in sides)
    paths = sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))
    told = {str(problem): problem for problem in skipped}  # both sides may pass over the same pointer
    return Diff(tuple(Difference(path, shown.get(path), shown_other.get(path)) for path in paths), tuple(told.values()))


def _config(workspace: Workspace, engine: str, side: str, skipped: list[TrtopsError]) -> RuntimeConfig:
    match = _SIDE.fullmatch(side)
    if match is None or (match["here"] and match["generation"]):
        raise InputError(f"not a config: {side[:80]!r}", fix=_FIX)
    if match["here"]:
        return _standing(workspace, engine, match["environment"])
    generation = int(match["generation"]) if match["generation"] else None
    return _released(workspace, engine, match["environment"], generation, skipped)


def _standing(workspace: Workspace, engine: str, environment: str) -> RuntimeConfig:
    from trtops.spec.engine import RuntimeConfig
    from trtops.spec.load import find_engine
    from trtops.workflow.check import runtime_of

    loaded = runtime_of(find_engine(workspace.root, engine), environment)
    if loaded is None:
        return RuntimeConfig(apiVersion="trtops/v1", kind="Runtime")
    return loaded.config.model_copy(update={"rollout": None})  # how it gets there is no part of what is released


def _released(
    workspace: Workspace, engine: str, environment: str, generation: int | None, skipped: list[TrtopsError]
) -> RuntimeConfig:
    """The config of a generation, verified; an expired pointer is no hindrance to looking at it."""
    from pathlib import Path

    from trtops.release import layout
    from trtops.release.documents import Channel, ConfigRelease
    from trtops.release.envelope import verify
    from trtops.release.fetch import back_to, chain
    from trtops.release.head import head_of

    registry, root = workspace.registry(environment), workspace.keys.root()
    channel = Channel(engine=Path(engine).name, environment=environment)
    head = head_of(registry, root, channel) if registry.read(layout.pointer(channel)) is not None else None
    if head is not None and head.revoked is not None:
        if generation is None or head.binding is None:
            raise head.revoked  # what runs there is what nobody can tell
        skipped.append(head.revoked)  # what led up to it still counts
    present = head.binding if head is not None else None
    found = back_to(chain(registry, root, present), generation or present.generation) if present is not None else ()
    if not found or (generation and found[-1].generation != generation):
        what = f"generation {generation}" if generation else "release"
        raise InputError(f"there is no {what} of {channel}", fix="see trtops history")
    name = layout.config_release(channel.engine, found[-1].config_release)
    body = registry.read(name)
    if body is None:
        raise InputError("the config is not in the registry any more", where=name, fix="see trtops history")
    signed = verify(body, ConfigRelease, root, where=name)
    if signed.digest != found[-1].config_release:
        raise TrustError("this is another config than its name says", where=name)
    return signed.value.config


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any JSON value
    """Each value that is no section, by its path; an empty section counts as a value."""
    import json

    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from _leaves(below, f"{path}.{key}" if path else str(key))
    else:
        yield path, json.dumps(value, ensure_ascii=False)
