"""An authority and certificates of servers, made for one test."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


@dataclass(frozen=True)
class Authority:
    certificate: bytes
    name: x509.Name
    key: EllipticCurvePrivateKey


def authority() -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of tests")])
    made = (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(made.public_bytes(serialization.Encoding.PEM), name, key)


def issue(by: Authority, address: str) -> tuple[bytes, bytes]:
    """Certificate and key of a server at an address, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, address)])
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    made = _builder(name, by.name, key).add_extension(alternative, critical=False).sign(by.key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM), private


def _builder(name: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    start = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=1)
    return x509.CertificateBuilder(
        issuer, name, key.public_key(), x509.random_serial_number(), start, start + dt.timedelta(days=30)
    )
