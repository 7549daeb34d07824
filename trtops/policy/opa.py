"""The engine ``opa``: a real OPA server, one that runs or one that is started here, asked over opa-python-client.

A server of our own is given one bundle at its start, listens on a free loopback port, demands a token that only this
process knows (anything else on the machine could change its policies otherwise), and is stopped by its pid. A server
that runs already judges with a bundle of exactly our revision if it has one; else the policies are uploaded, and
compared with what the server holds after every answer.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trtops.errors import Undecided
from trtops.policy.bundle import modules
from trtops.policy.syntax import rule_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trtops.policy.opa_process import OpaProcess
    from trtops.policy.port import Answer, PolicyFile, PolicySet
    from trtops.policy.verdict import Stage

MINIMUM = (1, 0)
TIMEOUT = 30.0
_BATCH = 64
_FAMILY = "policies/"
_START_FIX = "look at the server, or judge without it: --engine embedded where enforcement.yaml allows it"
_STRICT = {"strict-builtin-errors": "true", "provenance": "true"}


class OpaEngine:
    """Evaluates with an OPA server, which is asked, or started, when the first document is judged.

    Made by :func:`connect` or :func:`start`.
    """

    name = "opa"

    def __init__(self, policies: PolicySet, where: str, reach: Callable[[], tuple[Any, OpaProcess | None]]) -> None:
        """Keep how the server is reached; nothing is asked or started yet.

        Args:
            policies: what judges.
            where: the server, for messages.
            reach: gives the client, and the process if the server is ours.
        """
        self._policies = policies
        self._where = where
        self._reach = reach
        self._client: Any = None
        self._process: OpaProcess | None = None
        self._files = {file.path: file for file in policies.libraries}
        self._files |= {rule.file.path: rule.file for rule in policies.rules}
        self._uploaded: dict[str, str] = {}
        self._version = ""

    def __repr__(self) -> str:
        """Show the server and whether it is ours."""
        return f"OpaEngine({self._where!r}, process={self._process!r}, version={self._version!r})"

    @property
    def version(self) -> str:
        """``opa`` with the server's version; it is asked or started if it was not yet.

        Raises:
            Undecided: as :meth:`evaluate`.
        """
        self._open()
        return f"opa {self._version}"

    def _open(self) -> None:
        """Reach the server; look whether it holds exactly our policies, and upload them if it does not.

        Raises:
            Undecided: the server is away, too old, refuses a policy, or is owned by a bundle of another revision.
        """
        if self._client is not None:
            return
        self._client, self._process = self._reach()
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        answer = self._ask("trtops/version", {})
        provenance = answer.get("provenance") or {}
        self._version = str(provenance.get("version") or "")
        numbers = tuple(int(part) for part in re.findall(r"\d+", self._version)[:2])
        if numbers < MINIMUM:
            raise Undecided(f"OPA {self._version or 'of no version'} is too old", where=self._where, fix="run OPA 1.x")
        if self._has_bundle(answer):
            return
        if self._process is not None:
            raise Undecided("the server that was started has other policies", where=self._where, fix=_START_FIX)
        self._upload(provenance)

    def evaluate(self, stage: Stage, documents: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Answer]]:
        """Ask every rule of a stage about every document, many documents a request.

        Raises:
            Undecided: a rule raised, or the server is away, slow, answers nonsense or holds other policies by now.
        """
        self._policies.of_stage(stage)
        self._open()
        answers: list[Mapping[str, Answer]] = []
        for begin in range(0, len(documents), _BATCH):
            part = list(documents[begin : begin + _BATCH])
            answer = self._ask(f"trtops/gate/batch_{stage}", {"documents": part})
            answers += self._read(answer, len(part))
            if not self._uploaded and not self._has_bundle(answer):
                raise self._edited()
        if self._uploaded:
            self._compare()
        return answers

    def close(self) -> None:
        """Close the connection, and stop the server if it is ours."""
        if self._client is not None:
            self._client.close_connection()
        if self._process is not None:
            self._process.stop()
        self._client = self._process = None

    def _read(self, answer: Mapping[str, Any], count: int) -> Iterator[Mapping[str, Answer]]:
        result = answer.get("result")
        if result is None:
            raise Undecided("the decision is undefined", where=self._where, fix="is the server given our policies?")
        if not isinstance(result, list) or len(result) != count:
            raise Undecided("the server did not answer for each document", where=self._where, fix=_START_FIX)
        for entry in result:
            if not isinstance(entry, dict) or not all(isinstance(values, list) for values in entry.values()):
                raise Undecided("the server's answer is malformed", where=self._where, fix=_START_FIX)
            yield {rule: tuple(values) for rule, values in entry.items()}

    def _ask(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._guarded(lambda: self._client.query_rule(document, path.replace("/", "."), query_params=_STRICT))
        if not isinstance(answer, dict):
            raise Undecided("the server's answer is malformed", where=self._where, fix=_START_FIX)
        return answer

    def _has_bundle(self, answer: Mapping[str, Any]) -> bool:
        bundles = (answer.get("provenance") or {}).get("bundles") or {}
        return any(entry.get("revision") == str(self._policies.digest) for entry in bundles.values())

    def _upload(self, provenance: Mapping[str, Any]) -> None:
        files = modules(self._policies)
        held = self._held()
        foreign = [path for path in held if not path.startswith(_FAMILY)]
        bundles = (provenance.get("bundles") or {}).values()
        if foreign and bundles:
            revisions = ", ".join(sorted(str(entry.get("revision")) for entry in bundles))
            raise Undecided(
                f"the OPA server judges with another bundle: {revisions}",
                where=self._where,
                fix=f"give it the bundle {self._policies.digest} (`trtops policy bundle`), or a server of its own",
            )
        stale = [path for path, text in held.items() if files.get(path) != text]
        self._rounds({path: partial(self._client.delete_policy, path) for path in stale})
        for stem, value in self._policies.data.items():
            self._guarded(partial(self._client.update_or_create_data, value, stem))
        missing = {path: text for path, text in files.items() if path in stale or path not in held}
        # rego_compat rewrites policies by regular expressions: what was reviewed must be what judges.
        put = partial(self._client.update_policy_from_string, rego_compat=False)
        self._rounds({path: partial(put, text, path) for path, text in missing.items()})
        self._uploaded = files
        self._compare()

    def _rounds(self, calls: dict[str, Callable[[], Any]]) -> None:
        """Call each until all have worked.

        The server compiles after every call, so a library has to be there before what uses it, and to go after it.

        Raises:
            Undecided: of the first that still fails when a whole round changes nothing.
        """
        while calls:
            failed: dict[str, Callable[[], Any]] = {}
            first: Undecided | None = None
            for path, call in calls.items():
                error = self._tried(call)
                if error is not None:
                    failed[path] = call
                    first = first or error
            if first is not None and len(failed) == len(calls):
                raise first
            calls = failed

    def _tried(self, call: Callable[[], Any]) -> Undecided | None:
        try:
            self._guarded(call)
        except Undecided as error:
            return error
        return None

    def _held(self) -> dict[str, str]:
        """Id -> text of every policy of the server that is, or claims to be, one of ours."""
        entries = self._guarded(self._client.policies)
        held: dict[str, str] = {}
        for entry in entries:
            package = [part.get("value") for part in ((entry.get("ast") or {}).get("package") or {}).get("path", [])]
            if entry["id"].startswith(_FAMILY) or "trtops" in package[:2]:
                held[entry["id"]] = entry.get("raw", "")
        return held

    def _compare(self) -> None:
        if self._held() != self._uploaded:
            raise self._edited()
        for stem, value in self._policies.data.items():
            if self._guarded(partial(self._client.get_data, stem)).get("result") != value:
                raise self._edited()

    def _edited(self) -> Undecided:
        return Undecided(
            "the server's policies changed while the check ran",
            where=self._where,
            fix="let one policy set at a time use a server, or give it the bundle of `trtops policy bundle`",
        )

    def _guarded(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - any JSON value
        import requests
        from opa_client import errors

        try:
            return call()
        except requests.HTTPError as error:
            raise self._refused(error) from None
        except requests.Timeout:
            raise Undecided(
                f"the OPA server did not answer within {self._client.timeout:g} s", where=self._where, fix=_START_FIX
            ) from None
        except (requests.RequestException, ValueError, KeyError, errors.ConnectionsError) as error:
            raise Undecided(
                f"the OPA server cannot be asked: {_reason(error)}", where=self._where, fix=_START_FIX
            ) from None
        except errors.RegoParseError as error:
            raise self._rejected(error) from None
        except (errors.PolicyNotFoundError, errors.DeletePolicyError, errors.PatchDataError) as error:
            raise Undecided(f"the OPA server refused: {error.message}", where=self._where, fix=_START_FIX) from None

    def _refused(self, error: Any) -> Undecided:  # noqa: ANN401 - requests is imported late
        """Turn an HTTP error into one that names the rule and its line, where the body tells."""
        response = error.response
        try:
            body = response.json()
            entries = body.get("errors") or []
        except (ValueError, AttributeError):
            body, entries = {}, []
        for entry in entries:
            found = self._located(entry)
            if found is not None:
                return found
        reason = body.get("message") if isinstance(body, dict) else None
        token = response.status_code in (401, 403)
        fix = "give a token that may ask and upload: TRTOPS_OPA_TOKEN" if token else _START_FIX
        return Undecided(
            f"the OPA server said {response.status_code}: {reason or 'no reason'}", where=self._where, fix=fix
        )

    def _rejected(self, error: Any) -> Undecided:  # noqa: ANN401 - imported late
        for entry in error.errors:
            found = self._located(entry)
            if found is not None:
                return found
        return Undecided(f"the OPA server refused a policy: {error.message}", where=self._where, fix=_START_FIX)

    def _located(self, entry: Any) -> Undecided | None:  # noqa: ANN401 - any JSON value
        location = entry.get("location") if isinstance(entry, dict) else None
        if not isinstance(location, dict):
            return None
        return describe(
            self._files, str(location.get("file")), location.get("row"), location.get("col"), str(entry.get("message"))
        )


def describe(files: Mapping[str, PolicyFile], name: str, row: object, column: object, message: str) -> Undecided | None:
    """An error of OPA with the rule and the line; None where the file is none of ours."""
    file = files.get(name.lstrip("/"))
    if file is None:
        return None
    where = file.at(row if isinstance(row, int) else 1, column if isinstance(column, int) else 0)
    return Undecided(
        f"{rule_of(file)}: the rule could not be evaluated: {message.splitlines()[0]}",
        where=where,
        fix="mend the rule; `trtops policy test` shows it again",
    )


def _reason(error: Exception) -> str:
    text = " ".join(str(part) for part in error.args) or type(error).__name__
    inner = re.search(
        r"(Connection refused|Name or service not known|Connection reset|certificate verify failed)", text
    )
    return inner[1] if inner else f"{type(error).__name__}: {text[:200]}"


def make_client(host: str, port: int, *, token: str | None, ssl: bool | str, timeout: float, local: bool) -> Any:  # noqa: ANN401 - an untyped package's class
    """A client of opa-python-client that can also read policies back.

    Raises:
        Undecided: the package is not installed.
    """
    try:
        from opa_client.opa import OpaClient
    except ImportError as error:
        raise Undecided("the engine opa needs opa-python-client", fix="pip install 'trtops[opa]'") from error

    class Client(OpaClient):  # type: ignore[misc] # an untyped package's class
        """Adds what the package lacks."""

        def _init_session(self) -> Any:  # noqa: ANN401 - requests is imported late
            session = super()._init_session()
            session.trust_env = not local  # a proxy of the environment has no business with a loopback server
            if isinstance(ssl, str):
                from requests.utils import get_environ_proxies

                # REQUESTS_CA_BUNDLE would take the place of the authority that was chosen.
                session.trust_env = False
                session.proxies.update(get_environ_proxies(f"https://{host}:{port}"))
            return session

        def policies(self) -> list[dict[str, Any]]:
            """Every policy of the server, with its text."""
            response = self._session.get(f"{self.root_url}/policies", timeout=self.timeout)
            response.raise_for_status()
            return list(response.json()["result"])

    return Client(host=host, port=port, ssl=ssl, token=token, timeout=timeout, retries=0 if local else 2)


def connect(
    policies: PolicySet, url: str, *, token: str | None = None, ca: Path | None = None, timeout: float = TIMEOUT
) -> OpaEngine:
    """Use a server that runs.

    Args:
        policies: what judges.
        url: ``http[s]://host:port``.
        token: bearer token.
        ca: file of the certificate authority that signed the server's certificate; by default the system's.
        timeout: seconds that one request may take.

    Raises:
        Undecided: the URL is none.
    """
    fix = "give http://host:port or https://host:port"
    try:
        parts = urlsplit(url)
        port = parts.port or 8181
    except ValueError as error:
        raise Undecided(f"the URL of the OPA server cannot be read: {error}", where=url, fix=fix) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise Undecided("this is no URL of an OPA server", where=parts.hostname or url, fix=fix)
    if parts.username is not None:
        raise Undecided("the URL of the OPA server holds credentials", where=parts.hostname, fix="use TRTOPS_OPA_TOKEN")
    if ca is not None and not ca.is_file():
        raise Undecided("the certificate authority's file does not exist", where=str(ca), fix="check TRTOPS_OPA_CA")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    ssl: bool | str = (str(ca) if ca else True) if parts.scheme == "https" else False

    def reach() -> tuple[Any, OpaProcess | None]:
        return make_client(host, port, token=token, ssl=ssl, timeout=timeout, local=False), None

    return OpaEngine(policies, f"{parts.scheme}://{host}:{port}", reach)


def start(policies: PolicySet, binary: Path, *, timeout: float = TIMEOUT) -> OpaEngine:
    """Use a server of our own, which is started with one bundle of the policies when the first document is judged.

    Args:
        policies: what judges.
        binary: the ``opa`` program.
        timeout: seconds that its start, and then one request, may take.
    """

    def reach() -> tuple[Any, OpaProcess | None]:
        from trtops.policy.opa_process import OpaProcess

        process = OpaProcess.start(policies, binary, timeout=timeout)
        try:
            client = make_client("127.0.0.1", process.port, token=process.token, ssl=False, timeout=timeout, local=True)
        except BaseException:
            process.stop()
            raise
        return client, process

    return OpaEngine(policies, str(binary), reach)
