"""Signatures of waivers: whose key counts for an approver, and the signing of a waiver's file.

Who approves is data that policies read as well (``policies/data/approvals.yaml``): groups list keys by their id and the
person who holds each. A signature carries its public key, which proves nothing but that its holder signed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trtops.policy.governance import ENFORCEMENT_FILE, WaiverSignature, same_person
from trtops.release.root import PublicKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtops.policy.governance import WaiverDocument
    from trtops.release.keys import Signer

APPROVALS = "approvals"
"""Data file that lists who holds which key, by group."""

_BLOCK = re.compile(r"^signature:.*\n(?:[ \t].*\n|\n(?=[ \t]))*", re.MULTILINE)


def sign_waiver(waiver: WaiverDocument, signer: Signer, repository: str | None) -> WaiverSignature:
    """Sign a waiver by ed25519, as its approver, for one repository. None: as version 0.1 did, for none."""
    signature = signer.dsse.sign(waiver.signed_bytes(repository))
    return WaiverSignature(repository=repository, public=signer.public.public, value=signature.signature)


def with_signature(text: str, signature: WaiverSignature) -> str:
    """The text of a waiver's file with a signature at its end, in place of an older one; all else stays."""
    kept = _BLOCK.sub("", text if text.endswith("\n") else f"{text}\n")
    where = f"  repository: {signature.repository}\n" if signature.repository is not None else ""
    return f"{kept}signature:\n{where}  public: {signature.public}\n  value: {signature.value}\n"


def refusal(waiver: WaiverDocument, approvals: Mapping[str, Any], repository: str | None) -> str | None:
    """Why a signed waiver does not count; None where its approver's key signed it as it stands, for this repository.

    Nobody signs for what they own: not by another key, under another spelling, or as one of the group that owns it.

    Args:
        waiver: the document.
        approvals: the data file ``approvals.yaml`` that judges: of the base revision on a pull request.
        repository: name of the repository that is judged, as the base has it; None: it has none.
    """
    if waiver.signature is None:
        return "it is not signed"
    key, given = PublicKey(public=waiver.signature.public), waiver.signature.repository
    if given != repository:
        # Replay: what was let pass in one repository, under the same names, is signed for no other.
        return _elsewhere(given, repository)
    if not _holds(key, waiver.signature.value, waiver.signed_bytes(given)):
        return "its signature does not hold: it was changed after it was signed"
    if key.key_id not in set(_keys_of(waiver.approver, approvals)):
        return f"the key {key.key_id[:12]} that signed it is none of {waiver.approver} in policies/data/approvals.yaml"
    for name in names_of(key.key_id, approvals):
        if same_person(name, waiver.owner):
            return f"{waiver.owner} owns it and signed it"
    return None


def _elsewhere(given: str | None, repository: str | None) -> str:
    if repository is None:
        return f"it was signed for the repository {given}; {ENFORCEMENT_FILE} that judges names none"
    if given is None:
        return f"it was signed for no repository; it takes a signature for {repository}"
    return f"it was signed for the repository {given}, and this is {repository}"


def names_of(key_id: str, approvals: Mapping[str, Any]) -> tuple[str, ...]:
    """All that a key signs for: whoever holds it, by every name, and the groups that list it."""
    listed = [(group, member["identity"]) for group, member in _members(approvals) if member["key"] == key_id]
    return tuple(dict.fromkeys(name for pair in listed for name in pair))


def _keys_of(approver: str, approvals: Mapping[str, Any]) -> Iterator[str]:
    """Keys of all who may sign as an approver: a person's name, or the name of a group."""
    wanted = approver.strip().casefold()
    for group, member in _members(approvals):
        if wanted in (group.casefold(), member["identity"].strip().casefold()):
            yield member["key"]


def _members(approvals: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for group, members in approvals.get("groups", {}).items():
        for member in members:
            yield group, member


def _holds(key: PublicKey, signature: str, signed: bytes) -> bool:
    from securesystemslib.exceptions import UnverifiedSignatureError
    from securesystemslib.signer import Signature, SSlibKey  # type: ignore[attr-defined] # exported, not by __all__

    library_key = SSlibKey(key.key_id, key.keytype, key.scheme, {"public": key.public})
    try:
        library_key.verify_signature(Signature(key.key_id, signature), signed)
    except UnverifiedSignatureError:
        return False
    return True
