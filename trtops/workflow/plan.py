"""``trtops plan`` and ``trtops apply``: what a release would build, publish and move; then exactly that, or nothing.

A plan reads: it builds, publishes and signs nothing, and makes no key. (Models that are not in the store yet are
fetched into it, as ``trtops check`` does.)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.errors import Conflict, Denied, InputError, StorageError, TrtopsError, TrustError
from trtops.release.plan import EnginePlan, Plan, Side, TargetPlan, differences

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtops.policy.gate import Gate
    from trtops.release.documents import Binding, ConfigRelease, EngineRelease
    from trtops.release.plan import Build, Move
    from trtops.release.root import Role
    from trtops.spec.engine import Target
    from trtops.spec.runners import Runners
    from trtops.workflow.check import Checked
    from trtops.workflow.ship import Shipment
    from trtops.workflow.workspace import Workspace

_MAX_PLAN_BYTES = 4 << 20
_SIGN: tuple[Role, ...] = ("builder", "release", "channel")


@dataclass(frozen=True)
class _Here:
    """What a channel says, and the documents that it names; None where it says nothing or they cannot be had."""

    binding: Binding | None = None
    engine: EngineRelease | None = None
    config: ConfigRelease | None = None


def plan(
    workspace: Workspace,
    names: Sequence[str] = (),
    *,
    changed_since: str | None = None,
    policies_from: str | None = None,
) -> Plan:
    """What a release of engines would do.

    Args:
        workspace: whose environment.
        names: engines by name or folder; none: all, or those that the change touches.
        changed_since: only engines that differ from the merge base with this revision.
        policies_from: revision to read policies and runners from; None: that of the settings, without one the working
            tree.

    Raises:
        InputError: there is no such engine, a spec is wrong, or the registry has releases and here are no trusted keys.
        TrustError: what is in the registry is forged.
        Undecided, FetchFailed, IntegrityError, StorageError, Unavailable: as for ``trtops check``; the registry.
    """
    import trtops
    from trtops.workflow.check import check_all, folders_of
    from trtops.workflow.judge import open_gate, set_by
    from trtops.workflow.review import look, shown_folders
    from trtops.workflow.workspace import commit_of

    if names and changed_since is not None:
        raise InputError("engines and --changed-since exclude each other", fix="leave out one of them")
    if policies_from is not None:
        workspace = set_by(workspace, policies_from)
    judges = workspace.resolved.settings.policies_from if policies_from is None else policies_from
    runners = _runners(workspace, judges)
    with open_gate(workspace, policies_from=policies_from) as gate:
        if changed_since is None:
            folders = folders_of(workspace, names)
        else:
            folders = shown_folders(workspace, look(workspace, gate.policies, changed_since).affected.engines)
        checked = [_decided(one) for one in check_all(workspace, folders, gate)]
        return Plan(
            environment=workspace.environment,
            registry=_place(workspace),
            # Changes that are not committed are in the digests of what they change; a plan's file may be one of them.
            commit=(commit_of(workspace.root) or "").removesuffix("-dirty") or None,
            policies=gate.policies.digest,
            judge=_judge(gate),
            keys=_keys(workspace),
            root=workspace.keys.root().digest() if _trusts(workspace) else None,
            trtops=trtops.__version__,
            engines=tuple(sorted((_engine(workspace, one, runners) for one in checked), key=lambda one: one.engine)),
            created=workspace.now(),
        )


def apply(workspace: Workspace, path: Path, done: Callable[[str, Shipment], None]) -> Plan:
    """Do what a plan says, or nothing.

    Args:
        workspace: whose environment; that of the plan.
        path: of the plan.
        done: called after each engine, with what happened, also where it failed.

    Raises:
        Conflict: the world is not as it was when the plan was made; says in what. Nothing was done, or, if a channel
            moves meanwhile, nothing more.
        Denied: the plan has an engine that policies deny.
        InputError: it is no plan, or of another environment.
        TrtopsError: a stage failed; what was released before is still released.
    """
    from trtops.workflow.check import folders_of
    from trtops.workflow.ship import Expected, Options, Shipment, ship

    planned = read_plan(path)
    if planned.environment != workspace.environment:
        what = f"this is a plan for {planned.environment}, not for {workspace.environment}"
        raise InputError(what, where=str(path), fix=f"trtops apply {path} --env {planned.environment}")
    if barred := [one for one in planned.engines if one.move in {"denied", "blocked"}]:
        what = "; ".join(f"{one.engine}: {one.reason}" for one in barred)
        raise Denied(what, where=str(path), fix="mend it and plan again, or plan the other engines alone")
    now = plan(workspace, [one.engine for one in planned.engines]) if planned.engines else planned
    if moved := differences(planned, now):
        what = f"the world moved since the plan was made: {'; '.join(moved)}"
        raise Conflict(what, where=str(path), fix="plan again, look at it, then apply that")
    for one in planned.moves:
        (folder,) = folders_of(workspace, [one.engine])
        shipment = Shipment()
        expected = Expected(one.spec, planned.policies, one.before.generation)
        try:
            ship(workspace, folder, Options(expected=expected), shipment)
        finally:
            done(one.engine, shipment)
    return planned


def matrix_of(found: Plan) -> Plan:
    """The plan itself, once every target that CI would build has a runner.

    Raises:
        InputError: one has none; names it.
    """
    from trtops.spec.runners import no_runner

    for one in found.engines:
        for target in one.targets:
            if one.decision != "deny" and target.runner is None:
                raise no_runner(target.target, one.engine)
    return found


def read_plan(path: Path) -> Plan:
    """Read a plan's file.

    Raises:
        InputError: there is none, or it is none.
        StorageError: it cannot be read.
    """
    from pydantic import ValidationError

    fix = "make one with trtops plan --out FILE"
    try:
        with path.open("rb") as file:
            body = file.read(_MAX_PLAN_BYTES + 1)
        return Plan.model_validate_json(body)
    except FileNotFoundError:
        raise InputError("there is no such plan", where=str(path), fix=fix) from None
    except OSError as error:
        raise StorageError(f"the plan cannot be read: {error.strerror}", where=str(path)) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(str(part) for part in first["loc"])
        place = f"{at}: " if at else ""  # what is no JSON at all is wrong at no key
        raise InputError(f"this is no plan: {place}{first['msg']}", where=str(path), fix=fix) from None


def _decided(outcome: Checked | TrtopsError) -> Checked:
    if isinstance(outcome, TrtopsError):
        raise outcome
    return outcome


def _place(workspace: Workspace) -> str:
    """The registry's URL with no credentials in it; a folder relative to the repository where it is below."""
    url = workspace.resolved.registry
    kind, _, rest = url.partition(":")
    if kind == "file":
        path = Path(rest)
        return f"file:{path.relative_to(workspace.root)}" if path.is_relative_to(workspace.root) else url
    return f"{url.partition('://')[0]}://{rest.rpartition('@')[2].removeprefix('//')}"


