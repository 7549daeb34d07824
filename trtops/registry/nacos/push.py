"""Being told of changes: the official SDK's listener, kept alive and quiet.

What was seen of it (nacos-sdk-python 3.2): a handler that raises twice ends its listening for ever, a permission that
is lacking is only logged, its log holds documents and tokens, and a client of a server that is away is made without a
word. So its handlers here only set an event, the permission is asked for, its log is off, and what ended is made anew.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops.errors import TrtopsError, Unavailable
from trtops.registry.nacos.place import GROUP

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trtops.registry.nacos.http import NacosHttp
    from trtops.registry.nacos.loop import LoopThread

_LOG = logging.getLogger("trtops.registry")
_SILENT = logging.CRITICAL + 1
_AGAIN_SECONDS = 5.0
_FORBIDDEN = 403


def load_sdk() -> None:
    """Import the SDK, away from the event loop: it takes a second.

    Raises:
        Unavailable: it is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own use of pydantic
            import v2.nacos  # noqa: F401 - kept in sys.modules
    except ImportError as error:
        fix = "pip install 'trtops[nacos]'"
        raise Unavailable(f"the client of Nacos is not installed: {error}", fix=fix) from None


@dataclass(frozen=True, slots=True)
class Look:
    """What a configuration held.

    Attributes:
        number: counts looks in the order in which they began: of two, the later one shows what is newer, or the same.
        text: None: it was absent.
    """

    number: int
    text: str | None


