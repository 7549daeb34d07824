"""``trtops approve`` and ``trtops policy approve``: signatures of people, for the gates that count them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.digest import Digest
from trtops.errors import InputError

if TYPE_CHECKING:
    from trtops.release.documents import EngineRelease
    from trtops.release.keys import Signer
    from trtops.workflow.workspace import Workspace

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_DEFAULT_BRANCH = "refs/remotes/origin/HEAD"


@dataclass(frozen=True)
class Approved:
    """What was approved, and as whom.

    Attributes:
        engine: name.
        release: digest of the engine release.
        made: the engine release.
        key: id of the key.
        new: False if this very approval was there already.
    """

    engine: str
    release: Digest
    made: EngineRelease
    key: str
    new: bool


def approve(workspace: Workspace, what: str, key: str) -> Approved:
    """Approve a release, in the registry of the workspace's environment.

    Args:
        workspace: whose environment.
        what: ``ENGINE``, for what its stable channel names there, or ``ENGINE@sha256:…``, for a release that a gate
            has refused for want of approvals and that is in the store only.
        key: name of a key of this home, made on first use, or path of a private key.

    Raises:
        InputError: it is no release or key, there is no such release, or nothing is released.
        StorageError, TrustError, Unavailable: the key's file, the store or the registry.
    """
    from trtops.release.approval import approve as publish

    engine, digest = _release(workspace, what)
    made = _existing(workspace, engine, digest)
    signer = signer_of(workspace, key)
    new = publish(workspace.registry(), signer, engine, digest, now=workspace.now())
    return Approved(engine, digest, made, signer.key_id, new)


def _existing(workspace: Workspace, engine: str, digest: Digest) -> EngineRelease:
    """The release itself: nobody approves what cannot be looked at.

    From the registry, verified, or as a gate kept it in the store, where its digest is all that vouches for it.
    """
    from pydantic import ValidationError

    from trtops.release import layout
    from trtops.release.documents import EngineRelease
    from trtops.release.envelope import verify
    from trtops.workflow.gate import JUDGED

    where = layout.engine_release(engine, digest)
    body = workspace.registry().read(where)
    if body is not None:
        made = verify(body, EngineRelease, workspace.keys.root(), where=where).value
    else:
        kept = workspace.store.record(JUDGED, digest.value)
        fix = f"write it as the gate that refused it did, and use its store ({workspace.store.root})"
        if kept is None:
            what = f"there is no release {digest.short} in {workspace.environment}, and no gate has judged one"
            raise InputError(what, fix=fix)
        try:
            made = EngineRelease.model_validate_json(kept)
        except ValidationError:
            raise InputError("what the store keeps of this release is damaged", where=digest.short, fix=fix) from None
    if made.digest() != digest or made.engine != engine:
        what = f"{digest.short} is no release of {engine}"
        raise InputError(
            what, where=where, fix=f"it is a release of {made.engine}" if made.digest() == digest else None
        )
    return made


@dataclass(frozen=True)
class ApprovedWaiver:
    """A waiver that was signed.

    Attributes:
        path: its file.
        key: id of the key.
        repository: for which it was signed; it counts in no other.
        base: what says so: a git revision, or ``--repository``.
        refusal: why it does not count for all that, by the policies of the working tree; None where it does.
    """

    path: Path
    key: str
    repository: str
    base: str
    refusal: str | None


def approve_waiver(workspace: Workspace, name: str, key: str, *, repository: str | None = None) -> ApprovedWaiver:
    """Sign a waiver of the working tree as its approver, into its file; comments and all else stay as they are.

    Args:
        workspace: whose waivers.
        name: of the file in ``governance/waivers``, or its path.
        key: as for :func:`approve`.
        repository: its name, as the approver knows it; None: as the base says, which has to be known then.

    Raises:
        InputError: there is no such waiver, or it is none, no signature can be put into its file, or the repository has
            no name, another one than the working tree says, or one that nobody but the working tree says.
        StorageError, TrustError: its file or the key's cannot be used.
        Undecided: the policies cannot be read.
    """
    from trtops.durable import write_durably
    from trtops.policy.governance import WAIVER_FOLDER, parse_waiver
    from trtops.policy.loader import load_policies
    from trtops.release.waivers import APPROVALS, refusal, sign_waiver, with_signature

    policies = load_policies(workspace.root)
    stem = Path(name).name.removesuffix(".yaml")
    found = next((waiver for waiver in policies.waivers if waiver.id == stem), None)
    if found is None:
        known = ", ".join(waiver.id for waiver in policies.waivers) or "there is none"
        raise InputError(f"no such waiver: {name[:80]!r}", where=WAIVER_FOLDER, fix=f"known: {known}")
    if found.document is None or found.defect is not None:
        defect = found.defect
        raise InputError(
            defect.message if defect else "it is no waiver",
            where=defect.location if defect else found.label,
            fix=defect.fix if defect else None,
        )
    repository, base = _repository(workspace, policies.enforcement.repository, repository)
    signer = signer_of(workspace, key)
    signature = sign_waiver(found.document, signer, repository)
    path = workspace.root / WAIVER_FOLDER / f"{stem}.yaml"
    text = policies.files[f"{WAIVER_FOLDER}/{stem}.yaml"].decode()
    signed = found.document.model_copy(update={"signature": signature})
    content = with_signature(text, signature).encode()
    if parse_waiver(content, path.name, found.label, [signed.rule]).document != signed:
        fix = "write it as `key: value` lines, with `signature` at its end or nowhere"
        raise InputError("the file cannot take a signature as it is written", where=found.label, fix=fix)
    write_durably(path, [content])
    counts = refusal(signed, policies.data.get(APPROVALS, {}), repository)
    return ApprovedWaiver(path, signer.key_id, repository, base, counts)


def _repository(workspace: Workspace, claimed: str | None, given: str | None) -> tuple[str, str]:
    """For which repository to sign, and what says so. Never the working tree alone: who proposes the waiver wrote it.

    Raises:
        InputError: there is no name, names differ, or nobody but the working tree says one.
        Undecided: the base's policies cannot be read.
    """
    from trtops.policy.governance import ENFORCEMENT_FILE
    from trtops.policy.loader import load_policies

    names = {"the working tree": claimed} if given is None else {"the working tree": claimed, "--repository": given}
    base = _base(workspace)
    if base is not None:
        names[base] = load_policies(workspace.root, revision=base).enforcement.repository
    if None in names.values():
        what = "the repository has no name: a signature for it would count in every other one that has none"
        fix = "add `repository: OWNER/NAME`, and merge that first: the base says for which a waiver has to be"
        raise InputError(what, where=ENFORCEMENT_FILE, fix=fix)
    if len(set(names.values())) > 1:
        said = ", ".join(f"{name} by {by}" for by, name in names.items())
        what = f"the repository is called {said}: a signature would count where it was not meant to"
        fix = "sign for none but the repository that the change is proposed to; a new name is merged first"
        raise InputError(what, where=ENFORCEMENT_FILE, fix=fix)
    says, name = list(names.items())[-1]
    if says == "the working tree" or name is None:
        what = (
            f"nobody but the working tree says that this repository is {claimed}, and who proposes the waiver wrote it"
        )
        fix = (
            "set TRTOPS_POLICIES_FROM to the branch that the change is for, such as origin/main; "
            "or give --repository NAME, as you know it"
        )
        raise InputError(what, where=ENFORCEMENT_FILE, fix=fix)
    return name, says


def _base(workspace: Workspace) -> str | None:
    """The revision that judges the change: what the approver set, else the default branch that the clone knows.

    ``trtops.toml`` is not asked: it is the proposer's.
    """
    from trtops.errors import Undecided
    from trtops.workflow.git import Git

    set_here = workspace.resolved.sources["policies_from"].startswith(("flag", "environment"))
    chosen = workspace.resolved.settings.policies_from
    if set_here and chosen is not None:
        return chosen
    try:
        Git(workspace.root).commit(_DEFAULT_BRANCH)
    except Undecided:  # no git, no clone, or one that does not say
        return None
    return _DEFAULT_BRANCH


def _release(workspace: Workspace, what: str) -> tuple[str, Digest]:
    from trtops.workflow.release import channel_of, current, nothing_released

    name, at, text = what.partition("@")
    engine = Path(name).name
    fix = "write ENGINE, or ENGINE@sha256:… with a digest that trtops status or a refused release shows"
    try:
        channel = channel_of(workspace, engine)
    except ValueError:
        raise InputError(f"not the name of an engine: {name[:80]!r}", fix=fix) from None
    if at:
        try:
            return engine, Digest.parse(text)
        except ValueError:
            raise InputError(f"not the digest of a release: {text[:80]!r}", fix=fix) from None
    registry = workspace.registry()
    found = current(workspace, registry, channel)
    if found is None:
        raise nothing_released(workspace, registry, engine)
    return engine, found.binding.engine_release


def signer_of(workspace: Workspace, key: str) -> Signer:
    """The key of a person: a name in this home, or the path of a private key.

    Raises:
        InputError: it is neither.
        StorageError, TrustError: the file cannot be used.
    """
    from trtops.release.keys import signer_at

    path = Path(key).expanduser()
    if path.name != key or key.endswith(".pem"):
        if not path.is_file():
            raise InputError(
                "there is no such private key", where=key, fix="give its path, or a plain name for a new key"
            )
        return signer_at(path)
    if not _NAME.fullmatch(key):
        raise InputError(f"not the name of a key: {key[:80]!r}", fix="take lower case letters, digits and -_.")
    return signer_at(workspace.resolved.home / "keys" / f"approver-{key}.pem")
