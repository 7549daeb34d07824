"""DSSE envelopes around in-toto statements: how every signed document looks.

Formats: https://github.com/secure-systems-lab/dsse (protocol v1) and
https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md. Signing, the pre-authentication encoding and
verification are those of the library ``securesystemslib``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trtops.digest import Digest, Value, canonical
from trtops.errors import InputError, Revoked, TrustError
from trtops.evidence import Evidence
from trtops.policy.verdict import Verdict
from trtops.release.documents import (
    Binding,
    ChannelSnapshot,
    ConfigRelease,
    EngineRelease,
    Envelope,
    Provenance,
    SealedSecret,
)
from trtops.release.root import Root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from securesystemslib.dsse import Envelope as Dsse

    from trtops.release.keys import Signer
    from trtops.release.root import PublicKey, Role

M = TypeVar("M", bound=BaseModel)
V = TypeVar("V", bound=Value)

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
MAX_ENVELOPE_BYTES = 100_000
MAX_SIGNATURES = 16

_PREDICATES = "https://github.com/trtops/trtops/predicates"
_KINDS: dict[type[Value], tuple[str, Role]] = {
    EngineRelease: (f"{_PREDICATES}/engine-release/v1", "release"),
    ConfigRelease: (f"{_PREDICATES}/config-release/v1", "release"),
    Binding: (f"{_PREDICATES}/binding/v1", "channel"),
    Provenance: (f"{_PREDICATES}/provenance/v1", "builder"),
    Evidence: (f"{_PREDICATES}/evidence/v1", "builder"),
    Verdict: (f"{_PREDICATES}/verdict/v1", "release"),
    SealedSecret: (f"{_PREDICATES}/sealed-secret/v1", "release"),
    ChannelSnapshot: (f"{_PREDICATES}/channel-snapshot/v1", "refresh"),
    Root: (f"{_PREDICATES}/root/v1", "root"),
}


class Subject(BaseModel):
    """What a statement is about: a name and its digest by algorithm."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    digest: dict[str, str]


