"""``trtops check``: schema, source policies, preflight, spec policies. Fetches the model; imports no backend."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops.errors import Denied, FetchFailed, InputError, IntegrityError, Unavailable
from trtops.spec.load import ENGINE_FILE, ENGINES, RUNTIME_FILE, engine_names, find_engine, load_engine, load_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtops.errors import Location
    from trtops.model.facts import Preflight
    from trtops.policy.gate import Gate
    from trtops.policy.verdict import Verdict
    from trtops.spec.engine import EngineSpec
    from trtops.spec.load import LoadedEngine, LoadedRuntime
    from trtops.workflow.workspace import Workspace


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
    return tuple(dict.fromkeys(_shown(folder) for folder in found))


def _shown(folder: Path) -> Path:
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
    from trtops.model.fetch import fetch
    from trtops.model.preflight import preflight
    from trtops.model.read import read_facts
    from trtops.policy.gate import Subject

    engine = load_engine(folder, name=str(folder / ENGINE_FILE))
    runtime = runtime_of(folder, workspace.environment)
    before = Checked(folder, engine, runtime, None, None, ())
    source = judge_source(before, gate)
    if source.decision == "deny":
        return Checked(folder, engine, runtime, None, None, (source,))
    store = workspace.store
    with _blamed(engine):
        model = fetch(
            engine.spec.model,
            base=folder,
            store=store,
            on_progress=lambda phase, done, total: workspace.progress(f"fetch {engine.spec.name}", phase, done, total),
        )
        found = preflight(engine.spec, model, read_facts(model))
    document = spec_document(before, found, workspace.environment)
    subject = Subject(engine.spec.name, engine.spec.name, document, before.locate)
    return Checked(folder, engine, runtime, model, found, (source, gate.judge("spec", subject)))


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


def judge_source(checked: Checked, gate: Gate) -> Verdict:
    """What policies say of where the model comes from, before anything is fetched.

    Raises:
        Undecided: a policy could not be evaluated.
    """
    from trtops.policy.gate import Subject

    name = checked.spec.name
    return gate.judge("source", Subject(name, name, source_document(checked, gate.environment), checked.locate))


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


def spec_document(checked: Checked, found: Preflight, environment: str) -> dict[str, Any]:
    """What policies of the stage ``spec`` see of an engine and of what preflight found."""
    from trtops.policy.inputs_spec import spec_input

    runtime = checked.runtime
    document = spec_input(
        checked.spec,
        runtime.config if runtime else None,
        found,
        environment=environment,
        document=checked.engine.document.data,
        runtime_document=runtime.data if runtime else None,
    )
    return document.to_json()


def _local_sizes(folder: Path, uri: str) -> dict[str, int]:
    """The size of a local source, which can be known without reading it."""
    if not uri.startswith("file:") or "::" in uri:
        return {}
    path = folder / uri.removeprefix("file://").removeprefix("file:")
    return {uri: path.stat().st_size} if path.is_file() else {}
