"""What goes on after a key was revoked, without what only that key vouches for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.releases import CHANNEL, NOW, bundle, digest, has_all, runtime, spec
from trtops.errors import InputError, Revoked, TrustError
from trtops.registry.memory import MemoryRegistry
from trtops.release import layout
from trtops.release.documents import Binding, Channel
from trtops.release.envelope import cosign, read_unverified, sign
from trtops.release.fetch import fetch, fetch_proofs
from trtops.release.head import head_of
from trtops.release.history import traced
from trtops.release.impact import hanging
from trtops.release.keys import KeyRing, Signer
from trtops.release.lineage import with_key, without_key
from trtops.release.prune import unreferenced
from trtops.release.publish import publish
from trtops.release.refresh import refresh_snapshot
from trtops.release.rollback import RolledBack, rollback
from trtops.release.root import ALL_ROLES, Role, root_of
from trtops.release.trust import TrustedChannel

if TYPE_CHECKING:
    from trtops.errors import TrtopsError

POINTER = layout.pointer(CHANNEL)


class Scene:
    """A publisher whose keys get stolen, one after the other."""

    def __init__(self) -> None:
        self.signers: dict[Role, Signer] = {role: Signer.generate() for role in ALL_ROLES}
        self.root = root_of({role: signer.public for role, signer in self.signers.items()})
        self.registry = MemoryRegistry()

    @property
    def keys(self) -> KeyRing:
        return KeyRing(dict(self.signers), self.root)

    def release(self, text: str, channel: Channel = CHANNEL) -> None:
        of = spec(metadata={"name": channel.engine, "owner": "team"})
        made = bundle(self.keys, artifact=text, config=runtime(of=text), of=of)
        publish(self.registry, self.keys, channel, made, now=NOW, has_artifact=has_all)

    def stolen(self, role: Role) -> Signer:
        """A key is stolen, a new one takes its place. Gives the thief's."""
        old, new = self.signers[role], Signer.generate()
        self.root = without_key(self.root, old.key_id, instead={role: new.public})
        self.signers[role] = new
        return old

    def rotated(self, role: Role) -> Signer:
        """Another key signs from now on; what the old one signed counts. Gives the old one."""
        old, new = self.signers[role], Signer.generate()
        self.root = with_key(self.root, role, new.public)
        self.signers[role] = new
        return old

    def rollback(self, **how: Any) -> RolledBack:
        return rollback(self.registry, self.keys, CHANNEL, now=NOW, **how)

    def serves(self) -> Binding:
        """What a service takes, down to the proofs."""
        trusted = fetch(TrustedChannel(self.root, CHANNEL), self.registry, NOW)
        fetch_proofs(trusted, self.registry, "onnxruntime")
        return trusted.binding

    def unreferenced(self, *, revoked: bool = False) -> tuple[set[str], tuple[TrustError, ...]]:
        names, problems = unreferenced(self.registry, self.root, "dev", revoked=revoked)
        return set(names), problems


def _words(problems: tuple[TrtopsError, ...] | tuple[TrustError, ...]) -> list[str]:
    return [str(problem.where).rpartition("/")[0] for problem in problems]


@pytest.mark.parametrize("role", ["release", "builder", "channel"])
def test_a_revoked_key_makes_nothing_a_leftover(role: Role) -> None:
    """Of one engine; the other, which was released with the next key, is looked at as ever."""
    scene = Scene()
    scene.release("engine 1")
    scene.stolen(role)
    other = Channel(engine="det", environment="dev")
    scene.release("engine 2", other)
    names, problems = scene.unreferenced()
    assert names == set()
    assert all(isinstance(problem, Revoked) for problem in problems)
    assert bool(problems) == (role != "builder")  # nothing hangs on what a builder signed
    left = layout.evidence(digest("left behind"))
    scene.registry.create(left, b"{}")
    assert scene.unreferenced()[0] == {left}


