"""``trtops trust revoke``: what would go with a key, and the version of the root that trusts it for nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import TrtopsError, TrustError, Undecided
from trtops.workflow.trust import changeable, known, turn

if TYPE_CHECKING:
    from trtops.release.impact import Hanging
    from trtops.release.root import PublicKey, Role, Root
    from trtops.workflow.trust import Turned
    from trtops.workflow.workspace import Workspace


@dataclass(frozen=True)
class Consequences:
    """What revoking a key would do.

    Attributes:
        key_id: the key.
        roles: that it has, and would lose.
        hanging: what holds today by it and would not any more.
        unseen: environments that could not be looked at, each with the reason: their registry is away, or holds what
            nobody can make out; or the policies, which name them, cannot be read.
        hindrance: why this home cannot revoke it: no root key is here, or a role would be left with too few; None: it
            can.
    """

    key_id: str
    roles: tuple[str, ...]
    hanging: tuple[Hanging, ...]
    unseen: tuple[tuple[str, TrtopsError], ...] = ()
    hindrance: TrtopsError | None = None


def consequences(workspace: Workspace, key: str) -> Consequences:
    """What would go with a key, in every environment that the policies know. Changes nothing, and makes no key.

    Nothing that an environment holds prevents it: whoever writes there could keep a stolen key from being revoked. Nor
    does it take a private key: who may read a registry sees what hangs on one before anybody fetches a root key.

    Args:
        workspace: the home; its environment is looked at in any case.
        key: the id of the key, or enough of its start.

    Raises:
        InputError: no key, or several, start like that; or this home has no root document.
        StorageError, TrustError: keys.
    """
    from trtops.release.impact import hanging
    from trtops.release.keys import Signer, load_root
    from trtops.release.lineage import without_key

    present = load_root(workspace.resolved.home / "root.json")
    key_id = known(present, key)
    roles = tuple(role for role, listed in present.roles.items() if key_id in listed.keys)
    stand_in = Signer.generate().public  # of the keys that would be made in its place: they have signed nothing
    new = without_key(present, key_id, instead=dict.fromkeys(roles, stand_in))
    found: list[Hanging] = []
    unseen: list[tuple[str, TrtopsError]] = []
    environments, unread = _environments(workspace)
    for environment in environments:
        try:
            found += hanging(workspace.registry(environment), present, new, environment)
        except TrtopsError as error:  # noqa: PERF203 - one that is away hides none of the others
            unseen.append((environment, error))
        except Exception as error:  # noqa: BLE001 - what lies there was written by others: to tell must not fail
            unseen.append((environment, TrustError(f"{type(error).__name__}: {str(error)[:200]}", where=environment)))
    if unread is not None:
        unseen.append(("every other environment", unread))
    return Consequences(key_id, roles, tuple(found), tuple(unseen), _hindrance(workspace, key_id, stand_in))


def _hindrance(workspace: Workspace, key_id: str, stand_in: PublicKey) -> TrtopsError | None:
    """Why a key cannot be revoked by this home."""
    from trtops.release.lineage import without_key

    try:
        present = changeable(workspace)
        without_key(present, key_id, instead=dict.fromkeys(_to_renew(workspace, present, key_id), stand_in))
    except TrtopsError as error:
        return error
    return None


def _environments(workspace: Workspace) -> tuple[tuple[str, ...], Undecided | None]:
    """The workspace's environment, then the others that the policies name; why these are not known, if they are not."""
    from trtops.policy.loader import load_policies

    try:
        policies = load_policies(workspace.root, revision=workspace.resolved.settings.policies_from)
    except Undecided as error:
        return (workspace.environment,), error
    return tuple(dict.fromkeys((workspace.environment, *policies.enforcement.environments))), None


def revoke(workspace: Workspace, key: str) -> Turned:
    """Trust a key for nothing any more, also not what it has signed.

    A role of which this home holds the key, and that would have too few left, gets a new one of this home.

    Args:
        workspace: the home.
        key: the id of the key, or enough of its start.

    Raises:
        InputError: no key, or several, start like that.
        Conflict, StorageError, TrustError, Unavailable: keys, or the registry.
    """
    from trtops.release.lineage import without_key

    present = changeable(workspace)
    key_id = known(present, key)
    instead = {role: workspace.keys.renewed(role).public for role in _to_renew(workspace, present, key_id)}
    return turn(workspace, present, without_key(present, key_id, instead=instead))


def _to_renew(workspace: Workspace, present: Root, key_id: str) -> tuple[Role, ...]:
    """Roles that get a new key of this home if a key is revoked."""
    signers = workspace.keys.all_signers()
    found: list[Role] = []
    for role, listed in present.roles.items():
        left = len(listed.keys) - 1
        mine = workspace.keys.holds(role) and workspace.keys.signer(role).key_id == key_id
        if key_id in listed.keys and (mine or (left < listed.threshold and key_id in signers)):
            found.append(role)
    return tuple(found)