class Statement(BaseModel):
    """An in-toto statement, version 1, about one subject."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: Annotated[tuple[Subject, ...], Field(min_length=1, max_length=1)]
    predicateType: str  # noqa: N815 - the format's own name
    predicate: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Signed(Generic[V]):
    """A document whose signatures hold.

    Attributes:
        value: the document.
        digest: its digest, which is how other documents name it. Signatures are no part of it.
        key_ids: every key of the role whose signature holds, sorted.
    """

    value: V
    digest: Digest
    key_ids: tuple[str, ...]


def role_of(kind: type[Value]) -> Role:
    """The role that signs documents of a kind.

    Raises:
        KeyError: this kind is never signed.
    """
    return _KINDS[kind][1]


def sign(value: Value, signers: Sequence[Signer]) -> bytes:
    """Sign a document: the bytes of its envelope. Equal inputs give equal bytes (ed25519 is deterministic).

    Raises:
        KeyError: documents of this type are never signed.
        InputError: the envelope would be larger than :data:`MAX_ENVELOPE_BYTES`.
    """
    return sign_statement(value, _KINDS[type(value)][0], signers)


def sign_statement(value: Value, predicate_type: str, signers: Sequence[Signer]) -> bytes:
    """Sign a document of a type whose signers no role of the root names.

    Raises:
        InputError: the envelope would be larger than :data:`MAX_ENVELOPE_BYTES`.
    """
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": type(value).__name__, "digest": {"sha256": value.digest().value}}],
        "predicateType": predicate_type,
        "predicate": value.model_dump(mode="json"),
    }
    return sign_payload(canonical(statement), signers)


def sign_payload(payload: bytes, signers: Sequence[Signer]) -> bytes:
    """Sign bytes of the type :data:`PAYLOAD_TYPE`.

    Raises:
        InputError: the envelope would be larger than :data:`MAX_ENVELOPE_BYTES`.
        ValueError: no signer.
    """
    from securesystemslib.dsse import Envelope as Dsse

    if not signers:
        raise ValueError("an envelope needs a signer")
    envelope = Dsse(payload, PAYLOAD_TYPE, {})
    for signer in signers:
        envelope.sign(signer.dsse)
    return _bounded(canonical(envelope.to_dict()))


def _bounded(body: bytes) -> bytes:
    if len(body) > MAX_ENVELOPE_BYTES:
        what = f"the signed document has {len(body)} bytes, and {MAX_ENVELOPE_BYTES} are allowed"
        raise InputError(what, fix="release fewer targets, batch sizes or config sections in one document")
    return body


def verify(body: bytes, kind: type[V], root: Root, *, where: str | None = None) -> Signed[V]:
    """Check the signatures of a document by the keys that the root trusts for its kind, then read it.

    Args:
        body: the envelope's bytes, as they came.
        kind: what it has to be.
        root: the trusted keys.
        where: name of the document, for messages.

    Raises:
        Revoked: nobody signed it but keys that were revoked (whoever holds one of them, or the publisher).
        TrustError: too large, malformed, of another kind, or too few trusted keys signed it (the publisher, or whoever
            can write to the registry).
    """
    _, role = _KINDS[kind]
    keys, threshold = root.members(role)
    try:
        payload, key_ids = verify_payload(body, keys, threshold, role=role, where=where)
    except TrustError:
        _refuse_revoked(body, root, where)
        raise
    signed = _read(payload, kind, key_ids, where)
    if isinstance(signed.value, EngineRelease):
        _check_tier(signed.value, key_ids, root, where)
    return signed


def read_unverified(body: bytes, kind: type[V], *, where: str | None = None) -> Signed[V]:
    """Read a document whose digest somebody else vouches for: a later link of its chain. No signature is looked at.

    Raises:
        TrustError: too large, malformed, or of another kind.
    """
    return _read(_open(body, where).payload, kind, (), where)


def cosign(body: bytes, more: Sequence[Signer], other: bytes | None = None) -> bytes:
    """Add signatures to an envelope, of signers and of another envelope around the very same payload.

    Raises:
        InputError: the envelope would be larger than :data:`MAX_ENVELOPE_BYTES`.
        TrustError: one of them is malformed, or ``other`` holds another payload.
    """
    envelope = _open(body, None)
    if other is not None:
        there = _open(other, None)
        if there.payload != envelope.payload:
            raise TrustError("signatures of another document cannot be added")
        envelope.signatures.update(there.signatures)
    for signer in more:
        envelope.sign(signer.dsse)
    return _bounded(canonical(envelope.to_dict()))


def signers_of(body: bytes, kind: type[Value], root: Root) -> tuple[str, ...]:
    """Ids of the role's keys whose signature on an envelope holds, however few; none where it is malformed."""
    keys, _ = root.members(role_of(kind))
    try:
        return verify_payload(body, keys, 0)[1]
    except TrustError:
        return ()


def _check_tier(release: EngineRelease, key_ids: Sequence[str], root: Root, where: str | None) -> None:
    needed = root.signatures_on(release.engine, release.tier)
    if len(key_ids) < needed:
        # Key compromise: one stolen release key is not enough for what matters most.
        raise TrustError(
            f"{len(key_ids)} of the {needed} release keys that it takes have signed this release of {release.engine} "
            f"(tier {release.tier})",
            where=where,
            fix="a holder of another release key signs it: "
            f"trtops trust sign {release.engine}@{release.digest()} --as KEY",
        )


def _refuse_revoked(body: bytes, root: Root, where: str | None) -> None:
    """Tell a signature that does not count any more from one that never did."""
    try:
        _, found = verify_payload(body, tuple(root.revoked.values()), 1)
    except TrustError:
        return
    what = f"signed by key {found[0][:12]}, which was revoked (root version {root.version})"
    raise Revoked(what, where=where, fix="publish it again with a key that is trusted: trtops trust show") from None


