"""Secrets as documents of their own: sealed with age to the services that may open them, bound to one place.

A value is in clear only inside :class:`pydantic.SecretStr`, which shows stars, and only in the process that seals it
and in the service's. No error, log or ``repr`` of this module holds a value or a private key.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from pydantic import SecretBytes, SecretStr, TypeAdapter, ValidationError

from trtops.digest import Value, canonical
from trtops.errors import Conflict, InputError, TrustError, Unavailable
from trtops.release import layout
from trtops.release.documents import SealedSecret, SecretPath
from trtops.release.envelope import sign, verify
from trtops.release.keys import private_file
from trtops.release.snapshot import still_vouched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trtops.release.fetch import Documents, Readable
    from trtops.release.keys import Keys
    from trtops.release.root import Root
    from trtops.spec.engine import RuntimeConfig


class SeenSecret(Value):
    """The highest generation of a secret that a service has opened. It keeps this on its disk, and never the value.

    Attributes:
        generation: of the sealed document; 0 for those of version 0.1.0, which have none.
        signers: ids of the keys that signed it.
    """

    generation: int
    signers: tuple[str, ...] = ()


REFERENCE = "secret:"
MAX_SECRET_BYTES = 32_768
_PATH: TypeAdapter[str] = TypeAdapter(SecretPath)
_AGAIN = "look who can write to the registry, then seal it again"


class Identity:
    """An age private key. Shows its public half only."""

    def __init__(self, text: SecretStr) -> None:
        """Read ``AGE-SECRET-KEY-1…``.

        Raises:
            InputError: it is anything else.
        """
        import pyrage

        try:
            self._identity = pyrage.x25519.Identity.from_str(text.get_secret_value())
        except pyrage.IdentityError:
            fix = "make one with trtops secret keygen"
            raise InputError("this is not an age identity (AGE-SECRET-KEY-1…)", fix=fix) from None
        self.recipient = str(self._identity.to_public())

    def __repr__(self) -> str:
        """Show the recipient."""
        return f"Identity({self.recipient})"

    def decrypt(self, sealed: bytes) -> SecretBytes | None:
        """The clear bytes; None if this identity cannot open them, or they were altered."""
        import pyrage

        try:
            return SecretBytes(bytes(pyrage.decrypt(sealed, [self._identity])))
        except pyrage.DecryptError:
            return None


def keygen(path: Path) -> Identity:
    """The identity kept in a file (mode 0600); made if there is none. Two processes at once agree on one.

    Raises:
        InputError: the file holds something else.
        StorageError: it could not be read or written (local disk).
        TrustError: others may read it.
    """
    body = private_file(path, _new_identity)
    lines = [line for line in body.decode("ascii", "replace").splitlines() if line and not line.startswith("#")]
    try:
        return Identity(SecretStr(lines[0] if len(lines) == 1 else ""))
    except InputError as error:
        raise InputError(error.what, where=str(path), fix=error.fix) from None


def seal(
    value: SecretStr,
    *,
    engine: str,
    environment: str,
    path: str,
    recipients: Sequence[str],
    created: int,
    generation: int | None = None,
) -> SealedSecret:
    """Seal a value for some recipients and one place.

    Args:
        value: what to seal; 32 KiB at most.
        engine: the engine that uses it.
        environment: where.
        path: its name, e.g. ``db/password``.
        recipients: age public keys (``age1…``).
        created: epoch seconds.
        generation: of the value at its place (:func:`next_generation`); None: by ``created``.

    Raises:
        InputError: no recipient, one that is no age key, a bad name, or a value that is too large.
    """
    if len(value.get_secret_value().encode()) > MAX_SECRET_BYTES:
        raise InputError(f"the value is larger than {MAX_SECRET_BYTES} bytes", where=path)
    names = sorted(set(recipients))
    if not names:
        raise InputError("nobody could open it: name a recipient (age1…)", where=path)
    keys = [_recipient(name, path) for name in names]
    count = generation if generation is not None else max(created, 1)
    # Place and generation are inside as well: whoever moves the document, or numbers it anew, cannot change them there.
    sealed = _sealed({"engine": engine, "environment": environment, "path": path, "generation": count}, value, keys)
    try:
        return SealedSecret(
            engine=engine,
            environment=environment,
            path=path,
            recipients=tuple(names),
            sealed=sealed,
            created=created,
            generation=count,
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InputError(f"cannot seal: {'.'.join(map(str, first['loc']))}: {first['msg']}", where=path) from None


def open_sealed(secret: SealedSecret, identity: Identity, *, engine: str, environment: str, path: str) -> SecretStr:
    """Open a sealed value, in memory.

    Args:
        secret: the document.
        identity: a private key of one of its recipients.
        engine: for which it has to be.
        environment: where.
        path: its name.

    Raises:
        TrustError: it belongs elsewhere or was altered (whoever can write to the registry), or it is sealed to
            others (whoever sealed it).
    """
    where = layout.secret(engine, path)
    try:
        clear = identity.decrypt(base64.b64decode(secret.sealed, validate=True))
    except binascii.Error:
        clear = None
    if clear is None:
        fix = f"seal it again with the recipient {identity.recipient}"
        raise TrustError("this identity cannot open the secret, or the secret was altered", where=where, fix=fix)
    place, generation, value = _payload(clear)
    if place != (engine, environment, path) or value is None:
        # Mix and match: a value that was sealed for another place (a test's password for production's).
        raise TrustError("the secret was sealed for another place", where=where, fix="seal it for this one")
    if generation != secret.generation:
        # Replay: an old value under a new number.
        raise TrustError("the sealed value is of another generation than its document", where=where, fix=_AGAIN)
    return value


def checked_path(path: str) -> str:
    """The path itself.

    Raises:
        InputError: it is no name of a secret.
    """
    try:
        return str(_PATH.validate_python(path))
    except ValidationError:
        fix = "one to four segments of lower case letters, digits, - and _, e.g. db/password"
        raise InputError("not the name of a secret", where=path[:80], fix=fix) from None


def next_generation(registry: Readable, root: Root, engine: str, path: str, now: int) -> int:
    """The generation of the next value of a secret: above the present one's, and never below the clock's seconds.

    The clock makes it rise also where an attacker has put something else in the secret's place, or deleted it.

    Raises:
        Unavailable: the registry is away.
    """
    name = layout.secret(engine, path)
    body = registry.read(name)
    try:
        present = verify(body, SealedSecret, root, where=name).value.generation if body is not None else None
    except TrustError:
        present = None
    return max((present or 0) + 1, now)


def publish_secret(registry: Documents, keys: Keys, secret: SealedSecret) -> None:
    """Put a sealed secret into its environment's registry, in place of the one before.

    It is signed: anybody can seal to a public key, so that sealing alone says nothing of who chose the value.

    Raises:
        Conflict: somebody else changed it at the same time.
        StorageError: the registry could not write; the secret of before is there.
        Unavailable: the registry is away.
    """
    name = layout.secret(secret.engine, secret.path)
    present = registry.read(name)
    body = sign(secret, [keys.signer("release")])
    if present == body:
        return
    try:
        registry.swap(name, body, present)
    except Conflict:
        raise Conflict("somebody else changed this secret just now", where=name, fix="seal it again") from None


def fetch_secret(
    registry: Readable, root: Root, identity: Identity, *, engine: str, environment: str, path: str
) -> SecretStr:
    """Fetch, verify and open a secret, in memory.

    Raises:
        TrustError: forged, misplaced, or sealed to others.
        Unavailable: the registry is away or has no such secret.
    """
    place = {"engine": engine, "environment": environment, "path": path}
    return fetch_newer(registry, root, identity, None, **place)[0]


def fetch_newer(
    registry: Readable,
    root: Root,
    identity: Identity,
    seen: SeenSecret | None,
    *,
    engine: str,
    environment: str,
    path: str,
) -> tuple[SecretStr, SeenSecret]:
    """As :func:`fetch_secret`, and takes none that is older than one that was seen.

    Returns:
        the value, and what has been seen now.

    Raises:
        TrustError: also an older one (whoever can write to the registry).
        Unavailable: as there.
    """
    name = layout.secret(engine, path)
    body = registry.read(name)
    if body is None:
        fix = f"seal it with trtops secret seal {engine} {path}"
        raise Unavailable(f"there is no secret {path} for {engine} in {environment}", where=name, fix=fix)
    signed = verify(body, SealedSecret, root, where=name)
    generation = signed.value.generation or 0
    if seen is not None and generation < seen.generation and still_vouched(root, "release", seen.signers):
        # Replay: a password of before, genuine as it is, that was changed because somebody knows it.
        what = f"the secret goes back to generation {generation}; {seen.generation} was seen"
        raise TrustError(what, where=name, fix=_AGAIN)
    value = open_sealed(signed.value, identity, engine=engine, environment=environment, path=path)
    return value, SeenSecret(generation=generation, signers=signed.key_ids)


def references(config: RuntimeConfig) -> tuple[str, ...]:
    """Paths of all secrets that a config refers to (``secret:PATH``), sorted."""
    texts = _texts(config.model_dump(mode="json"))
    return tuple(sorted({text.removeprefix(REFERENCE) for text in texts if text.startswith(REFERENCE)}))


def resolve(config: RuntimeConfig, open_: Callable[[str], SecretStr]) -> dict[str, Any]:
    """A config with its secrets opened. For the service's own process: never write it anywhere.

    Args:
        config: with references (``secret:db/password``).
        open_: gives the value of a path; called once for each.

    Returns:
        The config as plain data; each reference is replaced by a :class:`pydantic.SecretStr`.
    """
    opened = {path: open_(path) for path in references(config)}
    resolved = _replace(config.model_dump(mode="json"), opened.__getitem__)
    assert isinstance(resolved, dict)  # noqa: S101 - a dumped model is one; for the type checker
    return resolved


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON value
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _replace(value: Any, open_: Callable[[str], SecretStr]) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, str) and value.startswith(REFERENCE):
        return open_(value.removeprefix(REFERENCE))
    if isinstance(value, dict):
        return {key: _replace(item, open_) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace(item, open_) for item in value]
    return value


def _recipient(name: str, path: str) -> Any:  # noqa: ANN401 - pyrage has no types
    import pyrage

    try:
        return pyrage.x25519.Recipient.from_str(name)
    except pyrage.RecipientError:
        # Without the text: a private key may have been given by mistake.
        raise InputError("a recipient is not an age public key", where=path, fix="it starts with age1") from None


def _sealed(place: dict[str, Any], value: SecretStr, keys: Sequence[Any]) -> str:
    """Where the value is in clear: no error of trtops is raised from this frame, whose locals a tracer may keep."""
    import pyrage

    return base64.b64encode(pyrage.encrypt(canonical({**place, "value": value.get_secret_value()}), keys)).decode()


def _payload(clear: SecretBytes) -> tuple[tuple[object, object, object], object, SecretStr | None]:
    """Place, generation and value of an opened payload, as far as they are there. Raises nothing."""
    try:
        payload = json.loads(clear.get_secret_value())
    except ValueError:  # its message and attributes would hold the value
        payload = None
    if not isinstance(payload, dict):
        return (None, None, None), None, None
    value = payload.get("value")
    place = (payload.get("engine"), payload.get("environment"), payload.get("path"))
    return place, payload.get("generation"), SecretStr(value) if isinstance(value, str) else None


def _new_identity() -> bytes:
    import pyrage

    identity = pyrage.x25519.Identity.generate()
    return f"# public key: {identity.to_public()}\n{identity}\n".encode()
