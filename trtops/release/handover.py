"""What one machine hands to another that releases: an engine that it built, verified and measured, signed by a builder.

A release for two GPU models needs two machines, and keys that sign releases belong on neither. Each builder signs what
it built and what it found of it; whoever releases takes both by the builder's signature, and no more by it than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError

from trtops.backend.port import Sidecar
from trtops.digest import Digest, Value
from trtops.errors import InputError, TrustError
from trtops.evidence import Evidence
from trtops.release.documents import Provenance
from trtops.release.envelope import MAX_ENVELOPE_BYTES, sign, verify
from trtops.spec.engine import Name

if TYPE_CHECKING:
    from trtops.release.keys import Signer
    from trtops.release.root import Root

MAX_BYTES = 1 << 20
Envelope = Annotated[str, Field(max_length=MAX_ENVELOPE_BYTES)]


class Handover(Value):
    """One target of an engine.

    Attributes:
        engine: its name.
        target: id of the target.
        spec: digest of the engine spec by which it was built and measured.
        sidecar: what has to be known of the artifact; the provenance names its digest.
        provenance, evidence: DSSE envelopes, signed by a builder key.
    """

    apiVersion: Literal["trtops/v1"] = "trtops/v1"  # noqa: N815 - the field's name in every document
    kind: Literal["Handover"] = "Handover"
    engine: Name
    target: str
    spec: Digest
    sidecar: Sidecar
    provenance: Envelope
    evidence: Envelope

    @property
    def key(self) -> str:
        """Under which a store keeps it: one for each target of each spec."""
        return key_of(self.engine, self.target, self.spec)


@dataclass(frozen=True, slots=True)
class Taken:
    """A handover that was verified.

    Attributes:
        sidecar: of the artifact.
        provenance, evidence: the builder's words; ``envelopes`` by digest, as they were signed.
    """

    sidecar: Sidecar
    provenance: Provenance
    evidence: Evidence
    envelopes: dict[Digest, bytes]


def key_of(engine: str, target: str, spec: Digest) -> str:
    """Under which a store keeps the handover of a target."""
    return f"{engine}.{target}.{spec.value}"


def handover(sidecar: Sidecar, provenance: bytes, evidence: Evidence, signer: Signer) -> Handover:
    """Put together what a builder hands on.

    Args:
        sidecar: of the engine.
        provenance: its envelope, signed by a builder key.
        evidence: what was found of it here.
        signer: the builder key of this machine, which vouches for the evidence.
    """
    return Handover(
        engine=evidence.engine,
        target=sidecar.target.id,
        spec=evidence.spec,
        sidecar=sidecar,
        provenance=provenance.decode("ascii"),
        evidence=sign(evidence, [signer]).decode("ascii"),
    )


def parsed(body: bytes, where: str) -> Handover:
    """Read a handover; nothing of it is believed yet.

    Raises:
        InputError: it is none.
    """
    fix = "export it again: trtops artifact export"
    if len(body) > MAX_BYTES:
        raise InputError(f"this is no handover: it has more than {MAX_BYTES} bytes", where=where, fix=fix)
    try:
        return Handover.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(str(part) for part in first["loc"])[:200]
        raise InputError(f"this is no handover: {at}: {first['msg']}", where=where, fix=fix) from None


def taken(found: Handover, root: Root, where: str) -> Taken:
    """Verify a handover: builders whom the root trusts vouch for the engine, and for what was found of it.

    Raises:
        TrustError: forged, or parts of it are of different engines, specs or builds (whoever could write to where it
            was). ``Revoked`` where a builder's key was.
    """
    built = verify(found.provenance.encode(), Provenance, root, where=where)
    measured = verify(found.evidence.encode(), Evidence, root, where=where)
    proof, evidence, sidecar = built.value, measured.value, found.sidecar
    if proof.builder not in built.key_ids:
        raise TrustError("the provenance names a builder that did not sign it", where=where)
    said = (proof.engine, proof.target, proof.artifact, proof.sidecar, proof.model, proof.plan)
    meant = (found.engine, found.target, sidecar.artifact, sidecar.digest(), sidecar.model, sidecar.plan)
    if said != meant or sidecar.target.id != found.target:
        # Mix and match: a builder's word for one engine is not taken for another, or for another sidecar.
        raise TrustError("the provenance is of another build than it is handed over with", where=where)
    said_of = (evidence.engine, evidence.target.id, evidence.spec, evidence.artifact, evidence.plan, evidence.model)
    meant_of = (found.engine, found.target, found.spec, sidecar.artifact, sidecar.plan, sidecar.model)
    if said_of != meant_of:
        # Mix and match: good numbers of another engine, or by another spec.
        raise TrustError("the evidence is of another build than it is handed over with", where=where)
    envelopes = {built.digest: found.provenance.encode(), measured.digest: found.evidence.encode()}
    return Taken(sidecar, proof, evidence, envelopes)
