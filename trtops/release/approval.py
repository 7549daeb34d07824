"""Approvals: somebody's signature over the digest of one engine release. Whose key counts is for policies to say.

An approval carries its public key. That proves nothing but that its holder signed: the id of a key is the digest of the
key, and policies name ids (``policies/data/approvals.yaml``). A release is approved as a whole: its digest changes
with anything in it, and the approvals of the digest before are void.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from trtops.digest import Digest, Value
from trtops.errors import Conflict, TrustError
from trtops.release import layout
from trtops.release.envelope import STATEMENT_TYPE, Statement, sign_statement, verify_payload
from trtops.release.root import PublicKey
from trtops.spec.engine import Name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtops.release.fetch import Documents
    from trtops.release.keys import Signer

PREDICATE = "https://github.com/trtops/trtops/predicates/approval/v1"
MAX_APPROVALS = 64
"""Of one release that are read: whoever can write to a registry must not keep a gate busy for ever."""


class Approval(Value):
    """One person's consent to one engine release.

    Attributes:
        engine: name of the engine.
        release: digest of the engine release.
        key: whose signature it is.
        created: epoch seconds.
    """

    apiVersion: Literal["trtops/v1"] = "trtops/v1"  # noqa: N815 - the field's name in every document of this kind
    kind: Literal["Approval"] = "Approval"
    engine: Name
    release: Digest
    key: PublicKey
    created: int


def approve(registry: Documents, signer: Signer, engine: str, release: Digest, *, now: int) -> bool:
    """Publish an approval.

    Args:
        registry: where the release's gates will look: of the environment that it is in, or that it goes to.
        signer: who approves.
        engine: name of the engine.
        release: digest of the engine release, which the caller has looked at.
        now: epoch seconds.

    Returns:
        True if it is new or renewed.

    Raises:
        Conflict: somebody else writes the very same approval now.
        StorageError, Unavailable: the registry.
    """
    approval = Approval(engine=engine, release=release, key=signer.public, created=now)
    name = layout.approval(engine, release, signer.key_id)
    before = registry.read(name)
    body = sign_statement(approval, PREDICATE, [signer])
    if before == body:
        return False
    try:
        registry.swap(name, body, before)
    except Conflict:
        raise Conflict("the approval was written at the same time elsewhere", where=name, fix="look again") from None
    return True


def approvals(registries: Iterable[Documents], engine: str, release: Digest) -> tuple[dict[str, Any], ...]:
    """What policies are told of the approvals of a release: ``{key, valid, over, created}`` each, sorted by key.

    One that was tampered with, or lies in another's place, is told as not valid: it counts for nobody, hides nothing.
    Of one key's in several registries the newest that holds counts.

    Raises:
        Unavailable: a registry is away.
    """
    found: dict[str, dict[str, Any]] = {}
    for registry in registries:
        for name in registry.names(layout.approvals(engine, release))[:MAX_APPROVALS]:
            body = registry.read(name)
            if body is None:
                continue
            fact = _fact(body, name, engine)
            known = found.get(fact["key"])
            if known is None or (fact["valid"], fact["created"]) > (known["valid"], known["created"]):
                found[fact["key"]] = fact
    return tuple(found[key] for key in sorted(found))


def read_approval(body: bytes, *, where: str) -> Approval:
    """The approval in an envelope, its signature verified by the key that it names.

    Raises:
        TrustError: it is malformed, or the signature does not hold (whoever can write to the registry).
    """
    claimed = _claimed(body, where)
    payload, _ = verify_payload(body, [claimed.key], 1, role="approver", where=where)
    # What was verified is what counts, not what was read to learn whose key to verify it by.
    verified = _parse(payload, where)
    if verified != claimed:
        raise TrustError("the envelope says two things", where=where)
    return verified


def _fact(body: bytes, name: str, engine: str) -> dict[str, Any]:
    key_id = name.rpartition("/")[2]
    try:
        approval = read_approval(body, where=name)
    except TrustError:
        return {"key": key_id, "valid": False, "over": "", "created": 0}
    # An approval of another engine, or moved to another key's or release's place, approves nothing here.
    valid = approval.engine == engine and name == layout.approval(engine, approval.release, approval.key.key_id)
    return {"key": key_id, "valid": valid, "over": str(approval.release), "created": approval.created}


def _claimed(body: bytes, where: str) -> Approval:
    import base64
    import binascii

    try:
        envelope = json.loads(body)
        payload = base64.b64decode(envelope["payload"], validate=True)
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        raise TrustError("not a DSSE envelope", where=where) from None
    return _parse(payload, where)


def _parse(payload: bytes, where: str) -> Approval:
    try:
        statement = Statement.model_validate_json(payload)
        approval = Approval.model_validate_json(json.dumps(statement.predicate))
    except ValidationError as error:
        raise TrustError(f"not an approval: {error.errors(include_url=False)[0]['msg']}", where=where) from None
    subject = statement.subject[0].digest
    if statement.predicateType != PREDICATE or statement.type != STATEMENT_TYPE:
        raise TrustError(f"expected an approval, found {statement.predicateType[:200]}", where=where)
    if subject != {"sha256": approval.digest().value}:
        raise TrustError("the statement is about another document than the one it carries", where=where)
    return approval
