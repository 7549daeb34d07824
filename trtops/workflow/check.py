"""``trtops check``: schema, source policies, preflight, spec policies. Fetches the model; imports no backend."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtops.errors import Denied, FetchFailed, InputError, IntegrityError, Location, TrtopsError, Unavailable
from trtops.spec.load import ENGINE_FILE, ENGINES, RUNTIME_FILE, engine_names, find_engine, load_engine, load_runtime
from trtops.spec.overrides import contradiction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from trtops.model.facts import Preflight
    from trtops.policy.gate import Gate, Subject
    from trtops.policy.verdict import Stage, Verdict
    from trtops.spec.engine import EngineSpec
    from trtops.spec.load import LoadedEngine, LoadedRuntime
    from trtops.workflow.workspace import Workspace

T = TypeVar("T")


@dataclass(frozen=True)
class Checked:
    """What is known of an engine before anything is built.

    Attributes:
        folder: the engine's.
        engine: its spec with positions.
        runtime: its runtime config for the environment; None where it has none.
        model: the ONNX file in the store; None where the source was denied.
        preflight: what was found; None likewise.
        verdicts: of the stages ``source`` and, if that allowed it, ``spec``.
    """

    folder: Path
    engine: LoadedEngine
    runtime: LoadedRuntime | None
    model: Path | None
    preflight: Preflight | None
    verdicts: tuple[Verdict, ...]

    @property
    def spec(self) -> EngineSpec:
        """The spec."""
        return self.engine.spec

    @property
    def denied(self) -> bool:
        """Whether a verdict denies."""
        return any(verdict.decision == "deny" for verdict in self.verdicts)

    @property
    def spec_verdict(self) -> Verdict:
        """What policies said of the spec.

        Raises:
            Denied: the source was denied, so that the spec was never judged.
        """
        last = self.verdicts[-1]
        if last.stage != "spec":
            raise Denied(f"policies deny the source of {self.spec.name}", fix="run trtops check")
        return last

    def locate(self, path: tuple[str | int, ...], document: str) -> Location | None:
        """Position of a value in ``engine.yaml`` or ``runtime.yaml``."""
        if document == "runtime":
            return self.runtime.locate(path) if self.runtime else None
        return self.engine.locate(path)


def folders_of(workspace: Workspace, names: Sequence[str]) -> tuple[Path, ...]:
    """Folders of engines by name or path; of all engines where no name is given. Relative to here where they are below.

    Raises:
        InputError: there is no such engine, or none at all.
    """
    wanted = names or engine_names(workspace.root)
    if not wanted:
        raise InputError(
            "there is no engine", where=str(workspace.root / ENGINES), fix="write one: trtops new NAME --model M.onnx"
        )
    found = [find_engine(workspace.root, name) for name in wanted]
    return tuple(dict.fromkeys(shown(folder) for folder in found))


def shown(folder: Path) -> Path:
    """A folder as messages name it: relative to here where it is below."""
    relative = os.path.relpath(folder)
    return folder if relative.startswith("..") else Path(relative)


def check(workspace: Workspace, folder: Path, gate: Gate) -> Checked:
    """Check one engine.

    Raises:
        InputError: a file is missing or wrong.
        IntegrityError: the model's bytes are not those of the spec.
        FetchFailed, Unavailable, StorageError: the model cannot be had.
        Undecided: a policy could not be evaluated.
    """
    (outcome,) = check_all(workspace, [folder], gate)
    if isinstance(outcome, TrtopsError):
        raise outcome
    return outcome


def check_all(
    workspace: Workspace, folders: Sequence[Path], gate: Gate, *, whole: bool = False
) -> tuple[Checked | TrtopsError, ...]:
    """Check many engines, each stage over all of them at once; one wrong engine hides no other.

    Args:
        workspace: the repository.
        folders: of the engines.
        gate: what judges.
        whole: these are all engines there are, so that a waiver which none of them needs is reported.

    Returns:
        One outcome a folder, in their order: what is known of the engine, or why nothing could be decided (the errors
        that :func:`check` raises).
    """
    known = gate.policies.enforcement.environments
    outcomes: list[Checked | TrtopsError] = [tried(partial(_loaded, workspace, folder, known)) for folder in folders]
    outcomes = _judged("source", outcomes, gate, whole=whole)
    outcomes = [
        tried(partial(_inspected, workspace, one)) if isinstance(one, Checked) and not one.denied else one
        for one in outcomes
    ]
    return tuple(_judged("spec", outcomes, gate, whole=whole))


def tried(call: Callable[[], T]) -> T | TrtopsError:
    """What a call gives, or the error that it raises."""
    try:
        return call()
    except TrtopsError as error:
        return error


def _loaded(workspace: Workspace, folder: Path, environments: Collection[str]) -> Checked:
    engine = load_engine(folder, name=str(folder / ENGINE_FILE))
    _named_as_folder(workspace.root, folder, engine)
    _overlays_known(folder, environments)
    runtime = runtime_of(folder, workspace.environment)
    if runtime is not None:
        _overrides_kept(engine, runtime)
    return Checked(folder, engine, runtime, None, None, ())


def _overrides_kept(engine: LoadedEngine, runtime: LoadedRuntime) -> None:
    """Refuse what a runtime config changes of the batching and what no executor could do.

    Raises:
        InputError: it does.
    """
    if refused := contradiction(engine.spec.batching, runtime.config.batching):
        field, why, fix = refused
        raise InputError(why, where=runtime.locate(("batching", field)), fix=fix)


def _named_as_folder(root: Path, folder: Path, engine: LoadedEngine) -> None:
    """Refuse a spec that goes by another engine's name, and so by that one's waivers and channels.

    Raises:
        InputError: it does.
    """
    place, name = folder.absolute(), engine.spec.name
    own = root.absolute() / ENGINES / name
    if place.parent == own.parent and place != own:
        raise InputError(
            f"the engine in {ENGINES}/{place.name} calls itself {name}",
            where=engine.locate(("metadata", "name")),
            fix=f"write `name: {place.name}`, or rename the folder: waivers and channels go by this name",
        )
    if own.is_dir() and not own.samefile(place):
        raise InputError(
            f"the engine in {shown(folder)} calls itself {name}, as the one in {ENGINES}/{name} does",
            where=engine.locate(("metadata", "name")),
            fix="give it a name of its own: waivers and channels go by this name",
        )


def _overlays_known(folder: Path, environments: Collection[str]) -> None:
    """Refuse a runtime config that nothing reads, and that no policy would ever judge: ``runtime.prd.yaml``.

    Raises:
        InputError: there is one.
    """
    names = {RUNTIME_FILE, *(f"runtime.{name}.yaml" for name in environments)}
    for path in sorted({*folder.glob("runtime*.yaml"), *folder.glob("runtime*.yml")}):
        if path.name not in names:
            near = get_close_matches(path.name, names, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InputError(
                "this is the runtime config of no environment",
                where=Location(str(path), 1),
                fix=f"{hint}environments are {', '.join(environments)} (governance/enforcement.yaml)",
            )


def _inspected(workspace: Workspace, checked: Checked) -> Checked:
    """Fetch the model and hold the spec against it."""
    from trtops.model.fetch import fetch
    from trtops.workflow.preflights import preflight_of

    name = checked.spec.name
    with _blamed(checked.engine):
        model = fetch(
            checked.spec.model,
            base=checked.folder,
            store=workspace.store,
            on_progress=lambda phase, done, total: workspace.progress(f"fetch {name}", phase, done, total),
        )
        return replace(checked, model=model, preflight=preflight_of(workspace, checked.spec, model))


def _judged(
    stage: Stage, outcomes: Sequence[Checked | TrtopsError], gate: Gate, *, whole: bool
) -> list[Checked | TrtopsError]:
    """Add the verdicts of a stage to every engine that is neither undecided nor denied."""
    from trtops.workflow.judge import judge_each

    subjects = {
        number: tried(partial(subject_of, one, stage, gate))
        for number, one in enumerate(outcomes)
        if isinstance(one, Checked) and not one.denied
    }
    answers: dict[int, Verdict | TrtopsError] = {
        number: one for number, one in subjects.items() if isinstance(one, TrtopsError)
    }
    askable = {number: one for number, one in subjects.items() if not isinstance(one, TrtopsError)}
    whole = whole and len(askable) == len(outcomes)
    answers.update(zip(askable, judge_each(gate, stage, [*askable.values()], whole=whole), strict=True))
    return [_with(one, answers.get(number)) for number, one in enumerate(outcomes)]


def _with(outcome: Checked | TrtopsError, answer: Verdict | TrtopsError | None) -> Checked | TrtopsError:
    if isinstance(outcome, TrtopsError) or answer is None:
        return outcome
    return answer if isinstance(answer, TrtopsError) else replace(outcome, verdicts=(*outcome.verdicts, answer))


def subject_of(checked: Checked, stage: Stage, gate: Gate) -> Subject:
    """What is judged of an engine in the stage ``source`` or, with its preflight, ``spec``.

    Raises:
        Undecided: its released interface cannot be read.
    """
    from trtops.policy.gate import Subject

    if stage == "spec" and checked.preflight is not None:
        document = spec_document(checked, checked.preflight, gate)
    else:
        document = source_document(checked, gate.environment)
    return Subject(checked.spec.name, checked.spec.name, document, checked.locate)


@contextmanager
def _blamed(engine: LoadedEngine) -> Iterator[None]:
    """Have what is wrong with a model say which line of the spec names it; the source goes into its words."""
    from trtops.model.fetch import redacted

    try:
        yield
    except (FetchFailed, InputError, IntegrityError, Unavailable) as error:
        key = "sha256" if isinstance(error, IntegrityError) else "source"
        error.what = f"{redacted(engine.spec.model.source)}: {error.what}"
        error.where = engine.locate(("model", key))
        raise


def runtime_of(folder: Path, environment: str) -> LoadedRuntime | None:
    """The runtime config of an environment; None where the engine's folder has none at all.

    Raises:
        InputError: it is wrong, or there is an overlay with nothing below it.
    """
    overlay = folder / f"runtime.{environment}.yaml"
    return load_runtime(folder, environment) if (folder / RUNTIME_FILE).exists() or overlay.exists() else None


def source_document(checked: Checked, environment: str) -> dict[str, Any]:
    """What policies of the stage ``source`` see of an engine. Opens nothing."""
    from trtops.model.indexes import package_indexes
    from trtops.policy.inputs_source import source_input

    spec = checked.spec
    document = source_input(
        spec,
        environment=environment,
        document=checked.engine.document.data,
        indexes=package_indexes(os.environ) if spec.model.source.startswith("pypi:") else (),
        sizes=_local_sizes(checked.folder, spec.model.source),
    )
    return document.to_json()


def spec_document(checked: Checked, found: Preflight, gate: Gate) -> dict[str, Any]:
    """What policies of the stage ``spec`` see of an engine and of what preflight found.

    Raises:
        Undecided: its released interface cannot be read.
    """
    from trtops.policy.inputs_spec import spec_input
    from trtops.policy.interfaces import lock_of

    runtime = checked.runtime
    document = spec_input(
        checked.spec,
        runtime.config if runtime else None,
        found,
        environment=gate.environment,
        document=checked.engine.document.data,
        runtime_document=runtime.data if runtime else None,
        released=lock_of(gate.policies.files, checked.spec.name),
    )
    return document.to_json()


def _local_sizes(folder: Path, uri: str) -> dict[str, int]:
    """The size of a local source, which can be known without reading it."""
    if not uri.startswith("file:") or "::" in uri:
        return {}
    path = folder / uri.removeprefix("file://").removeprefix("file:")
    return {uri: path.stat().st_size} if path.is_file() else {}