def test_what_a_release_of_a_revoked_key_names_goes_only_if_that_was_said() -> None:
    scene = Scene()
    scene.release("engine 1")
    before = set(scene.registry.names())
    scene.stolen("release")
    names, problems = scene.unreferenced(revoked=True)
    assert {name.split("/")[0] for name in names} == {"evidence", "provenance", "verdicts"}
    assert _words(problems) == ["engines/cls/releases"]
    for name in names:
        body = scene.registry.read(name)
        assert body is not None
        scene.registry.remove(name, body)
    scene.release("engine 1")  # the very same, signed anew: all of it comes back
    assert before <= set(scene.registry.names())
    assert scene.serves().generation == 2
    assert scene.unreferenced() == (set(), ())


def test_mix_and_match_a_thief_who_points_elsewhere_has_nothing_pruned() -> None:
    """A stolen channel key hides all that was released behind a pointer to something else."""
    scene = Scene()
    scene.release("engine 1")
    scene.release("engine 2")
    honest = set(scene.registry.names())
    pointer = scene.registry.read(POINTER)
    assert pointer is not None
    last = read_unverified(pointer, Binding).value
    thief = scene.stolen("channel")
    elsewhere = last.model_copy(
        update={"generation": 9, "previous": None, "engine_release": digest("x"), "config_release": digest("y"),
                "actor": thief.key_id}
    )  # fmt: skip
    scene.registry.put(POINTER, sign(elsewhere, [thief]))
    names, problems = scene.unreferenced()
    assert not names & honest
    assert {str(problem.where) for problem in problems} >= {POINTER}
    # All bindings were that key's: told to, they lead to nothing, and nothing else of the channel is left.
    assert {name.split("/")[0] for name in scene.unreferenced(revoked=True)[0]} >= {"bindings", "engines", "configs"}


def test_fast_forward_the_floor_that_a_thief_set_stays_to_be_voided() -> None:
    """The snapshot lists a pointer counted up to the sky; only that very document tells that its key was revoked."""
    scene = Scene()
    scene.release("engine 1")
    pointer = scene.registry.read(POINTER)
    assert pointer is not None
    thief = scene.signers["channel"]
    far = read_unverified(pointer, Binding).value.model_copy(update={"generation": 10**9, "previous": None})
    scene.registry.put(layout.binding(CHANNEL, far.digest()), sign(far, [thief]))
    scene.registry.put(POINTER, sign(far, [thief]))
    refresh_snapshot(scene.registry, scene.keys, "dev", now=NOW, lifetime=None)
    scene.stolen("channel")
    names, _ = scene.unreferenced(revoked=True)
    for name in names:
        body = scene.registry.read(name)
        assert body is not None
        scene.registry.remove(name, body)
    assert layout.binding(CHANNEL, far.digest()) in scene.registry.names()
    scene.release("engine 1")
    snapshot, problems = refresh_snapshot(scene.registry, scene.keys, "dev", now=NOW + 1, lifetime=None)
    assert problems == ()
    assert snapshot.channels["cls/stable"].generation == scene.serves().generation < 10**9


def test_a_history_that_trusted_keys_vouch_for_is_kept_whoever_signed_its_links() -> None:
    """The newest binding names the digest of the one before, whose key was revoked."""
    scene = Scene()
    scene.release("engine 1")
    old = scene.rotated("channel")
    scene.release("engine 2")
    scene.root = without_key(scene.root, old.key_id)
    assert scene.unreferenced(revoked=True) == (set(), ())
    scene.registry.put(POINTER, None)  # nor is it, once the pointer is lost
    assert scene.unreferenced(revoked=True)[0] == set()


def _traced(scene: Scene) -> tuple[list[tuple[int, bool]], list[str]]:
    """Generations and whether a revoked key signed them; what is wrong, in words."""
    found = traced(scene.registry, scene.root, CHANNEL)
    generations = [(link.binding.generation, link.revoked is not None) for link in found.links]
    return generations, [problem.what for problem in found.problems]


