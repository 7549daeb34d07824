"""Whether a signed waiver counts: its approver's key, and what the history of the repository says against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtops.policy.governance import WaiverDocument
    from trtops.policy.port import PolicySet
    from trtops.workflow.git import Git


@dataclass(frozen=True)
class Past:
    """The history of what is judged.

    Attributes:
        git: of the repository.
        base: commit that the policies are of.
    """

    git: Git
    base: str

    def authors(self) -> tuple[str, ...] | None:
        """Who wrote the change: addresses in its commits, as git knows them; None where git cannot tell.

        Commits that only bring waivers are left out: whoever signs one may well commit it.
        """
        elsewhere = (".", ":(exclude)governance/waivers")
        told = self.git.ask("log", "--no-merges", "--format=%ae", f"{self.base}..HEAD", "--", *elsewhere)
        return None if told is None else tuple(dict.fromkeys(told.decode("utf-8", "replace").split()))

    def taken_away(self, signature: str) -> str | None:
        """The commit by which a signature that once was merged went out of the base again; None if it never was there.

        Asked of signatures that the base does not have: each is in two commits of its history, or in none.
        """
        found = self.git.ask(
            *("-c", "log.showRoot=true", "log", "-1", "--format=%h", "--first-parent", "-m", "--text", "--no-textconv"),
            *(f"-S{signature}", self.base, "--", "governance/waivers"),
        )
        return found.decode().strip() if found else None

    def whole(self) -> bool:
        """Whether all of the history is here: a shallow clone has forgotten what was taken away."""
        return (self.git.ask("rev-parse", "--is-shallow-repository") or b"").strip() == b"false"


def refusal(policies: PolicySet, past: Past | None, waiver: WaiverDocument) -> str | None:
    """Why a signed waiver does not count; None where it does.

    Args:
        policies: what judges: whose key counts is said by them.
        past: history that the waiver is held against; None where the policies are the working tree's.
        waiver: the document.
    """
    from trtops.policy.governance import same_person
    from trtops.release.root import PublicKey
    from trtops.release.waivers import APPROVALS, names_of
    from trtops.release.waivers import refusal as unsigned

    approvals = policies.data.get(APPROVALS, {})
    reason = unsigned(waiver, approvals, policies.enforcement.repository)
    if reason is not None or past is None or waiver.signature is None:
        return reason
    if not past.whole():
        return "the clone is shallow: whether it was taken away before cannot be told (fetch the history in full)"
    commit = past.taken_away(waiver.signature.value)
    if commit is not None:
        return f"it was merged once and taken away again by {commit}: have it granted and signed anew"
    authors = past.authors()
    if authors is None:
        return "git cannot tell who wrote the change"
    signers = names_of(PublicKey(public=waiver.signature.public).key_id, approvals)
    own = next((author for author in authors for signer in signers if same_person(author, signer)), None)
    return f"{own} wrote the change and signed it" if own is not None else None
