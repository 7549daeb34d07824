"""``trtops inspect``: what is inside what was built. Only artifacts that a builder key vouches for are looked into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.errors import InputError, NotLoadable, TrustError

if TYPE_CHECKING:
    from trtops.backend.inspect import Inspection
    from trtops.backend.port import Sidecar
    from trtops.workflow.workspace import Workspace

_SHORTEST = 6


def look(workspace: Workspace, sidecar: Sidecar) -> tuple[Inspection | None, str | None]:
    """Layers of an artifact, or why this machine cannot tell them.

    Raises:
        FetchFailed, IntegrityError, StorageError: of the store.
        TrustError: no builder key of this home vouches for the artifact; reading an engine can run its code.
    """
    from trtops.backend.inspect import Inspectable
    from trtops.backend.select import backend
    from trtops.backend.trt_plugins import bring_libraries

    _vouched(workspace, sidecar)
    adapter = backend(sidecar.backend)
    if not isinstance(adapter, Inspectable):
        return None, f"{sidecar.backend} does not show the layers of its engines"
    bring_libraries(sidecar, workspace.store)
    try:
        return adapter.inspect(workspace.store.path(sidecar.artifact), sidecar), None
    except NotLoadable as error:
        return None, error.what


def _vouched(workspace: Workspace, sidecar: Sidecar) -> None:
    from trtops.release.documents import Provenance
    from trtops.release.envelope import verify
    from trtops.workflow.build import PROVENANCE

    where = f"record {PROVENANCE} {sidecar.plan.short}"
    body = workspace.store.record(PROVENANCE, str(sidecar.plan))
    fix = "build it again here with --rebuild"
    if body is None:
        raise TrustError(f"nobody vouches for the artifact {sidecar.artifact.short}", where=where, fix=fix)
    said = verify(body, Provenance, workspace.keys.root(), where=where).value
    if (said.artifact, said.sidecar) != (sidecar.artifact, sidecar.digest()):
        raise TrustError(f"what is signed is not the artifact {sidecar.artifact.short}", where=where, fix=fix)


def find(workspace: Workspace, prefix: str) -> Sidecar:
    """The sidecar of an artifact by the beginning of its digest (or of its plan's).

    Raises:
        InputError: none of the store's has it, or several have.
        IntegrityError: a record is damaged.
    """
    from pydantic import ValidationError

    from trtops.backend.port import Sidecar
    from trtops.build.runner import SIDECAR
    from trtops.errors import IntegrityError

    wanted = prefix.removeprefix("sha256:").lower()
    found: dict[str, Sidecar] = {}
    for key, body in workspace.store.records(SIDECAR).items():
        try:
            sidecar = Sidecar.model_validate_json(body)
        except ValidationError as error:
            raise IntegrityError("the record of a build is damaged", where=f"record {SIDECAR} {key}") from error
        if len(wanted) >= _SHORTEST and (
            sidecar.artifact.value.startswith(wanted) or sidecar.plan.value.startswith(wanted)
        ):
            found.setdefault(str(sidecar.artifact), sidecar)
    if len(found) == 1:
        return next(iter(found.values()))
    what = f"{len(found)} artifacts begin with {prefix!r}" if found else f"no artifact was built that is {prefix!r}"
    fix = f"give {_SHORTEST} digits or more of an artifact's or a plan's digest, as trtops build prints them"
    raise InputError(what, fix=fix)
