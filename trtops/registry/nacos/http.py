"""Nacos over HTTP: login, and calls with one answer each in bounded time. Runs on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtops.errors import InputError, StorageError, TrtopsError, Unavailable

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from aiohttp import ClientSession

    from trtops.registry.nacos.place import Place

_LOGIN = "/v3/auth/user/login"
_READY = "/v3/admin/core/state/readiness"
_OK, _UNAUTHORIZED, _FORBIDDEN = 200, 401, 403
_MAX_ANSWER = 4_000_000
_FRESH = 0.8
_LEAST_AGE = 1.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who a client is. The password is in no message and no ``repr``."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """What Nacos said: the HTTP status, and code and data of its JSON (0 and None where it sent none)."""

    status: int
    code: int
    data: Any

    @property
    def ok(self) -> bool:
        """Whether it was done."""
        return self.status == _OK and self.code == 0


class LostAnswer(Unavailable):
    """A request was sent and no answer came: it may have been carried out."""


class NacosHttp:
    """A session with the servers of one Nacos."""

    def __init__(
        self,
        place: Place,
        credentials: Credentials | None,
        *,
        ca: Path | None = None,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Point at the servers; connects when something is asked.

        Args:
            place: the servers.
            credentials: who to log in as; None: without a login.
            ca: PEM file of the authorities to trust; None: the system's.
            timeout: seconds that one request may take.
            clock: seconds; tells how old a token is.
        """
        self.place = place
        self.credentials = credentials
        self._ca = ca
        self._timeout = timeout
        self._clock = clock
        self._session: ClientSession | None = None
        self._token: tuple[str, float, float] | None = None  # text, when it came, seconds that it holds
        self._login = asyncio.Lock()
        self._preferred = 0

    async def close(self) -> None:
        """Close its connections."""
        if self._session is not None:
            await self._session.close()

    async def call(
        self, method: str, path: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Ask once, with a login where one is needed; a token that is refused is renewed once.

        Args:
            method: ``GET``, ``POST``, ``PUT`` or ``DELETE``.
            path: below the context path, e.g. ``/v3/admin/cs/config``.
            fields: go into the query, or into the body of a POST or PUT.
            headers: more headers.

        Raises:
            LostAnswer: the server went away, or was silent, after the request was sent.
            Unavailable: no server can be reached, or the login failed.
        """
        answer = await self._ask(method, path, fields, {**(headers or {}), **await self._authorization()})
        if answer.status in {_UNAUTHORIZED, _FORBIDDEN} and self._renewable():
            # A token that a restarted server does not know any more and a right that is lacking look the same.
            self._token = None
            answer = await self._ask(method, path, fields, {**(headers or {}), **await self._authorization()})
        return answer

    async def token(self) -> str | None:
        """A token that holds; None without credentials.

        Raises:
            Unavailable: no server can be reached, or it refused the login.
        """
        if self.credentials is None:
            return None
        async with self._login:
            if self._token is None or self._clock() - self._token[1] > self._token[2] * _FRESH:
                self._token = await self._log_in(self.credentials)
            return self._token[0]

    def _renewable(self) -> bool:
        return self._token is not None and self._clock() - self._token[1] > _LEAST_AGE

    async def _authorization(self) -> dict[str, str]:
        token = await self.token()
        return {"accessToken": token} if token else {}

    async def _log_in(self, who: Credentials) -> tuple[str, float, float]:
        answer = await self._ask("POST", _LOGIN, {"username": who.user, "password": who.password}, {}, raw=True)
        told = answer.data if answer.status == _OK and isinstance(answer.data, dict) else {}
        token, seconds = told.get("accessToken"), told.get("tokenTtl", 0)
        if isinstance(token, str) and token and isinstance(seconds, int | float):
            return token, self._clock(), float(seconds)
        ready = await self._ask("GET", _READY, {}, {})
        if not ready.ok:
            fix = "wait, or look at its log; a server that speaks TLS is written nacos+tls://HOST:PORT"
            raise Unavailable(f"Nacos is not ready: HTTP {ready.status}", where=str(self.place), fix=fix)
        raise Unavailable(
            f"Nacos refused the login of the user {who.user}",
            where=str(self.place),
            fix="check nacos_user and nacos_password_file (`trtops settings show` tells where they come from)",
        )

    async def _ask(
        self, method: str, path: str, fields: Mapping[str, str], headers: Mapping[str, str], *, raw: bool = False
    ) -> Answer:
        urls = self.place.urls()
        for turn in range(len(urls)):
            number = (self._preferred + turn) % len(urls)
            try:
                answer = await self._ask_one(urls[number], method, path, fields, headers, raw=raw)
            except LostAnswer:
                raise
            except Unavailable:
                if turn == len(urls) - 1:
                    raise
                continue
            self._preferred = number
            return answer
        raise AssertionError("a place has at least one address")

    async def _ask_one(
        self, base: str, method: str, path: str, fields: Mapping[str, str], headers: Mapping[str, str], *, raw: bool
    ) -> Answer:
        session = self._open()
        import aiohttp

        form = method in {"POST", "PUT"}
        sent = {"data": fields} if form else {"params": fields}
        try:
            async with session.request(method, f"{base}/nacos{path}", headers=headers, **sent) as response:
                return _read(response.status, await _limited(response.content), raw=raw)
        except aiohttp.ClientConnectorCertificateError as error:
            fix = "set nacos_ca to the PEM file of the authority that signed the server's certificate"
            raise Unavailable(f"the server's certificate is not trusted: {error}", where=base, fix=fix) from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            reason = getattr(error, "strerror", None) or "no connection in time"
            raise Unavailable(f"Nacos cannot be reached: {reason}", where=base, fix="start it, or wait") from None
        except asyncio.TimeoutError:
            what = f"Nacos did not answer within {self._timeout:g} s"
            raise LostAnswer(what, where=base, fix="look at the server: it may hang") from None
        except (aiohttp.ClientError, OSError) as error:
            what = f"Nacos went away while it was asked: {type(error).__name__}"
            raise LostAnswer(what, where=base, fix="run this again") from None

    def _open(self) -> ClientSession:
        if self._session is None:
            try:
                import aiohttp
            except ImportError as error:
                fix = "pip install 'trtops[nacos]'"
                raise Unavailable(f"the client of Nacos is not installed: {error}", fix=fix) from None
            connector = aiohttp.TCPConnector(ssl=self._tls() if self.place.tls else True, limit=32)
            timeout = aiohttp.ClientTimeout(total=self._timeout, sock_connect=self._timeout)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    def _tls(self) -> ssl.SSLContext:
        import ssl

        try:
            return ssl.create_default_context(cafile=str(self._ca) if self._ca else None)
        except (OSError, ssl.SSLError) as error:
            fix = "set nacos_ca to a PEM file of certificates"
            raise InputError(f"nacos_ca cannot be read: {error}", where=str(self._ca), fix=fix) from None


def refusal(answer: Answer, place: Place, who: Credentials | None, what: str, *, writing: bool) -> TrtopsError:
    """The error for an answer that is not the one hoped for.

    Args:
        answer: what came.
        place: whose answer.
        who: asked.
        what: could not be done, e.g. ``read channels/cls/stable``.
        writing: whether it was a write: nothing was changed then.
    """
    kind: type[TrtopsError] = StorageError if writing else Unavailable
    user = f"the user {who.user}" if who else "somebody without a login"
    if answer.status in {_UNAUTHORIZED, _FORBIDDEN}:
        fix = "let an administrator run `trtops registry init nacos`, and use one of the users that it makes"
        if who is None:
            fix = "set nacos_user and nacos_password_file"
        return kind(f"Nacos does not let {user} {what}", where=str(place), fix=fix)
    said = f": {answer.data}" if isinstance(answer.data, str) and answer.data else ""
    return kind(
        f"Nacos could not {what}: HTTP {answer.status}, code {answer.code}{said[:200]}",
        where=str(place),
        fix="look at the server's log",
    )


async def _limited(stream: Any) -> bytes:  # noqa: ANN401 - aiohttp's StreamReader
    """A body of bounded size: a server that never stops is no reason to run out of memory."""
    body = bytearray()
    async for chunk in stream.iter_chunked(65_536):
        body += chunk
        if len(body) > _MAX_ANSWER:
            raise Unavailable(f"Nacos answered with more than {_MAX_ANSWER} bytes")
    return bytes(body)


def _read(status: int, body: bytes, *, raw: bool) -> Answer:
    told: Any = None
    with contextlib.suppress(ValueError):
        told = json.loads(body) if body else None
    if raw:
        return Answer(status, 0, told)
    if isinstance(told, dict) and isinstance(told.get("code"), int):
        return Answer(status, told["code"], told.get("data"))
    return Answer(status, -1 if status == _OK else 0, None)
