"""Certificates for tests: a CA made once in a process, and what it signs."""

from __future__ import annotations

import datetime
import functools
import ipaddress
import ssl
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)
BOTH_ENDS = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class Issued(NamedTuple):
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.encrypted_key(serialization.NoEncryption())

    @property
    def pem(self) -> bytes:
        """The key, then the certificate: a file as `ssl.keystore.location` names it."""
        return self.key_pem + self.certificate_pem

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    def encrypted_key(self, encryption: serialization.KeySerializationEncryption) -> bytes:
        """The key as PKCS#8."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )


def name_of(name: str | x509.Name) -> x509.Name:
    """A whole name, or that of somebody with this common name."""
    if isinstance(name, str):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return name


class Authority:
    """A CA."""

    def __init__(self, name: str = "test CA", **validity: datetime.datetime) -> None:
        self.issued = self._sign(name_of(name), None, validity, [], ())

    @property
    def pem(self) -> bytes:
        """What is trusted."""
        return self.issued.certificate_pem

    def issue(
        self,
        name: str | x509.Name = "broker",
        *,
        hosts: tuple[str, ...] = ("127.0.0.1", "::1", "localhost", "server"),
        uses: Any = BOTH_ENDS,
        **validity: datetime.datetime,
    ) -> Issued:
        """A certificate for these hosts; `not_before` and `not_after` may be given."""
        return self._sign(name_of(name), self.issued, validity, [*map(_alternative, hosts)], uses)

    def _sign(
        self,
        name: x509.Name,
        issuer: Issued | None,
        validity: dict[str, datetime.datetime],
        hosts: list[x509.GeneralName],
        uses: Any,
    ) -> Issued:
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer.certificate.subject if issuer else name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(validity.get("not_before", now - DAY))
            .not_valid_after(validity.get("not_after", now + 100 * DAY))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), True)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), False)
        if uses:
            builder = builder.add_extension(x509.ExtendedKeyUsage(uses), False)
        return Issued(builder.sign(issuer.key if issuer else key, hashes.SHA256()), key)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


@functools.cache
def authority() -> Authority:
    """The CA that most tests trust."""
    return Authority()


def server_context(issued: Issued | None = None, *, trusts: bytes = b"") -> ssl.SSLContext:
    """A server's; with `trusts`, clients must show a certificate of one of these CAs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    _show(context, issued or authority().issue())
    if trusts:
        context.load_verify_locations(cadata=trusts.decode())
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(issued: Issued | None = None, *, trusts: bytes = b"") -> ssl.SSLContext:
    """A client's, which trusts the tests' CA unless told otherwise."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=(trusts or authority().pem).decode())
    if issued is not None:
        _show(context, issued)
    return context


def _show(context: ssl.SSLContext, issued: Issued) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "issued.pem"
        path.write_bytes(issued.pem)
        context.load_cert_chain(path)
