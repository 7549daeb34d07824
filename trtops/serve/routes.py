"""Which path means what on the data port."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from trtops.errors import InputError, TrtopsError
from trtops.serve import documents
from trtops.serve.faults import fault_of

if TYPE_CHECKING:
    from trtops.serve.desk import Desk
    from trtops.serve.exchange import Exchange
    from trtops.serve.inference import Inference

_CACHED_PATHS = 1024
READERS: Final = frozenset({b"GET", b"HEAD"})
_CONTROLS: Final = frozenset(
    ("v2", what) for what in ("repository", "systemsharedmemory", "cudasharedmemory", "trace", "logging", "trtops")
)

Path = tuple[str, ...]


class _Index(msgspec.Struct):
    """What a client asks of the repository's index."""

    ready: bool = False


def split_target(target: bytes) -> Path:
    """The segments of a request target's path; the query is dropped. Bytes that are no UTF-8 become U+FFFD."""
    text = target.decode("ascii", "replace")
    if not text.startswith("/"):
        try:
            text = urlsplit(text).path  # the absolute form, which proxies send
        except ValueError:
            text = ""
    path = text.partition("?")[0].partition("#")[0].rstrip("/")
    return tuple(unquote(segment) for segment in path.split("/")[1:])


def send_json(exchange: Exchange, document: Any) -> None:  # noqa: ANN401 - any JSON value
    """Answer with a JSON document."""
    exchange.respond(200, (msgspec.json.encode(document),))


def allowed(exchange: Exchange, *methods: bytes) -> bool:
    """Tell whether the method is one of these; else answer that it is not."""
    if exchange.method in methods:
        return True
    names = b", ".join(methods)
    exchange.fail(405, f"{exchange.method.decode()} is not allowed here; {names.decode()} is", b"Allow: %b\r\n" % names)
    return False


class DataRoutes:
    """The port that clients infer at."""

    def __init__(self, inference: Inference, desk: Desk) -> None:
        """Answer from these."""
        self._inference = inference
        self._desk = desk
        self._inferring: dict[bytes, tuple[str, str | None]] = {}

    def __call__(self, exchange: Exchange) -> None:
        """Answer a request, or pass it on."""
        try:
            known = self._inferring.get(exchange.target)
            if known is not None and exchange.method == b"POST":
                self._inference.infer(exchange, *known)
            else:
                self._route(exchange, split_target(exchange.target))
        except TrtopsError as error:
            exchange.refuse(fault_of(error))

    def _route(self, exchange: Exchange, path: Path) -> None:
        if path[:2] == ("v2", "models") and len(path) > 2:  # noqa: PLR2004 - a name follows
            self._models(exchange, path[2:])
        elif path == ("v2",):
            if allowed(exchange, *READERS):
                send_json(exchange, documents.server_metadata())
        elif path[:2] == ("v2", "health") and len(path) == 3 and path[2] in {"live", "ready"}:  # noqa: PLR2004 - its kind
            if allowed(exchange, *READERS):
                probe(exchange, self._desk.health.not_ready() if path[2] == "ready" else None)
        elif path == ("v2", "repository", "index"):
            if allowed(exchange, b"POST", *READERS):
                send_json(exchange, self._desk.index(ready=_asked_for(exchange).ready))
        elif path[:2] in _CONTROLS:
            exchange.fail(
                403, f"/{'/'.join(path[:2])} belongs to the control port (ask there: it answers the rest too)"
            )
        else:
            exchange.fail(404, f"no such path: /{'/'.join(path):.200}")

    def _models(self, exchange: Exchange, rest: Path) -> None:
        name, version, verb = _parts(rest)
        if rest == ("stats",):
            if allowed(exchange, *READERS):
                self._desk.statistics(None, None, partial(send_json, exchange))
        elif verb == ("infer",):
            if allowed(exchange, b"POST"):
                self._inference.infer(exchange, name, version)
                if len(self._inferring) >= _CACHED_PATHS:
                    self._inferring.clear()
                self._inferring[exchange.target] = name, version
        elif not allowed(exchange, *READERS):
            return
        elif verb == ("ready",):
            self._desk.catalogue.find(name, version)
            probe(exchange, None)
        elif verb == ("stats",):
            self._desk.statistics(name, version, partial(send_json, exchange))
        elif verb in {(), ("config",)}:
            send_json(exchange, (self._desk.config if verb else self._desk.metadata)(name, version))
        elif verb == ("trace", "setting"):
            exchange.fail(403, "trace settings belong to the control port")
        else:
            exchange.fail(404, f"no such path: /v2/models/{'/'.join(rest):.200}")


def _asked_for(exchange: Exchange) -> _Index:
    try:
        return msgspec.json.decode(exchange.body or b"{}", type=_Index)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the body is not what is expected here: {error}") from None


def probe(exchange: Exchange, reason: str | None) -> None:
    """Answer a probe: well, or with the reason why not."""
    if reason is None:
        exchange.respond(200, ())
    else:
        exchange.fail(503, reason, b"Retry-After: 1\r\n")


def _parts(rest: Path) -> tuple[str, str | None, Path]:
    if len(rest) >= 3 and rest[1] == "versions":  # noqa: PLR2004 - name, "versions", version
        return rest[0], rest[2], rest[3:]
    return rest[0], None, rest[1:]