def test_a_history_is_told_down_to_the_first_with_what_a_revoked_key_signed_marked() -> None:
    scene = Scene()
    scene.release("engine 1")
    first = scene.rotated("channel")
    scene.release("engine 2")
    scene.release("engine 3")
    assert _traced(scene) == ([(3, False), (2, False), (1, False)], [])
    scene.root = without_key(scene.root, first.key_id)
    assert _traced(scene) == ([(3, False), (2, False), (1, True)], []), "the newest vouches for its chain"
    second = scene.rotated("channel")
    scene.root = without_key(scene.root, second.key_id)
    generations, (problem,) = _traced(scene)
    assert generations == [(3, True), (2, True), (1, True)]
    assert f"signed by key {second.key_id[:12]}, which was revoked" in problem
    scene.release("engine 3")  # nothing counts: the chain starts anew
    assert _traced(scene) == ([(1, False)], [])


@pytest.mark.parametrize("previous", [None, digest("never was")])
def test_fast_forward_a_history_shows_the_thief_s_pointer_and_what_still_counts(previous: Any) -> None:
    scene = Scene()
    scene.release("engine 1")
    scene.rotated("channel")
    scene.release("engine 2")
    body = scene.registry.read(POINTER)
    assert body is not None
    thief = scene.rotated("channel")
    far = read_unverified(body, Binding).value.model_copy(update={"generation": 10**9, "previous": previous})
    scene.registry.put(POINTER, sign(far, [thief]))
    scene.root = without_key(scene.root, thief.key_id)
    generations, (_, gap) = _traced(scene)
    assert generations == [(10**9, True), (1, False)]
    assert f"the history of {CHANNEL}" in gap


def test_mix_and_match_a_pointer_of_another_channel_is_no_history_of_this_one() -> None:
    scene = Scene()
    scene.release("engine 1")
    other = Channel(engine="det", environment="dev")
    scene.release("engine 2", other)
    scene.rotated("channel")
    theirs = scene.registry.read(layout.pointer(other))
    assert theirs is not None
    scene.registry.put(POINTER, theirs)
    key = read_unverified(theirs, Binding).value.actor
    scene.root = without_key(scene.root, key)
    generations, (_, misplaced) = _traced(scene)
    assert generations == []
    assert "this binding is of" in misplaced


def test_a_forged_pointer_stops_the_look_as_ever() -> None:
    scene = Scene()
    scene.release("engine 1")
    scene.stolen("channel")
    body = scene.registry.read(POINTER)
    assert body is not None
    scene.registry.put(POINTER, sign(read_unverified(body, Binding).value, [Signer.generate()]))
    with pytest.raises(TrustError) as caught:
        scene.unreferenced()
    assert not isinstance(caught.value, Revoked)


def test_what_a_thief_garbled_stops_the_look() -> None:
    """Nobody knows what it named: it was an honest document once."""
    from trtops.release.envelope import sign_payload

    scene = Scene()
    scene.release("engine 1")
    thief = scene.stolen("channel")
    scene.registry.put(POINTER, sign_payload(b"{}", [thief]))
    with pytest.raises(TrustError, match="not a valid in-toto statement"):
        scene.unreferenced()


def _hanging(scene: Scene, role: Role) -> list[tuple[str, str, int | None, tuple[str, ...]]]:
    key = scene.signers[role].key_id
    new = without_key(scene.root, key, instead={role: Signer.generate().public})
    found = hanging(scene.registry, scene.root, new, "dev")
    return [(one.subject, one.use, one.generation, one.documents) for one in found]


def test_what_hangs_on_a_key_is_told_before_it_is_revoked() -> None:
    scene = Scene()
    scene.release("engine 1")
    scene.rotated("release")
    scene.release("engine 2")
    writes = list(scene.registry.writes)
    assert _hanging(scene, "channel") == [("cls/stable", "runs", 2, ("pointer",))]
    assert _hanging(scene, "builder") == [
        ("cls/stable", "runs", 2, ("evidence", "provenance")),
        ("cls/stable", "kept", 1, ("evidence", "provenance")),
    ]
    # Verdicts of generation 1 were the same, and are not signed again.
    assert _hanging(scene, "release") == [("cls/stable", "runs", 2, ("engine release", "config release"))]
    assert _hanging(scene, "refresh") == []
    assert scene.registry.writes == writes


def test_nothing_hangs_on_a_key_beside_which_another_has_signed() -> None:
    scene = Scene()
    scene.release("engine 1")
    other = Signer.generate()
    scene.root = with_key(scene.root, "release", other.public)
    for name in scene.registry.names():
        body = scene.registry.read(name)
        if body is not None and name.startswith(("engines/", "configs/", "verdicts/")):
            scene.registry.put(name, cosign(body, [other]))
    assert _hanging(scene, "release") == []