class Push:
    """Tells watches when the server says that their document changed. Best effort: watches also look by themselves.

    The server's word is that something changed. It is heard before the SDK asks what (two more requests, and a file
    that it writes), and answered by one look for all watches of a document.
    """

    def __init__(
        self,
        loop: LoopThread,
        http: NacosHttp,
        environment: str,
        look: Callable[[str], Awaitable[Look]],
        *,
        ca: Path | None,
        timeout: float,
    ) -> None:
        """Keep what it is made of; connects when something is added.

        Args:
            loop: where the SDK runs.
            http: the session whose servers and token are used.
            environment: the namespace.
            look: reads a configuration.
            ca: PEM file of the authorities to trust with TLS.
            timeout: seconds that one request of the SDK may take.
        """
        self._loop = loop
        self._http = http
        self._environment = environment
        self._look = look
        self._ca = ca
        self._timeout = timeout
        self._told: dict[str, list[Callable[[Look | None], None]]] = {}
        self._known: dict[str, str | None] = {}
        self._looking: set[asyncio.Task[None]] = set()
        self._listening: set[str] = set()
        self._service: Any = None
        self._making = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self._more = asyncio.Event()
        self._folder: Path | None = None
        self._complained = False

    @property
    def listening(self) -> frozenset[str]:
        """What the server tells of now, as far as is known."""
        return frozenset(self._listening)

    def add(self, identifier: str, told: Callable[[Look | None], None]) -> None:
        """Call ``told`` when a configuration changes, with what it holds then (None: it could not be read).

        Returns at once; any thread may call it.
        """
        self._loop.start(lambda: self._add(identifier, told))

    def remove(self, identifier: str, told: Callable[[Look | None], None]) -> None:
        """Call it no more."""
        self._loop.start(lambda: self._remove(identifier, told))

    async def allowed(self) -> bool:
        """Whether the server lets this user listen.

        Raises:
            Unavailable: it is away.
        """
        from v2.nacos.common.nacos_exception import NacosException

        try:
            await self._ask_to_listen(await self._connected())
        except NacosException as error:
            if error.error_code == _FORBIDDEN or "authorization failed" in str(error):
                return False
            what = f"Nacos does not answer on its gRPC port: {error}"
            raise Unavailable(
                what[:300], where=str(self._http.place), fix="open the port 1000 above the HTTP port"
            ) from None
        return True

    async def stop(self) -> None:
        """End the SDK's tasks and connections; remove its files."""
        if self._keeper is not None:
            self._keeper.cancel()
        service, self._service = self._service, None
        try:
            if service is not None:
                await _shut(service)
        finally:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _add(self, identifier: str, told: Callable[[Look | None], None]) -> None:
        self._told.setdefault(identifier, []).append(told)
        self._more.set()
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep())

    def _remove(self, identifier: str, told: Callable[[Look | None], None]) -> None:
        watching = self._told.get(identifier, [])
        if told in watching:
            watching.remove(told)

    async def _keep(self) -> None:
        """Add listeners as they are wanted; make the SDK's client anew when its listening has ended."""
        while True:
            self._more.clear()
            try:
                await self._listen()
            except TrtopsError as error:
                self._complain(f"not told of changes: {error.what}")
            except Exception as error:  # noqa: BLE001 - whatever the SDK raises: watches look by themselves meanwhile
                self._complain(f"not told of changes: {type(error).__name__}: {error}"[:300])
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._more.wait(), _AGAIN_SECONDS)

    async def _listen(self) -> None:
        service = await self._connected()
        new = [identifier for identifier in self._told if identifier not in self._listening]
        if new and not await self.allowed():
            who = self._http.credentials.user if self._http.credentials else "nobody"
            self._complain(
                f"the user {who} may not listen in {self._environment}: changes arrive by looking only; "
                "an administrator's `trtops registry init nacos` grants it"
            )
            return
        for identifier in new:
            await service.add_listener(identifier, GROUP, self._called)
            self._listening.add(identifier)
            # What the SDK only does at its next turn, up to 5 s from now.
            await service.grpc_client_proxy.execute_config_listen_channel.put(None)

    async def _called(self, tenant: str, group: str, identifier: str, content: Any) -> None:  # noqa: ANN401 - text, or a tuple
        """What the SDK calls once it has asked. Must not raise: the SDK would stop listening."""
        del tenant, group
        if identifier not in self._known or content != (self._known[identifier] or ""):
            self._changed(identifier)

    def _changed(self, identifier: str) -> None:
        if self._told.get(identifier):
            task = asyncio.get_running_loop().create_task(self._bring(identifier))
            self._looking.add(task)  # else it could be collected before it is done
            task.add_done_callback(self._looking.discard)

    async def _bring(self, identifier: str) -> None:
        """One look for all that watch."""
        look: Look | None = None
        with suppress(TrtopsError):  # the watches will look by themselves, and tell
            look = await self._look(identifier)
            self._known[identifier] = look.text
        for told in tuple(self._told.get(identifier, ())):
            told(look)

    def _complain(self, what: str) -> None:
        if not self._complained:  # once, not at every turn
            _LOG.warning("%s; watches look at every interval", what)
        self._complained = True

    async def _connected(self) -> Any:  # noqa: ANN401 - the SDK has no types
        async with self._making:
            if self._service is not None and self._service.grpc_client_proxy.listen_task.done():
                service, self._service = self._service, None
                self._listening.clear()
                await _shut(service)
            if self._service is None:
                self._service = await self._make()
            return self._service

    async def _make(self) -> Any:  # noqa: ANN401 - the SDK has no types
        from v2.nacos import NacosConfigService

        await self._http.token()  # a wrong password is told here; the SDK would go on without a word
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="trtops-nacos-"))
        _quiet_root()
        service = NacosConfigService(self._config(self._folder))
        _silence(service.logger)
        connector = service.grpc_client_proxy.nacos_server_connector

        async def authorize(headers: dict[str, str]) -> None:
            """Use the token of the HTTP session, which is renewed. The SDK's own login puts the password into a URL."""
            token = await self._http.token()
            if token:
                headers["accessToken"] = token

        connector.inject_security_info = authorize
        manager = service.grpc_client_proxy.config_subscribe_manager
        ask = manager.notify_config_changed

        async def notified(identifier: str, group: str, tenant: str) -> None:
            """Hear the server's word at once, and let the SDK go on as it does."""
            self._changed(identifier)
            await ask(identifier, group, tenant)

        manager.notify_config_changed = notified
        await service.grpc_client_proxy.start()
        return service

    def _config(self, folder: Path) -> Any:  # noqa: ANN401 - the SDK has no types
        from v2.nacos import ClientConfig, GRPCConfig

        place = self._http.place
        addresses = place.urls() if place.tls else place.addresses
        config = ClientConfig(
            ",".join(addresses),
            namespace_id=self._environment,
            log_dir=str(folder),
            log_level=_SILENT,
            app_name="trtops",
        )
        config.set_cache_dir(str(folder)).set_timeout_ms(int(self._timeout))  # taken as seconds by its HTTP client
        config.set_grpc_config(GRPCConfig(grpc_timeout=int(self._timeout * 1000)))
        if place.tls:
            from v2.nacos import TLSConfig

            from trtops.registry.nacos.certificate import anonymous, authorities

            certificate, key = anonymous(folder)
            roots = str(self._ca) if self._ca else authorities()
            config.set_tls_config(TLSConfig(enabled=True, ca_file=roots, cert_file=str(certificate), key_file=str(key)))
        return config

    async def _ask_to_listen(self, service: Any) -> None:  # noqa: ANN401 - the SDK has no types
        from v2.nacos.config.model.config import ConfigListenContext
        from v2.nacos.config.model.config_request import ConfigBatchListenRequest
        from v2.nacos.config.model.config_response import ConfigChangeBatchListenResponse

        proxy = service.grpc_client_proxy
        request = ConfigBatchListenRequest(group="", dataId="", tenant="", listen=False)
        what = ConfigListenContext(group=GROUP, md5="", dataId="trtops::probe", tenant=self._environment)
        request.configListenContexts.append(what)
        await proxy.request_config_server(await proxy.fetch_rpc_client(), request, ConfigChangeBatchListenResponse)


async def _shut(service: Any) -> None:  # noqa: ANN401 - the SDK has no types
    proxy = service.grpc_client_proxy
    proxy.stop_event.set()
    proxy.listen_task.cancel()  # its own way out takes up to 5 s, and hands the cancellation on to who waits for it
    await asyncio.wait([proxy.listen_task], timeout=1.0)
    with suppress(Exception):
        await proxy.rpc_client_manager.shutdown_all_clients()


def _silence(logger: logging.Logger) -> None:
    """Close the log files that the SDK opened: what it writes at ERROR still holds documents and tokens."""
    for handler in tuple(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.addHandler(logging.NullHandler())  # else Python's last resort writes them to standard error


def _quiet_root() -> None:
    """Keep the SDK's reconnects off standard error: it writes those to the root logger."""
    root = logging.getLogger()
    if _no_sdk not in root.filters:
        root.addFilter(_no_sdk)


def _no_sdk(record: logging.LogRecord) -> bool:
    return not (record.name == "root" and "nacos" in Path(record.pathname).parts)
