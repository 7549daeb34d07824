"""The port :class:`trtops.registry.port.Registry` on Nacos."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from trtops.errors import Conflict, StorageError, Unavailable
from trtops.registry.follow import Follower
from trtops.registry.nacos.http import LostAnswer, NacosHttp, refusal
from trtops.registry.nacos.loop import LoopThread
from trtops.registry.nacos.place import ABSENT_MD5, GROUP, SENTINEL, body_of, data_id, md5_of, name_of, text_of
from trtops.registry.nacos.push import Look, Push, load_sdk
from trtops.registry.names import checked_body, checked_name

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from trtops.registry.nacos.http import Credentials
    from trtops.registry.nacos.place import Place

T = TypeVar("T")

_CONFIG = "/v3/admin/cs/config"
_LIST = "/v3/admin/cs/config/list"
_NOT_FOUND, _ABSENT, _CHANGED = 404, 20_004, 20_005
_PAGE = 500
_TURNS = 3
_SPARE = 2.0
_NO_MD5 = "f" * 32  # of no text that is known


class NacosRegistry:
    """Documents of one environment on a Nacos. Safe for threads; connects on first use, ends with :meth:`close`.

    Every call ends within about three times ``timeout``, whatever the server does: gone, frozen, restarted, another
    password. A watch is told of changes by the server, and looks by itself at every ``interval`` in case it is not.
    """

    def __init__(
        self,
        place: Place,
        environment: str,
        credentials: Credentials | None = None,
        *,
        ca: Path | None = None,
        timeout: float = 5.0,
        interval: float = 10.0,
    ) -> None:
        """Point at an environment; nothing is asked yet.

        Args:
            place: the servers.
            environment: the namespace.
            credentials: who to log in as; None: nobody.
            ca: PEM file of the authorities to trust with TLS; None: the system's.
            timeout: seconds that one request may take.
            interval: seconds between two looks of a watch.
        """
        self.place = place
        self.environment = environment
        self._credentials = credentials
        self._ca = ca
        self._timeout = timeout
        self._interval = interval
        self._lock = threading.Lock()
        self._client: _Client | None = None
        self._numbers = itertools.count(1)

    def __repr__(self) -> str:
        """Show where it is, and as whom; no password."""
        who = self._credentials.user if self._credentials else None
        return f"NacosRegistry({str(self.place)!r}, {self.environment!r}, user={who!r})"

    def close(self) -> None:
        """End its connections and its thread. Idempotent; a later call connects anew."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def read(self, name: str) -> bytes | None:
        """See :meth:`trtops.registry.port.Registry.read`.

        Raises:
            StorageError: what is there was not written by trtops.
            Unavailable: the server is away, silent, refuses the login or the read, or was not set up.
        """
        identifier = data_id(name)
        text = self._call(lambda client: client.text(identifier))
        return None if text is None else _body(text, name)

    def create(self, name: str, body: bytes) -> bool:
        """See :meth:`trtops.registry.port.Registry.create`."""
        text = text_of(checked_body(name, body))
        identifier = data_id(name)
        if self._call(lambda client: client.put(identifier, text, ABSENT_MD5)):
            return True
        there = self.read(name)
        if there is None:
            raise Conflict("the document was there and is gone", where=name, fix="run this again")
        if there != body:
            raise Conflict("another document is there already", where=name)
        return False

    def swap(self, name: str, body: bytes, expected: bytes | None) -> None:
        """See :meth:`trtops.registry.port.Registry.swap`.

        A document that is deleted between the look at it and the write, which takes milliseconds, is written anew:
        Nacos compares nothing with what is not there. What a deletion means is judged by who reads the documents.
        """
        text = text_of(checked_body(name, body))
        identifier = data_id(name)
        before = self._call(lambda client: client.text(identifier))
        there = None if before is None else _body(before, name)
        md5 = ABSENT_MD5 if before is None else md5_of(before)
        if there != expected or not self._call(lambda client: client.put(identifier, text, md5)):
            raise Conflict("the document was changed by somebody else", where=name)

    def remove(self, name: str, expected: bytes) -> bool:
        """See :meth:`trtops.registry.port.Registry.remove`. Nacos keeps what it was in its history for a while."""
        there = self.read(name)
        if there is None:
            return False
        if there != expected:
            raise Conflict("another document is there", where=name)
        self._call(lambda client: client.delete(data_id(name)))
        return True

    def names(self, prefix: str = "") -> tuple[str, ...]:
        """See :meth:`trtops.registry.port.Registry.names`."""
        found = self._call(lambda client: client.identifiers(prefix.replace("/", ":")))
        names = {name for name in map(name_of, found) if name is not None}
        return tuple(sorted(name for name in names if name.startswith(prefix)))

    def watch(self, name: str, changed: Callable[[bytes | None], None]) -> NacosWatch:
        """See :meth:`trtops.registry.port.Registry.watch`. A server that is away is met again when it is back.

        Raises:
            Unavailable: the SDK is not installed.
        """
        checked_name(name)
        load_sdk()
        identifier, post = data_id(name), _Post()
        follower = Follower(name, lambda: self._newest(name, post), changed, self._interval)

        def brought(look: Look | None) -> None:
            post.put(look)
            follower.wake()

        push = self._connected().push
        push.add(identifier, brought)
        return NacosWatch(follower, lambda: push.remove(identifier, brought))

    def may_listen(self) -> bool:
        """Whether the server lets this user be told of changes; without, a watch only looks at every interval.

        Raises:
            Unavailable: the server is away or refuses the login, or the SDK is not installed.
        """
        load_sdk()
        client = self._connected()
        return client.loop.call(client.push.allowed(), 3 * self._timeout + _SPARE)

    def may_write(self) -> bool:
        """Whether the server lets this user write; asked by a write that cannot succeed, so nothing changes.

        Raises:
            Unavailable: the server is away, refuses the login, or was not set up.
        """
        try:
            self._call(lambda client: client.put(SENTINEL, sentinel(self.environment), _NO_MD5))
        except StorageError:
            return False
        return True

    def _newest(self, name: str, post: _Post) -> bytes | None:
        """What a push brought, unless a later look was taken already; else a look of its own."""
        identifier = data_id(name)
        look = post.take()
        if look is None:
            look = self._call(lambda client: client.look(identifier))
            post.passed(look)
        return None if look.text is None else _body(look.text, name)

    def _call(self, work: Callable[[_Client], Coroutine[Any, Any, T]]) -> T:
        client = self._connected()
        return client.loop.call(client.ready(work(client)), 3 * self._timeout + _SPARE)

    def _connected(self) -> _Client:
        with self._lock:
            if self._client is None or not self._client.loop.alive:
                self._client = _Client(
                    self.place, self.environment, self._credentials, self._ca, self._timeout, self._numbers
                )
                weakref.finalize(self, self._client.close)
            return self._client


