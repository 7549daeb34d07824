"""Setting a Nacos up for an environment: namespace, two users with no more rights than they need, the sentinel.

What is there is read first, what is missing is planned (pure), then done; a second run finds nothing to do.

- ``trtops-ENV-publisher`` reads and writes documents of the group; for whoever releases.
- ``trtops-ENV-service`` reads them; for services.

Both may listen, which Nacos checks apart: as the right to read the group named ``*``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from trtops.errors import InputError, Unavailable
from trtops.registry.nacos.http import NacosHttp, refusal
from trtops.registry.nacos.loop import LoopThread
from trtops.registry.nacos.place import ABSENT_MD5, GROUP, SENTINEL
from trtops.registry.nacos.registry import check_sentinel, sentinel

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from trtops.registry.nacos.http import Answer, Credentials
    from trtops.registry.nacos.place import Place

T = TypeVar("T")

ROLES = {"publisher": "rw", "service": "r"}
_NAMESPACE = "/v3/admin/core/namespace"
_CONFIG = "/v3/admin/cs/config"
_USER, _ROLE, _PERMISSION = "/v3/auth/user", "/v3/auth/role", "/v3/auth/permission"
_NOT_FOUND = 404
_SECONDS = 60.0
_PAGE = {"pageNo": "1", "pageSize": "200", "search": "accurate"}


@dataclass(frozen=True, slots=True)
class State:
    """What a server has of an environment.

    Attributes:
        namespace: whether it exists.
        sentinel: text of the sentinel; None: absent.
        users: which of the two users exist.
        roles: pairs of user and role.
        permissions: triples of role, resource and action.
    """

    namespace: bool
    sentinel: str | None
    users: frozenset[str]
    roles: frozenset[tuple[str, str]]
    permissions: frozenset[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do.

    Attributes:
        words: what it is, for people.
        path: where it is posted.
        fields: what is posted, less the password.
        password_of: the user whose password goes along; None: no password does.
        headers: more headers.
    """

    words: str
    path: str
    fields: tuple[tuple[str, str], ...]
    password_of: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


def user_name(environment: str, role: str) -> str:
    """Name of a user, and of its role: ``trtops-prod-service``."""
    return f"trtops-{environment}-{role}"


def rights(environment: str, action: str) -> tuple[tuple[str, str], ...]:
    """Resource and action of every permission that a user needs.

    ``[*]`` is a star that stands for itself, so that the right to listen opens no other group.
    """
    return ((f"{environment}:{GROUP}:config/*", action), (f"{environment}:[*]:config/[*]", "r"))


def plan(state: State, environment: str) -> tuple[Step, ...]:
    """What is missing, in the order in which it has to be made; the sentinel last: with it all is there."""
    steps = []
    if not state.namespace:
        made = (("namespaceId", environment), ("namespaceName", environment), ("namespaceDesc", "trtops"))
        steps.append(Step(f"make the namespace {environment}", _NAMESPACE, made))
    for role, action in ROLES.items():
        name = user_name(environment, role)
        if name not in state.users:
            steps.append(Step(f"make the user {name}", _USER, (("username", name),), password_of=name))
        if (name, name) not in state.roles:
            steps.append(Step(f"give it the role {name}", _ROLE, (("username", name), ("role", name))))
        for resource, allowed in rights(environment, action):
            if (name, resource, allowed) not in state.permissions:
                words = f"let {name} {'read and write' if allowed == 'rw' else 'read'} {resource}"
                steps.append(Step(words, _PERMISSION, (("role", name), ("resource", resource), ("action", allowed))))
    if state.sentinel is None:
        fields = {"namespaceId": environment, "groupName": GROUP, "dataId": SENTINEL, "content": sentinel(environment)}
        headers = (("casMd5", ABSENT_MD5),)
        steps.append(Step(f"mark the namespace as {environment}", _CONFIG, tuple(fields.items()), headers=headers))
    return tuple(steps)


