"""Private keys on this machine: one ed25519 key a role, made on first use, readable by their owner only.

Layout under the home folder (``TRTOPS_HOME``)::

    keys/builder.pem  keys/release.pem  keys/channel.pem     PKCS #8, mode 0600
    keys/root.pem  keys/refresh.pem                          the same, made by ``trtops trust init`` only
    keys/channel-0123456789ab.pem                            a key that was replaced, by the start of its id
    root.json                                                which keys are trusted; public, for services
    roots/2.json                                             every signed version of it that this home has made

A private key is never printed, logged, pickled or part of a message; only its id is.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NoReturn, Protocol

from trtops.durable import TEMPORARY, write_durably
from trtops.errors import InputError, StorageError, TrustError, Unavailable
from trtops.release.root import ROLES, PublicKey, Role, Root, root_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined] # exported, but not by __all__

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MAX_KEY_BYTES = 16_384
_MAX_ROOT_BYTES = 1_000_000
_LOCK_SECONDS = 30.0


class Signer:
    """A private key that signs. Shows its id and nothing else."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        """Wrap an ed25519 key of the library ``cryptography``."""
        from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined] # exported, but not by __all__

        self._signer = CryptoSigner(private)
        self.public = PublicKey(public=self._signer.public_key.keyval["public"])
        self.key_id = self.public.key_id

    @classmethod
    def generate(cls) -> Signer:
        """A new key that lives in memory only."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @property
    def dsse(self) -> CryptoSigner:
        """The signer as securesystemslib's envelopes take it."""
        return self._signer

    def __repr__(self) -> str:
        """Show the key id, never the key."""
        return f"Signer(ed25519, {self.key_id[:12]})"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: a key must not leave its process by accident."""
        raise TypeError("a private key cannot be pickled")


class Keys(Protocol):
    """What publishing needs: who signs, and what is trusted."""

    def signer(self, role: Role) -> Signer:
        """The signer of a role."""

    def root(self) -> Root:
        """The trusted keys."""

    def holds(self, role: Role) -> bool:
        """Whether there is a key of a role here, without making one."""


class KeyStore:
    """Keys of a home folder. Processes that start at once agree on one key a role."""

    def __init__(self, home: Path) -> None:
        """Point at a home folder; makes nothing until a key is asked for."""
        self._folder = home / "keys"
        self._root = home / "root.json"
        self._signers: dict[Role, Signer] = {}

    def __repr__(self) -> str:
        """Show where keys are and which are loaded."""
        return f"KeyStore({str(self._folder)!r}, loaded={sorted(self._signers)})"

    def signer(self, role: Role) -> Signer:
        """The key of a role; made if there is none yet, but for the roles ``root`` and ``refresh``.

        Until a root that trusts a new key takes effect, the old one signs.

        Raises:
            StorageError: it could not be read or written (local disk).
            TrustError: others may read the file, it holds no ed25519 key (whoever looks after this machine), or there
                is none and it is not one to be made in passing.
        """
        if role not in ROLES and not self.holds(role):
            raise TrustError(f"there is no {role} key here", fix="run this where that key is kept")
        if role not in self._signers:
            self._signers[role] = self._trusted_one(role)
        return self._signers[role]

    def holds(self, role: Role) -> bool:
        """Whether there is a key of a role here, without making one."""
        return self._path(role).exists()

    def made(self, role: Role) -> Signer:
        """The key of any role; made if there is none yet.

        Raises:
            StorageError, TrustError: as for :meth:`signer`.
        """
        path = self._path(role)
        return _load(private_file(path, _new_key), path)

    def renewed(self, role: Role) -> Signer:
        """A new key in place of a role's; the old one is kept beside it, under the start of its id.

        Raises:
            StorageError, TrustError: as for :meth:`signer`.
        """
        path = self._path(role)
        if path.exists():
            old = self.made(role)
            try:
                path.replace(self._folder / f"{role}-{old.key_id[:12]}.pem")
            except OSError as error:
                raise StorageError(f"cannot move the old key: {error.strerror}", where=str(path)) from error
        self._signers.pop(role, None)
        return self.made(role)

    def all_signers(self) -> dict[str, Signer]:
        """Every private key of this home by its id, those of people and those that were replaced, too.

        Raises:
            StorageError, TrustError: as for :meth:`signer`.
        """
        found = (_load(private_file(path, _new_key), path) for path in sorted(self._folder.glob("*.pem")))
        return {signer.key_id: signer for signer in found}

    def adopt(self, root: Root) -> None:
        """Trust another root from now on; who calls has verified it.

        Raises:
            StorageError: it could not be written; the old one is as it was.
        """
        write_durably(self._root, [root.canonical_bytes() + b"\n"])
        self._signers.clear()

    def _trusted_one(self, role: Role) -> Signer:
        newest = self.made(role)
        if not self._root.exists():
            return newest
        trusted = {key.key_id for key in load_root(self._root).members(role)[0]}
        if newest.key_id in trusted:
            return newest
        older = (_load(private_file(path, _new_key), path) for path in sorted(self._folder.glob(f"{role}-*.pem")))
        return next((signer for signer in older if signer.key_id in trusted), newest)

    def _path(self, role: Role) -> Path:
        return self._folder / f"{role}.pem"

    def root(self) -> Root:
        """The trusted keys: ``root.json``, made of this folder's own keys if there is none yet.

        Raises:
            InputError: ``root.json`` is not a root document (whoever wrote it).
            StorageError: it could not be read or written (local disk).
            TrustError: as for :meth:`signer`.
        """
        if self._root.exists():
            return load_root(self._root)
        root = self._own_root()
        write_durably(self._root, [root.canonical_bytes() + b"\n"])
        return root

    def self_made(self) -> bool:
        """Whether all keys that releases are signed by are this folder's own: keys that were made on first use.

        Root and refresh keys do not count: they sign no release, and belong on other machines.

        Raises:
            as :meth:`root`.
        """
        root = self.root()
        trusted = {key.key_id for role in ROLES for key in root.members(role)[0]}
        return trusted <= {self.signer(role).key_id for role in ROLES} or trusted <= self.all_signers().keys()

    def _own_root(self) -> Root:
        return root_of({role: self.signer(role).public for role in ROLES})


class KeyRing:
    """Keys in memory, behind the same face as :class:`KeyStore`."""

    def __init__(self, signers: dict[Role, Signer] | None = None, root: Root | None = None) -> None:
        """Take signers (by default a new one for each role) and a root (by default one that trusts them)."""
        self._signers: dict[Role, Signer] = signers or {role: Signer.generate() for role in ROLES}
        self._root = root or root_of({role: signer.public for role, signer in self._signers.items()})

    def signer(self, role: Role) -> Signer:
        """The signer of a role.

        Raises:
            TrustError: this ring has no key for it.
        """
        try:
            return self._signers[role]
        except KeyError:
            raise TrustError(f"there is no {role} key here", fix="run this where that key is kept") from None

    def root(self) -> Root:
        """The trusted keys."""
        return self._root

    def holds(self, role: Role) -> bool:
        """Whether this ring has a key of a role."""
        return role in self._signers


def load_root(path: Path) -> Root:
    """Read a root document that was handed to this machine.

    Raises:
        InputError: it is absent or is no root document.
        StorageError: it cannot be read.
    """
    fix = "copy root.json from the TRTOPS_HOME of the machine that releases"
    try:
        with path.open("rb") as file:
            body = file.read(_MAX_ROOT_BYTES + 1)
    except FileNotFoundError:
        raise InputError("there is no root document: it lists the keys to trust", where=str(path), fix=fix) from None
    except OSError as error:
        raise StorageError(f"cannot read the root document: {error.strerror}", where=str(path)) from error
    if len(body) > _MAX_ROOT_BYTES:
        raise InputError(f"the root document is larger than {_MAX_ROOT_BYTES} bytes", where=str(path), fix=fix)
    return _parse_root(body, path, fix)


def _parse_root(body: bytes, path: Path, fix: str) -> Root:
    from pydantic import ValidationError

    try:
        return Root.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(str(part) for part in first["loc"])
        reason = f"{at}: {first['msg']}" if at else first["msg"]
        raise InputError(f"this is not a root document: {reason}", where=str(path), fix=fix) from None


def signer_at(path: Path) -> Signer:
    """The ed25519 key in a file; made if there is none yet.

    Raises:
        StorageError: it could not be read or written (local disk).
        TrustError: others may read the file, or it holds no ed25519 key.
    """
    return _load(private_file(path, _new_key), path)


def private_file(path: Path, make: Callable[[], bytes]) -> bytes:
    """Read a file that only its owner may read; make it first, atomically, where there is none.

    Raises:
        StorageError: it could not be read or written; nothing is left behind.
        TrustError: others may read it.
        Unavailable: another process has held the folder's lock for too long.
    """
    try:
        if not path.exists():
            _create_private(path, make)
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            body = file.read(_MAX_KEY_BYTES)
    except OSError as error:
        raise _not_kept(error, path) from error
    if mode & _OTHERS:
        what = f"others than its owner may use this private key (mode {mode:04o})"
        raise TrustError(what, where=str(path), fix=f"chmod 600 {path}; replace the key if others may have read it")
    return body


def _not_kept(error: BaseException, path: Path) -> StorageError:
    reason = error.strerror or error if isinstance(error, OSError) else error
    return StorageError(f"cannot read or write the key: {reason}", where=str(path))


def _create_private(path: Path, make: Callable[[], bytes]) -> None:
    from filelock import FileLock, Timeout

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with FileLock(path.parent / ".lock", timeout=_LOCK_SECONDS):
            for leftover in path.parent.glob(f"{TEMPORARY}*"):  # of who was killed: all writers hold the lock
                leftover.unlink(missing_ok=True)
            if not path.exists():
                write_durably(path, [make()], mode=stat.S_IRUSR | stat.S_IWUSR)
    except StorageError as error:
        raise _not_kept(error.__cause__ or error, path) from error
    except Timeout:
        what = f"another process has been making a key for {_LOCK_SECONDS:.0f} s"
        raise Unavailable(what, where=str(path.parent), fix="look for a process that hangs") from None


def _new_key() -> bytes:
    return bytes(Signer.generate().dsse.private_bytes)


def _load(pem: bytes, path: Path) -> Signer:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    fix = "bring it back from a copy, or remove the file for a new key (and hand the new root.json to services)"
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        raise TrustError("this file holds no private key", where=str(path), fix=fix) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise TrustError("this private key is not an ed25519 key", where=str(path), fix=fix)
    return Signer(key)