class _Post:
    """Looks that pushes brought for one watch: only the newest counts, none that began before one that was taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._look: Look | None = None
        self._taken = 0

    def put(self, look: Look | None) -> None:
        with self._lock:
            if look is not None and look.number > max(self._taken, self._look.number if self._look else 0):
                self._look = look

    def take(self) -> Look | None:
        with self._lock:
            look, self._look = self._look, None
            if look is not None:
                self._taken = look.number
            return look

    def passed(self, look: Look) -> None:
        """Note a look that was taken elsewhere."""
        with self._lock:
            self._taken = max(self._taken, look.number)


class NacosWatch:
    """A running watch."""

    def __init__(self, follower: Follower, leave: Callable[[], None]) -> None:
        """Keep what ends it."""
        self._follower = follower
        self._leave = leave

    def __repr__(self) -> str:
        """Show what is followed."""
        return f"NacosWatch({self._follower!r})"

    def close(self) -> None:
        """Stop. No callback starts after this returns. Idempotent."""
        self._leave()
        self._follower.close()


class _Client:
    """What lives on the event loop: the HTTP session and, once something is watched, the SDK."""

    def __init__(
        self,
        place: Place,
        environment: str,
        credentials: Credentials | None,
        ca: Path | None,
        timeout: float,
        numbers: Iterator[int],
    ) -> None:
        self.loop = LoopThread(f"trtops-nacos-{environment}")
        self._place = place
        self._environment = environment
        self._credentials = credentials
        self._set_up = False
        self._numbers = numbers
        self._coming: dict[str, asyncio.Future[Look]] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self.http = NacosHttp(place, credentials, ca=ca, timeout=timeout)
        self.push = Push(self.loop, self.http, environment, self.look, ca=ca, timeout=timeout)

    def close(self) -> None:
        self.loop.stop(self._goodbye)

    async def _goodbye(self) -> None:
        await self.push.stop()
        await self.http.close()

    async def ready(self, work: Coroutine[Any, Any, T]) -> T:
        """Look once whether the namespace was set up: Nacos takes writes to one that nobody made."""
        try:
            if not self._set_up:
                check_sentinel(await self._text(SENTINEL), self._environment, self._place)
                self._set_up = True
            return await work
        finally:
            work.close()

    async def text(self, identifier: str) -> str | None:
        return (await self.look(identifier)).text

    async def look(self, identifier: str) -> Look:
        """What is there now. Looks that are wanted at the same time are one: a push wakes many watches at once.

        A look that has begun already is never joined, since it may have missed what its caller was told of.
        """
        coming = self._coming.get(identifier)
        if coming is None:
            coming = self._coming[identifier] = asyncio.ensure_future(self._next(identifier))
        return await asyncio.shield(coming)

    async def _next(self, identifier: str) -> Look:
        turn = self._turns.setdefault(identifier, asyncio.Lock())
        try:
            async with turn:
                del self._coming[identifier]  # it begins: who comes from here on waits for the one after
                number = next(self._numbers)
                return Look(number, await self._text(identifier))
        finally:
            if identifier not in self._coming:
                self._turns.pop(identifier, None)

    async def _text(self, identifier: str) -> str | None:
        answer = await self.http.call("GET", _CONFIG, self._fields(identifier))
        if answer.status == _NOT_FOUND and answer.code == _ABSENT:
            return None
        content = answer.data.get("content") if answer.ok and isinstance(answer.data, dict) else None
        if not isinstance(content, str):
            raise refusal(answer, self._place, self._credentials, f"read {identifier}", writing=False)
        return content

    async def put(self, identifier: str, text: str, md5: str) -> bool:
        """Write if the md5 still holds. True: it is there, written by this call; False: something else is there.

        Where an answer is lost, a look at what is there tells whether it was written; if not, it is tried again: the
        md5 lets it through once at most.
        """
        lost: LostAnswer | None = None
        for _ in range(_TURNS):
            try:
                answer = await self.http.call(
                    "POST", _CONFIG, {**self._fields(identifier), "content": text, "type": "text"}, {"casMd5": md5}
                )
            except LostAnswer as error:
                lost = error
                there = await self._text(identifier)
                if there == text:
                    return True
                if md5 != (ABSENT_MD5 if there is None else md5_of(there)):
                    return False
                continue
            if answer.ok and answer.data is True:
                return True
            if answer.code == _CHANGED:
                return lost is not None and await self._text(identifier) == text
            raise refusal(answer, self._place, self._credentials, f"write {identifier}", writing=True)
        raise lost or Unavailable("nothing was tried")

    async def delete(self, identifier: str) -> None:
        """Delete, and look whether it is gone: an answer that is lost says nothing."""
        with suppress(LostAnswer):
            answer = await self.http.call("DELETE", _CONFIG, self._fields(identifier))
            if not answer.ok:
                raise refusal(answer, self._place, self._credentials, f"delete {identifier}", writing=True)
        if await self._text(identifier) is not None:
            raise StorageError("the server did not delete it", where=identifier, fix="run this again")

    async def identifiers(self, prefix: str) -> set[str]:
        """Every dataId with a prefix, and maybe more: ``_`` stands for any character in Nacos' search."""
        found: set[str] = set()
        fields = {"namespaceId": self._environment, "groupName": GROUP, "search": "blur", "pageSize": str(_PAGE)}
        number, pages = 1, 1
        while number <= pages:
            asked = {**fields, "dataId": f"{prefix}*", "pageNo": str(number)}
            answer = await self.http.call("GET", _LIST, asked)
            if not answer.ok or not isinstance(answer.data, dict):
                raise refusal(answer, self._place, self._credentials, "list documents", writing=False)
            found.update(
                str(item["dataId"]) for item in answer.data.get("pageItems") or () if item.get("groupName") == GROUP
            )
            pages = int(answer.data.get("pagesAvailable") or 0)
            number += 1
        return found

    def _fields(self, identifier: str) -> dict[str, str]:
        return {"namespaceId": self._environment, "groupName": GROUP, "dataId": identifier}


def sentinel(environment: str) -> str:
    """The text that `trtops registry init nacos` writes into a namespace."""
    return json.dumps({"apiVersion": "trtops/v1", "kind": "Environment", "environment": environment}, sort_keys=True)


def check_sentinel(text: str | None, environment: str, place: Place) -> None:
    """Refuse a namespace that was not set up, or was set up for another environment.

    Raises:
        Unavailable: it was not set up.
        StorageError: it is another environment's: a copied namespace.
    """
    where = f"{place}/{environment}"
    if text is None:
        fix = f"let an administrator run: trtops registry init nacos --env {environment}"
        raise Unavailable(f"the namespace {environment} was not set up for trtops", where=where, fix=fix)
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict) or told.get("kind") != "Environment" or told.get("environment") != environment:
        fix = "use another namespace, or remove that document and run trtops registry init nacos"
        raise StorageError(f"the document {SENTINEL} is not of the environment {environment}", where=where, fix=fix)


def _body(text: str, name: str) -> bytes:
    try:
        return body_of(text)
    except ValueError as error:
        raise StorageError(f"it was not written by trtops: {error}", where=name, fix="remove it") from None