class Setup:
    """Sets one environment up, as an administrator."""

    def __init__(
        self, place: Place, environment: str, administrator: Credentials | None, *, ca: Path | None = None
    ) -> None:
        """Point at a server.

        Args:
            place: the servers.
            environment: the namespace to make.
            administrator: who to log in as; None where the server asks for no login.
            ca: PEM file of the authorities to trust with TLS.

        Raises:
            InputError: the environment has a name that Nacos keeps for itself.
        """
        if environment == "public":
            fix = "choose another environment: --env NAME"
            raise InputError("the namespace public is Nacos' own: everybody may be in it", fix=fix)
        self._place = place
        self._environment = environment
        self._who = administrator
        self._ca = ca

    def missing(self) -> tuple[Step, ...]:
        """What is to be done.

        Raises:
            StorageError: the namespace is marked as another environment's.
            Unavailable: the server is away, or this user is no administrator.
        """
        return self._run(self._missing)

    def apply(self, password: Callable[[str], str], done: Callable[[Step], None]) -> None:
        """Do what is missing.

        Args:
            password: gives the password of a user that is made; kept by the caller before it is given.
            done: called after each step.

        Raises:
            StorageError, Unavailable: as for :meth:`missing`; what was done until then stays and is not done again.
        """

        async def work(http: NacosHttp) -> None:
            for step in await self._missing(http):
                fields = dict(step.fields)
                if step.password_of is not None:
                    fields["password"] = password(step.password_of)
                answer = await http.call("POST", step.path, fields, dict(step.headers))
                if not answer.ok:
                    raise refusal(answer, self._place, self._who, step.words, writing=False)
                done(step)
            if left := await self._missing(http):
                # Nacos answers some requests that it did not carry out with an empty 200.
                raise Unavailable(f"Nacos did not {left[0].words}", where=str(self._place), fix="look at its log")

        self._run(work)

    def _run(self, work: Callable[[NacosHttp], Coroutine[Any, Any, T]]) -> T:
        loop = LoopThread("trtops-nacos-setup")
        http = NacosHttp(self._place, self._who, ca=self._ca)
        try:
            return loop.call(work(http), _SECONDS)
        finally:
            loop.stop(http.close)

    async def _missing(self, http: NacosHttp) -> tuple[Step, ...]:
        state = await self._state(http)
        if state.sentinel is not None:
            check_sentinel(state.sentinel, self._environment, self._place)
        return plan(state, self._environment)

    async def _state(self, http: NacosHttp) -> State:
        there = await http.call("GET", _NAMESPACE, {"namespaceId": self._environment})
        if there.status != _NOT_FOUND and not there.ok:
            raise refusal(there, self._place, self._who, "see namespaces", writing=False)
        where = {"namespaceId": self._environment, "groupName": GROUP, "dataId": SENTINEL}
        mark = await http.call("GET", _CONFIG, where)
        if mark.status != _NOT_FOUND and not mark.ok:
            raise refusal(mark, self._place, self._who, f"read {SENTINEL}", writing=False)
        names = [user_name(self._environment, role) for role in ROLES]
        users = [item for name in names for item in await self._items(http, _USER, {"username": name})]
        roles = [item for name in names for item in await self._items(http, _ROLE, {"username": name, "role": name})]
        rules = [item for name in names for item in await self._items(http, _PERMISSION, {"role": name})]
        return State(
            namespace=there.ok,
            sentinel=mark.data["content"] if mark.ok else None,
            users=frozenset(str(item["username"]) for item in users),
            roles=frozenset((str(item["username"]), str(item["role"])) for item in roles),
            permissions=frozenset((str(item["role"]), str(item["resource"]), str(item["action"])) for item in rules),
        )

    async def _items(self, http: NacosHttp, path: str, fields: Mapping[str, str]) -> list[dict[str, Any]]:
        answer: Answer = await http.call("GET", f"{path}/list", {**_PAGE, **fields})
        if not answer.ok or not isinstance(answer.data, dict):
            raise refusal(answer, self._place, self._who, "see users and their rights", writing=False)
        return [item for item in answer.data.get("pageItems") or () if isinstance(item, dict)]