def _judge(gate: Gate) -> str:
    return gate.engine.version


def _trusts(workspace: Workspace) -> bool:
    """Whether this home has trusted keys; to ask for them would make them."""
    return (workspace.resolved.home / "root.json").exists()


def _keys(workspace: Workspace) -> dict[str, str | None]:
    keys = workspace.keys
    if not _trusts(workspace):
        return dict.fromkeys(_SIGN)
    return {role: keys.signer(role).key_id if keys.holds(role) else None for role in _SIGN}


def _runners(workspace: Workspace, revision: str | None) -> Runners | None:
    from trtops.spec.runners import RUNNERS_FILE, parse_runners
    from trtops.workflow.git import Git

    if revision is not None:
        git = Git(workspace.root)
        content = git.content(git.commit(revision), RUNNERS_FILE)
        return None if content is None else parse_runners(content, f"{revision}:{RUNNERS_FILE}")
    path = workspace.root / RUNNERS_FILE
    try:
        return parse_runners(path.read_bytes(), RUNNERS_FILE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", where=RUNNERS_FILE) from error


def _engine(workspace: Workspace, checked: Checked, runners: Runners | None) -> EnginePlan:
    from trtops.release.assemble import config_release
    from trtops.workflow.release import config_of

    spec, here = checked.spec, _here(workspace, checked.spec.name)
    config = config_release(spec.name, workspace.environment, config_of(checked), created=0)
    targets = tuple(_target(workspace, checked, target, runners) for target in spec.targets)
    binding = here.binding
    before = Side(generation=0) if binding is None else Side(
        generation=binding.generation,
        binding=binding.digest(),
        engine_release=binding.engine_release,
        config_release=binding.config_release,
        weights=binding.weights,
    )  # fmt: skip
    move, after, reason = _moved(workspace, checked, here, targets, config, before)
    judged = checked.verdicts[-1]
    return EnginePlan(
        engine=spec.name,
        spec=spec.digest(),
        config=config.identity(),
        verdict=judged.digest() if judged.stage == "spec" else None,
        decision=judged.decision,
        targets=targets,
        move=move,
        before=before,
        after=after,
        reason=reason,
    )


def _here(workspace: Workspace, engine: str) -> _Here:
    """What the stable channel says now: its candidate's documents while a rollout is open, else the stable ones."""
    from trtops.release import layout
    from trtops.release.fetch import fetch_arm, read_binding
    from trtops.release.trust import TrustedChannel
    from trtops.workflow.release import channel_of

    registry, channel = workspace.registry(), channel_of(workspace, engine)
    name = layout.pointer(channel)
    body = registry.read(name)
    if body is None:
        return _Here()
    if not _trusts(workspace):
        what = f"{engine} is released to {workspace.environment}, and this home trusts no keys that could vouch for it"
        raise InputError(what, where=str(workspace.resolved.home), fix="put the publisher's root.json there")
    root = workspace.keys.root()
    binding = read_binding(body, root, channel, name)
    trusted = TrustedChannel(root, channel)
    trusted.update_pointer(body, 0)  # an expired pointer is no hindrance to looking at it
    try:
        found = fetch_arm(trusted.beside(binding.arms[-1]), registry)
    except TrustError:
        raise
    except TrtopsError:  # a document is gone: it is released anew
        return _Here(binding)
    return _Here(binding, found.engine_release, found.config_release)


def _moved(
    workspace: Workspace,
    checked: Checked,
    here: _Here,
    targets: Sequence[TargetPlan],
    config: ConfigRelease,
    before: Side,
) -> tuple[Move, Side, str]:
    """What becomes of the channel: the move, what it binds then, and why."""
    from trtops.digest import Digest
    from trtops.release.rollout import Pair, released
    from trtops.workflow.release import plan_of

    if checked.denied:
        blocking = [one for verdict in checked.verdicts for one in verdict.findings if one.blocking]
        return "denied", before, f"policies deny it: {'; '.join(f'{one.message} [{one.rule}]' for one in blocking)}"
    if all(one.build == "elsewhere" for one in targets):
        return "blocked", before, f"no target can be built or is in the store: {targets[0].reason}"
    same_engine = here.engine is not None and _same(checked, here.engine, targets)
    same_config = here.config is not None and here.config.identity() == config.identity()
    if here.binding is None:
        weights = {"stable": 100}
        return "release", Side(generation=1, weights=weights), "nothing is released yet"
    if bad := [one for one in targets if one.artifact is not None and one.artifact in here.binding.rejected]:
        return "denied", before, f"in quarantine: the engine of {bad[0].target} was aborted before"
    expired = here.binding.expires is not None and workspace.now() >= here.binding.expires
    if same_engine and same_config and not expired:
        return "keep", before, "the channel says the same"
    arm = here.binding.arms[-1]
    unknown = Digest.of_bytes(b"known after the build")
    wanted = Pair(arm.engine_release if same_engine else unknown, arm.config_release if same_config else unknown)
    try:
        bound = released(here.binding.bound, wanted, plan_of(checked), workspace.now())
    except InputError as error:
        return "blocked", before, error.what
    bound = bound or here.binding.bound
    open_ = bound.rollout is not None and bound.rollout.open
    after = Side(
        generation=here.binding.generation + 1,
        engine_release=None if wanted.engine_release == unknown else wanted.engine_release,
        config_release=None if wanted.config_release == unknown else wanted.config_release,
        weights=bound.weights,
    )
    return "rollout" if open_ else "release", after, _why(same_engine=same_engine, same_config=same_config)


def _why(*, same_engine: bool, same_config: bool) -> str:
    if same_engine and same_config:
        return "the pointer has expired"
    changed = [name for name, same in (("engine", same_engine), ("config", same_config)) if not same]
    return f"{' and '.join(changed)} differ{'s' if len(changed) == 1 else ''} from what is released"


def _same(checked: Checked, release: EngineRelease, targets: Sequence[TargetPlan]) -> bool:
    """Whether building and releasing would give what is released already."""
    if release.spec != checked.spec.digest():
        return False
    for one in targets:
        artifact = release.artifact(one.target)
        if one.build == "elsewhere" or (artifact is None and one.target in release.skipped):
            continue
        if artifact is None or one.artifact != artifact.sidecar.artifact or one.key != artifact.sidecar.plan:
            return False
    return True


def _target(workspace: Workspace, checked: Checked, target: Target, runners: Runners | None) -> TargetPlan:
    from trtops.backend.select import backend
    from trtops.workflow.build import kept, plan_of
    from trtops.workflow.handover import offered

    runner = runners.labels(target) if runners is not None else None
    adapter = backend(target.backend)
    status = adapter.status(target)
    reason = None
    if not status.can_build or status.version is None:
        reason = status.reason or "this machine cannot build it"
    elif refusal := adapter.refusal(target, checked.spec.precision):
        reason = refusal
    trusts = _trusts(workspace)
    refused = None
    if trusts and not (reason is None and status.can_load):  # as `or_taken` does when it is released
        there, refused = offered(workspace, checked.spec, target.id)
        if there is not None:
            engine = there.sidecar
            return TargetPlan(target=target.id, build="reuse", key=engine.plan, artifact=engine.artifact, runner=runner)
    if reason is not None or checked.model is None:
        why = "; ".join(filter(None, (reason or "its source is denied", refused)))
        return TargetPlan(target=target.id, build="elsewhere", reason=why, runner=runner)
    wanted = plan_of(checked, target, adapter, status)
    artifact = kept(workspace, checked.spec.name, wanted) if trusts else None
    build: Build = "build" if artifact is None else "reuse"
    return TargetPlan(target=target.id, build=build, key=wanted.key, artifact=artifact, reason=refused, runner=runner)
