"""The certificate of the brokers of a secured `kdist standalone`, signed by a CA of its own.

All brokers are on this machine, so they share one. The CA's key is forgotten once it has signed:
nobody can make another certificate that these clients trust. Needs the extra `security`.
"""

from __future__ import annotations

import datetime
import ipaddress
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from kdist.errors import UserError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_VALID_DAYS = 3650  # longer than a directory to try things in is kept: nothing renews it
_ADDRESSES = ("127.0.0.1", "::1")


class Issued(NamedTuple):
    """What is trusted, and the brokers' key and certificate, as PEM."""

    trusted: bytes
    own: bytes


def require_cryptography(package: str = "cryptography") -> None:
    """`UserError` if certificates can be neither made nor used."""
    if find_spec(package) is None:
        raise UserError(f"--secure needs {package}: pip install '.[security]' in kdist's tree")


def issue(now_ms: int) -> Issued:
    """A new CA, and a certificate for this machine's loopback names and addresses."""
    from cryptography import x509  # late: it takes long, and a cluster in clear needs it not
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = _begun("kdist standalone CA", "kdist standalone CA", ca_key, now_ms)
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in _ADDRESSES]
    broker = _begun("kdist standalone", "kdist standalone CA", key, now_ms)
    for extension, is_critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses]), False),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
    ):
        broker = broker.add_extension(extension, is_critical)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return Issued(_signed(ca, ca_key), key_pem + _signed(broker, ca_key))


def _begun(
    name: str, issuer: str, key: EllipticCurvePrivateKey, now_ms: int
) -> x509.CertificateBuilder:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    day = datetime.timedelta(days=1)
    now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + _VALID_DAYS * day)
    )


def _signed(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
