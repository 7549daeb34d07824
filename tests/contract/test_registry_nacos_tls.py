"""A Nacos that speaks TLS on both of its ports: its authority is checked, and no client certificate is asked for."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.support.certificates import authority, issue
from tests.support.nacos_server import ADMINISTRATOR, NacosServer, free_base, memory_folder, password_of
from trtops.errors import InputError, Unavailable
from trtops.registry.nacos.place import Place
from trtops.registry.nacos.registry import NacosRegistry
from trtops.registry.nacos.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

PROPERTIES = """\
server.ssl.enabled=true
server.ssl.certificate=file:{folder}/server.pem
server.ssl.certificate-private-key=file:{folder}/server.key
nacos.remote.server.rpc.tls.enableTls=true
nacos.remote.server.rpc.tls.compatibility=false
nacos.remote.server.rpc.tls.certChainFile=file:{folder}/server.pem
nacos.remote.server.rpc.tls.certPrivateKey=file:{folder}/server.key
"""


@pytest.fixture(scope="module")
def secure(nacos: NacosServer) -> Iterator[tuple[NacosServer, Path]]:
    """A server of its own, and the file of its authority."""
    assert nacos.pid  # what it needs is here
    folder = memory_folder()
    ca = authority()
    (folder / "ca.pem").write_bytes(ca.certificate)
    certificate, key = issue(ca, "127.0.0.1")
    (folder / "server.pem").write_bytes(certificate)
    (folder / "server.key").write_bytes(key)
    server = NacosServer(folder / "home", free_base(), PROPERTIES.format(folder=folder), scheme="https")
    try:
        server.start()
        server.ca = folder / "ca.pem"
        server.make_administrator()
        Setup(server.place, "dev", ADMINISTRATOR, ca=server.ca).apply(password_of, lambda _: None)
        yield server, server.ca
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_reads_writes_and_pushes(secure: tuple[NacosServer, Path]) -> None:
    server, ca = secure
    heard: list[bytes | None] = []
    with (
        closing(server.registry("dev", ca=ca)) as publisher,
        closing(server.registry("dev", "service", ca=ca, interval=3600.0)) as service,
    ):
        watch = service.watch("a", heard.append)
        assert service.may_listen()
        assert service._client is not None
        _until(lambda: bool(service._client and service._client.push.listening))
        publisher.create("a", b"one")
        _until(lambda: heard[-1:] == [b"one"])
        watch.close()


def _until(reached: object) -> None:
    end = time.monotonic() + 60
    while not reached() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.05)
    assert reached()  # type: ignore[operator]


def test_an_authority_that_is_not_trusted(secure: tuple[NacosServer, Path], tmp_path: Path) -> None:
    server, _ = secure
    other = tmp_path / "other.pem"
    other.write_bytes(authority().certificate)
    for ca in (None, other):
        with (
            closing(server.registry("dev", ca=ca)) as registry,
            pytest.raises(Unavailable, match="certificate is not trusted") as caught,
        ):
            registry.read("a")
        assert "nacos_ca" in str(caught.value.fix)


def test_a_file_of_authorities_that_is_none(secure: tuple[NacosServer, Path], tmp_path: Path) -> None:
    server, _ = secure
    (tmp_path / "bad.pem").write_text("no certificate")
    for name in ("bad.pem", "absent.pem"):
        with (
            closing(server.registry("dev", ca=tmp_path / name)) as registry,
            pytest.raises(InputError, match="nacos_ca cannot be read"),
        ):
            registry.read("a")


def test_clear_text_is_refused_and_told(secure: tuple[NacosServer, Path]) -> None:
    server, _ = secure
    place = Place(server.place.addresses, tls=False)
    with (
        closing(NacosRegistry(place, "dev", server.credentials("dev"))) as registry,
        pytest.raises(Unavailable, match=r"nacos\+tls"),
    ):
        registry.read("a")
