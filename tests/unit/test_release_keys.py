"""Keys of a machine: made once, kept private, never shown."""

from __future__ import annotations

import copy
import errno
import logging
import multiprocessing
import os
import pickle
import stat
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError
from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]  # its own documented name

from trtops.errors import InputError, StorageError, TrtopsError, TrustError
from trtops.release.keys import KeyRing, KeyStore, Signer, load_root
from trtops.release.root import ROLES, RoleKeys, Root, root_of

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier
    from pathlib import Path


def _secret(signer: Signer) -> str:
    return signer.dsse.private_bytes.decode().splitlines()[1]


def test_makes_each_key_once_and_finds_it_again(tmp_path: Path) -> None:
    first = {role: KeyStore(tmp_path).signer(role).key_id for role in ROLES}
    again = {role: KeyStore(tmp_path).signer(role).key_id for role in ROLES}
    assert first == again
    assert len(set(first.values())) == len(ROLES)


def test_key_files_are_their_owners_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        KeyStore(tmp_path).signer("release")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "keys" / "release.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    assert [path.name for path in (tmp_path / "keys").glob(".tmp-*")] == []


def test_refuses_a_key_that_others_can_read(tmp_path: Path) -> None:
    KeyStore(tmp_path).signer("release")
    (tmp_path / "keys" / "release.pem").chmod(0o640)
    with pytest.raises(TrustError, match=r"mode 0640.*chmod 600"):
        KeyStore(tmp_path).signer("release")


@pytest.mark.parametrize("body", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_refuses_a_damaged_key_and_keeps_it(tmp_path: Path, body: bytes) -> None:
    KeyStore(tmp_path).signer("release")
    path = tmp_path / "keys" / "release.pem"
    path.write_bytes(body)
    with pytest.raises(TrustError, match="holds no private key"):
        KeyStore(tmp_path).signer("release")
    assert path.read_bytes() == body


def test_refuses_another_kind_of_key(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = generate_private_key(SECP256R1())
    path = tmp_path / "keys" / "release.pem"
    path.parent.mkdir()
    path.touch(0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(TrustError, match="not an ed25519 key"):
        KeyStore(tmp_path).signer("release")


def test_says_when_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(StorageError):
        KeyStore(tmp_path / "home").signer("release")


def test_a_full_disk_leaves_no_half_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"release\.pem: cannot read or write the key: No space left"):
            KeyStore(tmp_path).signer("release")
    assert [path.name for path in (tmp_path / "keys").iterdir() if path.name != ".lock"] == []
    KeyStore(tmp_path).signer("release")


def test_sweeps_what_a_killed_process_left(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / ".tmp-0123").write_bytes(b"half a key")
    KeyStore(tmp_path).signer("channel")
    assert sorted(path.name for path in (tmp_path / "keys").glob("*.pem")) == ["channel.pem"]
    assert not (tmp_path / "keys" / ".tmp-0123").exists()


def test_a_key_is_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = KeyStore(tmp_path)
    signer = store.signer("release")
    secret = _secret(signer)
    shown = f"{signer!r} {signer} {store!r} {KeyRing({'release': signer})!r} {store.root()!r} {caplog.text}"
    assert signer.key_id[:12] in repr(signer)
    assert secret not in shown
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            leak(signer)


def _make(home: Path, barrier: Barrier, queue: multiprocessing.Queue[str]) -> None:
    barrier.wait()
    queue.put(KeyStore(home).signer("release").key_id)


@pytest.mark.service
def test_processes_at_once_agree_on_one_key(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(4), context.Queue()
    workers = [context.Process(target=_make, args=(tmp_path, barrier, queue)) for _ in range(4)]
    for worker in workers:
        worker.start()
    ids = {queue.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join(60)
    assert ids == {KeyStore(tmp_path).signer("release").key_id}


def test_key_ids_are_those_of_the_library() -> None:
    signer = Signer.generate()
    assert signer.key_id == signer.dsse.public_key.keyid
    assert SSlibKey.from_dict(signer.key_id, signer.dsse.public_key.to_dict()).keyid == signer.public.key_id


def test_root_is_made_of_own_keys_and_kept(tmp_path: Path) -> None:
    root = KeyStore(tmp_path).root()
    assert root.members("release") == ((KeyStore(tmp_path).signer("release").public,), 1)
    assert load_root(tmp_path / "root.json") == root
    assert KeyStore(tmp_path).root() == root


def test_a_given_root_is_not_overwritten(tmp_path: Path) -> None:
    other = KeyRing().root()
    (tmp_path / "root.json").write_bytes(other.canonical_bytes())
    assert KeyStore(tmp_path).root() == other


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "EOF"),
        (b"[]", "root document"),
        (b'{"keys": {}, "roles": {}, "extra": 1}', "extra"),
        (b"x" * 1_000_001, "larger"),
    ],
)
def test_a_bad_root_is_named(tmp_path: Path, body: bytes, reason: str) -> None:
    path = tmp_path / "root.json"
    path.write_bytes(body)
    with pytest.raises(InputError, match=reason) as caught:
        load_root(path)
    assert str(path) in str(caught.value)


def test_an_absent_root_is_no_reason_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no root document"):
        load_root(tmp_path / "root.json")
    assert list(tmp_path.iterdir()) == []


def test_one_key_under_two_ids_is_refused() -> None:
    key = Signer.generate().public
    with pytest.raises(ValidationError, match="under another id"):
        Root(
            keys={key.key_id: key, "ab" * 32: key},
            roles={"release": RoleKeys(keys=(key.key_id, "ab" * 32), threshold=2)},
        )


def test_a_threshold_that_cannot_be_met_is_refused() -> None:
    key = Signer.generate().public
    with pytest.raises(ValidationError, match="needs 2 keys and has 1"):
        Root(keys={key.key_id: key}, roles={"release": RoleKeys(keys=(key.key_id, key.key_id), threshold=2)})


def test_a_role_of_unknown_keys_is_refused() -> None:
    with pytest.raises(ValidationError, match="not listed"):
        Root(keys={}, roles={"release": RoleKeys(keys=("ab" * 32,))})


def test_a_ring_without_a_key_says_which() -> None:
    signer = Signer.generate()
    keys = KeyRing({"release": signer}, root_of({"release": signer.public}))
    with pytest.raises(TrtopsError, match="no channel key"):
        keys.signer("channel")
    assert keys.root().members("channel") == ((), 1)
