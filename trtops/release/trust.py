"""What a service believes of a channel: bytes go in, in a fixed order, and only verified documents come out.

The order: root (given by hand, followed by :mod:`.lineage`) -> snapshot of all channels (:mod:`.snapshot`) -> then that
of :class:`TrustedChannel`'s methods: pointer -> engine release -> config release -> provenance, evidence and verdict of
a target -> digest of its artifact. Nothing here reads a file, a clock or the network; who fetches the bytes, and from
whom, makes no difference. The attacks that are named are those of the TUF specification
(https://theupdateframework.github.io/specification/latest/, §1.5.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from trtops.digest import Digest, Value
from trtops.errors import IntegrityError, TrustError, Unavailable
from trtops.evidence import Evidence
from trtops.policy.verdict import Verdict
from trtops.release import contract as contracts
from trtops.release import layout
from trtops.release.documents import (
    Arm,
    Binding,
    Channel,
    ConfigRelease,
    EngineRelease,
    Provenance,
    ReleasedArtifact,
)
from trtops.release.envelope import Signed, verify
from trtops.release.snapshot import check_floor, fresh_until, still_vouched

if TYPE_CHECKING:
    from trtops.release.documents import ChannelSnapshot
    from trtops.release.root import Root

V = TypeVar("V", bound=Value)


class Seen(Value):
    """The highest generation that a service has ever verified in a channel. It keeps this on its disk.

    Attributes:
        channel: whose pointer.
        generation: never goes down.
        binding: digest of the binding of that generation.
        signers: ids of the keys that signed it; empty in files of version 0.1.0.
    """

    channel: Channel
    generation: int
    binding: Digest
    signers: tuple[str, ...] = ()


class TrustedChannel:
    """A channel's documents, each accepted only after the one that vouches for it.

    Calling out of order is a programming error (``RuntimeError``).
    """

    def __init__(
        self,
        root: Root,
        channel: Channel,
        seen: Seen | None = None,
        *,
        accepts: str | None = None,
        snapshot: ChannelSnapshot | None = None,
    ) -> None:
        """Start from what is trusted already.

        Args:
            root: the trusted keys.
            channel: what this service runs.
            seen: what it had verified before, from its disk; None on the first start.
            accepts: interface version that the service's clients were written against; None: any.
            snapshot: of all channels, accepted by :class:`~trtops.release.snapshot.TrustedSnapshot`; None: none to ask.

        Raises:
            ValueError: ``seen`` is of another channel.
        """
        if seen is not None and seen.channel != channel:
            raise ValueError(f"what was seen is of {seen.channel}, not of {channel}")
        self._root = root
        self._accepts = accepts
        self._snapshot = snapshot
        self._binding: Binding | None = None
        self._arm: Arm | None = None
        self._engine: EngineRelease | None = None
        self._config: ConfigRelease | None = None
        self._allowed = False
        self._own = False
        self._proven: dict[str, set[str]] = {}
        self.channel = channel
        # Fast-forward: a stolen channel key counts a generation up to the sky. Once it is revoked, what only it vouched
        # for binds nobody, or no honest pointer could ever follow.
        self.seen = seen if seen is not None and still_vouched(root, "channel", seen.signers) else None

    def __repr__(self) -> str:
        """Show how far it has come."""
        parts = [("pointer", self._binding), ("engine", self._engine), ("config", self._config)]
        done = [name for name, value in parts if value is not None]
        seen = self.seen.generation if self.seen else 0
        return f"TrustedChannel({self.channel}, seen={seen}, verified={done}, targets={sorted(self._proven)})"

    @property
    def binding(self) -> Binding:
        """The binding that was accepted last."""
        return _in_order(self._binding, "update_pointer")

    @property
    def arm(self) -> Arm:
        """The arm of the binding whose documents are accepted: the stable one, unless :meth:`beside` chose another."""
        return _in_order(self._arm, "update_pointer")

    @property
    def engine_release(self) -> EngineRelease:
        """The engine release that the arm (by default the stable one) names."""
        return _in_order(self._engine, "update_engine_release")

    @property
    def config_release(self) -> ConfigRelease:
        """The config release that the arm names."""
        return _in_order(self._config, "update_config_release")

    def beside(self, arm: Arm) -> TrustedChannel:
        """For the documents of another arm of the pointer that was accepted: the candidate of a rollout.

        Args:
            arm: one of ``binding.arms``.

        Raises:
            ValueError: the pointer has no such arm.
        """
        if arm not in self.binding.arms:
            raise ValueError(f"the pointer of {self.channel} names no such arm as {arm.channel}")
        other = TrustedChannel(self._root, self.channel, self.seen, accepts=self._accepts, snapshot=self._snapshot)
        other._binding, other._arm, other._own = self.binding, arm, self._own
        return other

    def update_pointer(self, body: bytes | None, now: int) -> Binding:
        """Accept the channel's pointer. A refusal changes nothing but, where noted, :attr:`seen`.

        Args:
            body: the pointer's bytes; None: the registry has none.
            now: epoch seconds; 0 for the pointer of the service's own snapshot, whose expiry must not cause an outage.

        Raises:
            TrustError: a forged, misplaced or older pointer (whoever can write to the registry).
            Unavailable: no pointer, an expired one, or an expired root: the same as a registry that is away. What runs
                keeps serving (the publisher, or whoever deleted it).
        """
        where = layout.pointer(self.channel)
        if body is None:
            # Deletion must not be stronger than cutting the network: it means "registry away", never "stop".
            what = f"nothing was released to {self.channel}" if self.seen is None else "the channel's pointer is gone"
            raise Unavailable(what, where=where, fix="publish with trtops release")
        if self._root.expires is not None and now >= self._root.expires:
            # Key compromise: keys that were replaced long ago must not vouch for ever.
            raise Unavailable("the root of trust has expired", where=where, fix="hand this machine the new root.json")
        # Arbitrary software: nothing unsigned, and no unknown key, gets past this line. Key compromise: fewer keys
        # than the threshold are not enough. Endless data: the envelope's size is bounded before it is parsed.
        signed = verify(body, Binding, self._root, where=where)
        self._check_place(signed, where)
        self._check_generation(signed, where)
        if self._snapshot is not None:
            check_floor(self._snapshot, signed.value, signed.digest, where)
        self.seen = Seen(
            channel=self.channel, generation=signed.value.generation, binding=signed.digest, signers=signed.key_ids
        )
        expires = fresh_until(self._snapshot, signed.value, signed.digest)
        if expires is not None and now >= expires:
            # Freeze: an old pointer that somebody holds up is noticed. Its generation counts as seen all the same.
            what = f"generation {signed.value.generation} of the pointer has expired"
            raise Unavailable(what, where=where, fix="run trtops registry refresh, and look why nobody did")
        self._binding, self._engine, self._config, self._proven = signed.value, None, None, {}
        self._arm, self._allowed, self._own = signed.value.arms[0], False, now == 0
        return signed.value

    def update_engine_release(self, body: bytes | None) -> EngineRelease:
        """Accept the engine release that the pointer names.

        Raises:
            TrustError: another release, unsigned, or one with an interface that this service does not take (the
                publisher, or whoever can write to the registry).
            Unavailable: it is not there.
        """
        arm = self.arm
        where = layout.engine_release(self.channel.engine, arm.engine_release)
        signed = self._vouched(body, EngineRelease, arm.engine_release, where)
        if signed.value.engine != self.channel.engine:
            # Wrong software: a genuine release of another engine.
            raise TrustError(f"this is a release of {signed.value.engine}, not of {self.channel.engine}", where=where)
        version = signed.value.contract.version
        if self._accepts is not None and not contracts.accepts(self._accepts, version):
            what = f"interface {version} of {self.channel.engine} does not serve clients of {self._accepts}"
            raise TrustError(what, where=where, fix="release the service for the new interface first")
        self._engine = signed.value
        return signed.value

    def update_config_release(self, body: bytes | None) -> ConfigRelease:
        """Accept the config release that the pointer names.

        Raises:
            TrustError: another release, unsigned, or of another engine or environment (the publisher, or whoever can
                write to the registry).
            Unavailable: it is not there.
        """
        arm = self.arm
        where = layout.config_release(self.channel.engine, arm.config_release)
        signed = self._vouched(body, ConfigRelease, arm.config_release, where)
        found = (signed.value.engine, signed.value.environment)
        if found != (self.channel.engine, self.channel.environment):
            # Wrong software: a genuine config of another place, with its limits and its databases.
            raise TrustError(f"this is a config of {found[0]} in {found[1]}, not of {self.channel}", where=where)
        self._config = signed.value
        return signed.value

    def update_spec_verdict(self, body: bytes | None) -> Verdict | None:
        """Accept what policies said of the spec that the engine release was built from.

        Returns:
            the verdict; None where a service's own disk has none, which a version wrote that did not ask for it.

        Raises:
            TrustError: unsigned, of another stage, or a denial (the publisher, or whoever can write to the registry).
            Unavailable: it is not there.
        """
        digest = self.engine_release.spec_verdict
        where = layout.verdict(digest)
        if body is None and self._own:
            self._allowed = True
            return None
        verdict = self._vouched(body, Verdict, digest, where).value
        if verdict.stage != "spec" or verdict.decision == "deny" or not verdict.rules:
            raise TrustError("the verdict does not let the spec through", where=where)
        self._allowed = True
        return verdict

    def update_provenance(self, target: str, body: bytes | None) -> Provenance:
        """Accept what the builder says of a target's artifact.

        Raises:
            TrustError: unsigned, of another artifact, or the release names none (the publisher, or whoever can write
                to the registry).
            Unavailable: it is not there.
        """
        artifact = self._artifact(target)
        if artifact.provenance is None:
            # Arbitrary software: loading an engine runs its code, and a release key alone does not vouch for code.
            raise TrustError(f"the release names no provenance of {target}", where=self.channel.engine)
        where = layout.provenance(artifact.provenance)
        signed = self._vouched(body, Provenance, artifact.provenance, where)
        proof, sidecar = signed.value, artifact.sidecar
        if proof.builder not in signed.key_ids:
            raise TrustError("the provenance names a builder that did not sign it", where=where)
        found = (proof.engine, proof.target, proof.artifact, proof.sidecar, proof.model, proof.plan)
        wanted = (self.channel.engine, target, sidecar.artifact, sidecar.digest(), sidecar.model, sidecar.plan)
        if found != wanted:
            # Mix and match: a builder's word for one engine is not taken for another, or for another sidecar.
            raise TrustError(f"the provenance is of another build than {target} of this release", where=where)
        self._proven.setdefault(target, set()).add("provenance")
        return proof

    def update_evidence(self, target: str, body: bytes | None) -> Evidence:
        """Accept the evidence of a target's artifact.

        Raises:
            TrustError: unsigned, of another artifact, or of one that was not verified (the publisher, or whoever can
                write to the registry).
            Unavailable: it is not there.
        """
        artifact = self._artifact(target)
        where = layout.evidence(artifact.evidence)
        evidence = self._vouched(body, Evidence, artifact.evidence, where).value
        found = (evidence.engine, evidence.target.id, evidence.artifact, evidence.spec)
        if found != (self.channel.engine, target, artifact.sidecar.artifact, self.engine_release.spec):
            # Mix and match: good numbers of another engine.
            raise TrustError(f"the evidence is of another build than {target} of this release", where=where)
        if evidence.accuracy is None or not evidence.accuracy.passed:
            raise TrustError(f"the evidence says that {target} was not verified", where=where)
        self._proven.setdefault(target, set()).add("evidence")
        return evidence

    def update_verdict(self, target: str, body: bytes | None) -> Verdict:
        """Accept the verdict that let a target through.

        Raises:
            TrustError: unsigned, of another stage, or a denial (the publisher, or whoever can write to the registry).
            Unavailable: it is not there.
        """
        artifact = self._artifact(target)
        where = layout.verdict(artifact.verdict)
        verdict = self._vouched(body, Verdict, artifact.verdict, where).value
        if verdict.stage != "evidence" or verdict.decision == "deny" or not verdict.rules:
            raise TrustError(f"the verdict on {target} does not let it through", where=where)
        self._proven.setdefault(target, set()).add("verdict")
        return verdict

    def accept_artifact(self, target: str, digest: Digest, size_bytes: int) -> ReleasedArtifact:
        """Accept an artifact by what was computed from its bytes. Only then may they be given to a backend.

        Raises:
            IntegrityError: the bytes are others than those that were released (the store).
            RuntimeError: provenance, evidence and verdict of the target, or the spec's verdict, were not accepted
                before.
        """
        artifact = self._artifact(target)
        proven = self._proven.get(target, set()) | ({"verdict on the spec"} if self._allowed else set())
        if missing := {"provenance", "evidence", "verdict", "verdict on the spec"} - proven:
            raise RuntimeError(f"{', '.join(sorted(missing))} of {target} must be accepted first")
        if digest != artifact.sidecar.artifact or size_bytes != artifact.sidecar.size_bytes:
            # Arbitrary software: whoever can write to the store cannot swap an engine.
            what = f"the artifact of {target} is {digest.short} with {size_bytes} bytes, released was "
            raise IntegrityError(
                f"{what}{artifact.sidecar.artifact.short} with {artifact.sidecar.size_bytes}",
                where=str(self.channel),
                fix="remove it from the store and fetch or build it again",
            )
        return artifact

    def _check_place(self, signed: Signed[Binding], where: str) -> None:
        binding = signed.value
        if binding.where != self.channel:
            # Wrong software: a genuine pointer of another engine, environment or channel.
            raise TrustError(f"this pointer is of {binding.where}, not of {self.channel}", where=where)
        if binding.actor not in signed.key_ids:
            # Attribution: nobody moves a channel in another's name.
            raise TrustError("the pointer names an actor that did not sign it", where=where)

    def _check_generation(self, signed: Signed[Binding], where: str) -> None:
        if self.seen is None:
            return
        have, known = signed.value.generation, self.seen.generation
        if have < known:
            # Rollback: an older pointer, genuine as it is, brings back what was replaced for a reason.
            raise TrustError(f"the pointer goes back to generation {have}; {known} was seen here", where=where)
        if have == known and signed.digest != self.seen.binding:
            # Fork: two pointers of one generation, so that services run different things and none can tell.
            raise TrustError(f"another pointer of generation {have} was seen here", where=where)

    def _vouched(self, body: bytes | None, kind: type[V], digest: Digest, where: str) -> Signed[V]:
        if body is None:
            raise Unavailable("the document is not in the registry", where=where, fix="publish the release again")
        signed = verify(body, kind, self._root, where=where)
        if signed.digest != digest:
            # Mix and match: genuine documents of different releases do not go together.
            raise TrustError(f"the document is {signed.digest.short}, expected {digest.short}", where=where)
        return signed

    def _artifact(self, target: str) -> ReleasedArtifact:
        artifact = self.engine_release.artifact(target)
        if artifact is None:
            raise KeyError(target)
        return artifact


def _in_order(value: V | None, step: str) -> V:
    if value is None:
        raise RuntimeError(f"{step} must have accepted a document first")
    return value