def test_what_is_forged_hangs_on_no_key() -> None:
    scene = Scene()
    scene.release("engine 1")
    scene.registry.put(POINTER, b"{}")
    assert _hanging(scene, "channel") == []
    scene.registry.put(layout.SNAPSHOT, b"{}")
    assert _hanging(scene, "refresh") == []


@pytest.mark.parametrize("junk", ["channels/X_/stable", "channels/cls/-", "bindings/X_/stable/sha256-0"])
def test_a_name_that_no_channel_has_stops_no_look(junk: str) -> None:
    """Denial of service: who may write one document must not keep a stolen key from being revoked."""
    scene = Scene()
    scene.release("engine 1")
    scene.registry.put(junk, b"{}")
    assert [one[:2] for one in _hanging(scene, "channel")] == [("cls/stable", "runs")]
    assert scene.unreferenced()[0] <= {junk}
    snapshot, wrong = refresh_snapshot(scene.registry, scene.keys, "dev", now=NOW, lifetime=60)
    assert (list(snapshot.channels), wrong) == (["cls/stable"], ())


def test_rollback_passes_over_a_release_of_a_revoked_key() -> None:
    scene = Scene()
    scene.release("engine 1")
    first = scene.serves()
    scene.rotated("release")
    scene.release("engine 2")
    scene.stolen("release")  # what signed generation 2
    scene.release("engine 3")
    with pytest.raises(Revoked, match="was revoked"):
        scene.rollback(to=2)
    done = scene.rollback()
    assert (done.binding.reason, done.binding.engine_release) == ("rollback to generation 1", first.engine_release)
    assert _words(done.skipped) == ["engines/cls/releases"]
    assert scene.serves() == done.binding


def test_rollback_where_nothing_counts_any_more_says_so_and_moves_nothing() -> None:
    scene = Scene()
    scene.release("engine 1")
    scene.release("engine 2")
    scene.stolen("release")
    before = scene.registry.read(POINTER)
    with pytest.raises(Revoked, match="was revoked"):
        scene.rollback()
    assert scene.registry.read(POINTER) == before


def test_rollback_to_what_no_trusted_builder_built_is_refused() -> None:
    """Every service would refuse it: loading an engine runs its code."""
    scene = Scene()
    scene.release("engine 1")
    scene.stolen("builder")
    scene.release("engine 2")
    with pytest.raises(Revoked, match="was revoked") as caught:
        scene.rollback()
    assert str(caught.value.where).startswith("provenance/")


def test_rollback_from_a_pointer_of_a_revoked_key_brings_back_the_newest_that_counts() -> None:
    scene = Scene()
    scene.release("engine 1")
    scene.release("engine 2")
    pointer = scene.registry.read(POINTER)
    assert pointer is not None
    second = read_unverified(pointer, Binding).value
    thief = Signer.generate()
    scene.root = with_key(scene.root, "channel", thief.public)
    moved = second.model_copy(
        update={"generation": 3, "previous": second.digest(), "engine_release": digest("evil"), "actor": thief.key_id}
    )
    scene.registry.put(layout.binding(CHANNEL, moved.digest()), sign(moved, [thief]))
    scene.registry.put(POINTER, sign(moved, [thief]))
    scene.root = without_key(scene.root, thief.key_id)
    assert head_of(scene.registry, scene.root, CHANNEL).binding == second
    with pytest.raises(InputError, match="not rejected"):
        scene.rollback(reject="it is evil")
    done = scene.rollback()
    assert (done.binding.generation, done.binding.engine_release) == (3, second.engine_release)
    assert done.binding.reason == "rollback to generation 2"
    assert [str(one.where) for one in done.skipped] == [POINTER]
    assert scene.serves() == done.binding
    assert scene.rollback().binding.reason == "rollback to generation 1"


