"""A client certificate that says nothing: the SDK speaks TLS only with one, also to servers that ask for none."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from trtops.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

_DAYS = 3650


def anonymous(folder: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate and its key in a folder that only this user can read.

    Returns:
        the files of certificate and key, PEM.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trtops")])
    start = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=_DAYS))
        .sign(key, hashes.SHA256())
    )
    paths = folder / "client.pem", folder / "client.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


def authorities() -> str:
    """The PEM file of the authorities that this system trusts.

    Raises:
        InputError: there is none.
    """
    import ssl

    found = ssl.get_default_verify_paths().cafile
    if not found:
        fix = "set nacos_ca to the PEM file of the authority that signed the server's certificate"
        raise InputError("this system has no file of trusted authorities", fix=fix)
    return found