def _read(payload: bytes, kind: type[V], key_ids: tuple[str, ...], where: str | None) -> Signed[V]:
    predicate_type, _ = _KINDS[kind]
    statement = _parse(Statement, payload, "in-toto statement", where)
    if statement.predicateType != predicate_type:
        # Mixing kinds: a document that is signed for one purpose is not taken for another.
        what = f"expected a document of type {predicate_type}, found {statement.predicateType[:200]}"
        raise TrustError(what, where=where)
    value = _parse(kind, _canonical(statement.predicate, where), kind.__name__, where)
    digest = value.digest()
    if statement.subject[0].digest != {"sha256": digest.value}:
        # The subject is what other documents and approvals name: it has to be this very content.
        raise TrustError("the statement is about another document than the one it carries", where=where)
    return Signed(value, digest, key_ids)


def _canonical(predicate: dict[str, Any], where: str | None) -> bytes:
    try:
        return canonical(predicate)
    except (ValueError, RecursionError) as error:  # a number beyond 2^53 - 1, a lone surrogate: no document of ours
        raise TrustError(f"the document has no canonical form: {str(error)[:200]}", where=where) from None


def verify_payload(
    body: bytes, keys: Sequence[PublicKey], threshold: int, *, role: str = "trusted", where: str | None = None
) -> tuple[bytes, tuple[str, ...]]:
    """Check an envelope: its payload, and the ids of all keys whose signature holds, sorted.

    A key counts once, however often it signed.

    Raises:
        TrustError: too large, malformed, of another payload type, or fewer than ``threshold`` of ``keys`` signed it.
    """
    envelope = _open(body, where)
    accepted = sorted({key.key_id for key in keys if _holds(envelope, key)})
    if len(accepted) < threshold:
        raise TrustError(
            f"{len(accepted)} of the {len(keys)} {role} keys that are trusted here signed this document, "
            f"and it takes {threshold}; it names {_named(envelope)}",
            where=where,
            fix="publish it with a trusted key, or hand the root.json of its publisher to this machine if you trust it",
        )
    return envelope.payload, tuple(accepted)


def _open(body: bytes, where: str | None) -> Dsse:
    from securesystemslib.dsse import Envelope as Dsse
    from securesystemslib.exceptions import FormatError

    if len(body) > MAX_ENVELOPE_BYTES:
        # Endless data: nothing is parsed that is larger than any document of ours.
        raise TrustError(f"the document has more than {MAX_ENVELOPE_BYTES} bytes", where=where)
    parsed = _parse(Envelope, body, "DSSE envelope", where)
    if parsed.payloadType != PAYLOAD_TYPE:
        raise TrustError(f"unknown payload type {parsed.payloadType[:200]!r}", where=where)
    if len(parsed.signatures) > MAX_SIGNATURES:
        raise TrustError(f"the envelope has more than {MAX_SIGNATURES} signatures", where=where)
    try:
        # securesystemslib refuses two signatures under one key id, so that none can be counted twice.
        return Dsse.from_dict(parsed.model_dump(mode="json"))
    except (FormatError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrustError(f"malformed signature or payload in the envelope: {str(error)[:200]}", where=where) from None


def _holds(envelope: Dsse, key: PublicKey) -> bool:
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined] # exported, but not by __all__

    library_key = SSlibKey(key.key_id, key.keytype, key.scheme, {"public": key.public})
    try:
        envelope.verify([library_key], 1)
    except VerificationError:
        return False
    return True


def _named(envelope: Dsse) -> str:
    return ", ".join(f"{str(key_id)[:12]!r}" for key_id in envelope.signatures)


def _parse(kind: type[M], data: bytes, name: str, where: str | None) -> M:
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(str(part)[:80] for part in first["loc"])
        newer = first["type"] == "extra_forbidden"
        fix = (
            "update trtops here if a newer one wrote it"
            if newer
            else "the document was damaged or put there by somebody else: release again, or restore it from a copy"
        )
        raise TrustError(f"not a valid {name}: {at + ': ' if at else ''}{first['msg']}", where=where, fix=fix) from None