def test_rollback_to_a_generation_from_a_pointer_of_a_revoked_key() -> None:
    scene = Scene()
    scene.release("engine 1")
    scene.stolen("channel")
    with pytest.raises(Revoked, match="was revoked"):  # nothing is left that counts
        scene.rollback(to=1)


def _bound_by_a_thief(scene: Scene, **what: Any) -> tuple[Binding, Signer]:
    """A generation that a stolen channel key binds, before anybody knows that it was stolen."""
    body = scene.registry.read(POINTER)
    assert body is not None
    present = read_unverified(body, Binding).value
    thief = scene.rotated("channel")
    moved = present.model_copy(
        update={"generation": present.generation + 1, "previous": present.digest(), "actor": thief.key_id, **what}
    )
    scene.registry.put(layout.binding(CHANNEL, moved.digest()), sign(moved, [thief]))
    scene.registry.put(POINTER, sign(moved, [thief]))
    return moved, thief


def test_mix_and_match_rollback_brings_back_nothing_that_only_a_stolen_key_bound() -> None:
    """Both documents hold, and were never to run together."""
    scene = Scene()
    scene.release("engine 1")
    first = scene.serves()
    scene.rotated("channel")  # generation 1 is another key's
    scene.release("engine 2")
    second = scene.serves()
    mixed, thief = _bound_by_a_thief(scene, config_release=first.config_release)
    scene.release("engine 3")
    third = scene.serves()
    assert third.previous == mixed.digest()
    scene.root = without_key(scene.root, thief.key_id)  # it had signed generations 2 and 3
    with pytest.raises(Revoked, match="was revoked") as caught:
        scene.rollback(to=3)
    assert str(caught.value.where) == layout.binding(CHANNEL, mixed.digest())
    done = scene.rollback()
    assert (done.binding.reason, done.binding.config_release) == ("rollback to generation 1", first.config_release)
    assert done.binding.engine_release == first.engine_release
    assert [str(one.where) for one in done.skipped] == [
        layout.binding(CHANNEL, mixed.digest()),
        layout.binding(CHANNEL, second.digest()),
    ]
    assert scene.serves() == done.binding


def test_what_a_trusted_key_bound_as_well_is_brought_back_by_either_number() -> None:
    scene = Scene()
    scene.release("engine 1")
    first = scene.serves()
    scene.rotated("channel")
    scene.release("engine 2")
    again, thief = _bound_by_a_thief(
        scene, engine_release=first.engine_release, config_release=first.config_release, weights=first.weights
    )
    scene.release("engine 3")
    scene.root = without_key(scene.root, thief.key_id)
    done = scene.rollback(to=again.generation)
    assert (done.binding.engine_release, done.binding.config_release) == (first.engine_release, first.config_release)


def test_rollback_where_only_a_stolen_key_bound_anything_else_says_so_and_moves_nothing() -> None:
    scene = Scene()
    scene.release("engine 1")
    thief = scene.rotated("channel")
    scene.release("engine 2")
    scene.root = without_key(scene.root, thief.key_id)
    before = scene.registry.read(POINTER)
    with pytest.raises(Revoked, match="was revoked"):
        scene.rollback()
    assert scene.registry.read(POINTER) == before


@pytest.mark.parametrize("number", range(4))
def test_of_two_bindings_that_count_the_one_that_ran_is_gone_on_from(number: int) -> None:
    """A publisher that lost a race left the other: nothing ever pointed to it."""
    scene = Scene()
    scene.release("engine 1")
    scene.rotated("channel")
    scene.release("engine 2")
    ran = scene.serves()
    lost = ran.model_copy(update={"reason": f"lost {number}"})
    scene.registry.put(layout.binding(CHANNEL, lost.digest()), sign(lost, [scene.signers["channel"]]))
    thief = Signer.generate()
    scene.root = with_key(scene.root, "channel", thief.public)
    present = ran
    for _ in range(2):
        present = present.model_copy(update={"generation": present.generation + 1, "previous": present.digest()})
        scene.registry.put(layout.binding(CHANNEL, present.digest()), sign(present, [thief]))
    scene.registry.put(POINTER, sign(present, [thief]))
    scene.root = without_key(scene.root, thief.key_id)
    assert head_of(scene.registry, scene.root, CHANNEL).binding == ran
