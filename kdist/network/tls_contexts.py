"""The certificates of a listener or a client, and the `SSLContext`s made of them.

All of it is PEM, and is read in one go: what was checked is what is used, and no file is half old,
half new. What is read is looked at before it is used, and connections that are made later get it;
a file that changed for the worse changes nothing, and a gauge tells.

A context is never changed, but replaced: OpenSSL forgets no certificate that it was told to trust.
A session that is resumed skips the check of the peer's certificate. There are no tickets, so that
happens only in TLS 1.2, and within one context: what that has checked, it still trusts.
"""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kdist.errors import UserError
from kdist.metrics.broker import TlsMetrics
from kdist.network.tls import ClientTls, ServerTls
from kdist.runtime.tasks import Tasks, Timer
from kdist.runtime.unix import nameless_file
from kdist.security.names_of_certificates import name_of_certificate

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

logger = logging.getLogger(__name__)

_REVIEW_MS = 60_000

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_CONVERT = {
    "JKS": "`keytool -importkeystore -srckeystore STORE -destkeystore store.p12 -deststoretype"
    " PKCS12`, then `openssl pkcs12 -in store.p12 -out store.pem`",
    "PKCS12": "`openssl pkcs12 -in STORE -out store.pem`",
}
# Of a suite of TLS 1.2, whose IANA name is TLS_<exchange>_WITH_<cipher>, in OpenSSL's words.
_EXCHANGES = {
    "ECDHE_ECDSA": "ECDHE-ECDSA-",
    "ECDHE_RSA": "ECDHE-RSA-",
    "DHE_RSA": "DHE-RSA-",
    "RSA": "",
}
_CIPHERS = {
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_256_CBC_SHA384": "AES256-SHA384",
    "AES_256_CBC_SHA256": "AES256-SHA256",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
}
_OF_TLS_1_3 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")


class TlsSettings(Protocol):
    """The settings `ssl.*`, by the last parts of their names."""

    @property
    def keystore_type(self) -> str: ...
    @property
    def keystore_location(self) -> str | None: ...
    @property
    def keystore_key(self) -> str | None: ...
    @property
    def keystore_certificate_chain(self) -> str | None: ...
    @property
    def key_password(self) -> str | None: ...
    @property
    def truststore_type(self) -> str: ...
    @property
    def truststore_location(self) -> str | None: ...
    @property
    def truststore_certificates(self) -> str | None: ...
    @property
    def client_auth(self) -> str: ...
    @property
    def enabled_protocols(self) -> Sequence[str]: ...
    @property
    def protocol(self) -> str: ...
    @property
    def cipher_suites(self) -> Sequence[str]: ...
    @property
    def endpoint_identification_algorithm(self) -> str | None: ...
    @property
    def allow_dn_changes(self) -> bool: ...
    @property
    def allow_san_changes(self) -> bool: ...


class Material(NamedTuple):
    """What was read, as PEM; b"" where nothing is set. `shown` is the private key and the chain."""

    shown: bytes
    trusted: bytes

    def __repr__(self) -> str:
        return "Material(…)"


def read_material(settings: TlsSettings, read: Callable[[str], bytes]) -> Material:
    """Read what these settings name; `UserError` if that cannot be."""
    return Material(_shown(settings, read), _trusted(settings, read))


def _shown(settings: TlsSettings, read: Callable[[str], bytes]) -> bytes:
    key, chain = settings.keystore_key, settings.keystore_certificate_chain
    if settings.keystore_location is None:
        if (key is None) != (chain is None):
            raise UserError("ssl.keystore.key and ssl.keystore.certificate.chain go together")
        return f"{key}\n{chain}\n".encode() if key is not None else b""
    if key is not None or chain is not None:
        raise UserError("ssl.keystore.location is given, and ssl.keystore.key or a chain as well")
    _expect_pem("ssl.keystore.type", settings.keystore_type)
    return _read("ssl.keystore.location", settings.keystore_location, read)


def _trusted(settings: TlsSettings, read: Callable[[str], bytes]) -> bytes:
    if settings.truststore_location is None:
        return (settings.truststore_certificates or "").encode()
    if settings.truststore_certificates is not None:
        raise UserError("ssl.truststore.location and ssl.truststore.certificates are both given")
    _expect_pem("ssl.truststore.type", settings.truststore_type)
    return _read("ssl.truststore.location", settings.truststore_location, read)


def _expect_pem(setting: str, value: str) -> None:
    if value.upper() != "PEM":
        how = _CONVERT.get(value.upper(), "openssl")
        raise UserError(f"{setting} is {value}; kdist reads PEM: convert it by {how}")


def _read(setting: str, path: str, read: Callable[[str], bytes]) -> bytes:
    try:
        return read(path)
    except OSError as error:
        raise UserError(f"{setting}: cannot read {path}: {error.strerror or error}") from error


# Contexts


def server_context(settings: TlsSettings, material: Material) -> ssl.SSLContext:
    """A listener's; `UserError` if it cannot be."""
    if not material.shown:
        raise UserError("a listener with TLS needs a certificate: set ssl.keystore.location")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _configure(context, settings, material)
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    if context.verify_mode != ssl.CERT_NONE and not material.trusted:
        raise UserError("ssl.client.auth asks for certificates: set ssl.truststore.location")
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    return context


def client_context(
    settings: TlsSettings, material: Material, *, checks_names: bool = True
) -> ssl.SSLContext:
    """A client's; `UserError` if it cannot be. Without trusted CAs it trusts the machine's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = checks_names and settings.endpoint_identification_algorithm is not None
    _configure(context, settings, material)
    if not material.trusted:
        context.set_default_verify_paths()
    return context


def _configure(context: ssl.SSLContext, settings: TlsSettings, material: Material) -> None:
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    # As in Java, whatever is trusted is enough, though it may be no root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _choose_versions(context, settings)
    if material.trusted:
        with nameless_file(material.trusted) as path:
            try:
                context.load_verify_locations(path)
            except ssl.SSLError as error:
                raise UserError(f"ssl.truststore: {_why(error)}") from None
    if material.shown:
        password = settings.key_password or ""  # never asked for on a terminal
        with nameless_file(material.shown) as path:
            try:
                context.load_cert_chain(path, password=password)
            except (ssl.SSLError, ValueError) as error:
                raise UserError(f"ssl.keystore: {_why_not(material.shown, error)}") from None


def _choose_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    newest = _VERSIONS.get(settings.protocol, ssl.TLSVersion.TLSv1_3)
    versions = sorted(_VERSIONS[each] for each in settings.enabled_protocols)
    suites = [each for each in settings.cipher_suites if each not in _OF_TLS_1_3]
    if settings.cipher_suites and not suites:
        versions = [each for each in versions if each > ssl.TLSVersion.TLSv1_2]
    versions = [each for each in versions if each <= newest]
    if not versions:
        raise UserError(
            "ssl.enabled.protocols, ssl.protocol and ssl.cipher.suites leave no version"
        )
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    if suites:
        context.set_ciphers(":".join(map(_name_in_openssl, suites)))


def _name_in_openssl(suite: str) -> str:
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if exchange not in _EXCHANGES or cipher not in _CIPHERS:
        raise UserError(f"ssl.cipher.suites: {suite} is not known")
    return _EXCHANGES[exchange] + _CIPHERS[cipher]


_WHYS = {
    "KEY_VALUES_MISMATCH": "the private key is not the certificate's",
    "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate",
}


def _why_not(shown: bytes, error: Exception) -> str:
    """OpenSSL has one word for all that is wrong with a file."""
    for part, why in (
        (b"-----BEGIN CERTIFICATE-----", "there is no certificate in PEM"),
        (b"PRIVATE KEY-----", "there is no private key in PEM"),
    ):
        if part not in shown:
            return why
    if b"ENCRYPTED" in shown and getattr(error, "reason", None) not in _WHYS:
        return "ssl.key.password is not the private key's"
    return _why(error)


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None) or ""
    return _WHYS.get(reason, reason.replace("_", " ").lower() or "it cannot be read as PEM")


def client_tls(
    settings: TlsSettings, read: Callable[[str], bytes], now_ms: Callable[[], int]
) -> ClientTls:
    """For a client's connections; `UserError` if what the settings name cannot be used."""
    context = client_context(settings, read_material(settings, read))
    return ClientTls(lambda: context, now_ms)


# Checks


def check_handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """`UserError` if these two would not connect. Host names are not compared."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                raise UserError(
                    f"brokers would refuse each other's certificate: {error.verify_message}"
                ) from None
            except ssl.SSLError as error:
                raise UserError(f"brokers could not connect: {_why(error)}") from None


def _certificates(pem: bytes) -> list[Certificate]:
    from cryptography import x509  # late: commands in clear need it not, and it takes long

    return x509.load_pem_x509_certificates(pem) if b"BEGIN CERTIFICATE" in pem else []


def _names_of(certificate: Certificate) -> tuple[str, frozenset[str]]:
    """The subject, and the alternative names."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        alternative: frozenset[str] = frozenset()
    else:
        alternative = frozenset(map(str, extension.value))
    return name_of_certificate(certificate.public_bytes(Encoding.DER)), alternative


class _InUse(NamedTuple):
    material: Material
    server: ssl.SSLContext
    client: ssl.SSLContext
    leaf: Certificate
    others: list[Certificate]  # that are trusted, or of the chain


class TlsContexts:
    """A listener's certificates: what it shows, to clients and as a client of another broker.

    Owner: the loop. `read` gives a file's content. `UserError` if what the settings name cannot be
    used. `is_between_brokers`: brokers connect to each other by this listener, so all that is new
    has to fit what is in use.
    """

    def __init__(
        self,
        listener: str,
        settings: TlsSettings,
        read: Callable[[str], bytes],
        now_ms: Callable[[], int],
        metrics: TlsMetrics,
        *,
        is_between_brokers: bool = False,
    ) -> None:
        self._listener = listener
        self._settings = settings
        self._read = read
        self._now_ms = now_ms
        self._metrics = metrics
        self._is_between_brokers = is_between_brokers
        self._refused = ""  # why what was read last is not in use
        self._timer: Timer | None = None
        self._in_use = self._checked(settings, read_material(settings, read), None)
        metrics.certificate_seconds = lambda: self._left_s([self._in_use.leaf])
        metrics.authority_seconds = lambda: self._left_s(self._in_use.others)

    @property
    def server(self) -> ServerTls:
        """For `Listener.listen`."""
        return ServerTls(lambda: self._in_use.server, self._now_ms)

    @property
    def client(self) -> ClientTls:
        """For connections to the same listener of other brokers."""
        return ClientTls(lambda: self._in_use.client, self._now_ms)

    def use(self, settings: TlsSettings) -> None:
        """Use other settings from now on; `UserError`, and nothing changes, if that cannot be."""
        self._adopt(settings, read_material(settings, self._read))
        self._settings = settings

    def _adopt(self, settings: TlsSettings, material: Material) -> None:
        if settings is self._settings and material == self._in_use.material:
            return
        self._in_use = self._checked(settings, material, self._in_use)
        end = self._in_use.leaf.not_valid_after_utc
        logger.info("listener %s has a new certificate, until %s", self._listener, end.isoformat())

    def _left_s(self, certificates: list[Certificate]) -> float:
        """Until the first of them ends."""
        ends = (each.not_valid_after_utc.timestamp() for each in certificates)
        return min(ends, default=math.inf) - self._now_ms() / 1000

    # Files that change

    def begin(self, tasks: Tasks) -> None:
        """Look at the files every minute, until `end`."""
        self._timer = tasks.call_later(_REVIEW_MS, lambda: self._look(tasks))

    def end(self) -> None:
        """Look at them no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, tasks: Tasks) -> None:
        read: list[Material] = []

        def work() -> None:
            read.append(read_material(self._settings, self._read))

        def done(error: BaseException | None) -> None:
            def found() -> Material:
                if error is not None:
                    raise error
                return read[0]

            self._review(found)
            self.begin(tasks)

        tasks.run_blocking(work, done)

    def review(self) -> None:
        """Look at the files now."""
        self._review(lambda: read_material(self._settings, self._read))

    def _review(self, read: Callable[[], Material]) -> None:
        """What cannot be used changes nothing: a file may be half written, or the other to come."""
        refused = ""
        try:
            self._adopt(self._settings, read())
        except (UserError, OSError) as error:  # such as: no descriptor is left
            refused = str(error)
        if refused and refused != self._refused:
            logger.error("listener %s keeps its old certificate: %s", self._listener, refused)
        self._refused = refused
        self._metrics.refused = bool(refused)

    # Checks

    def _checked(self, settings: TlsSettings, material: Material, old: _InUse | None) -> _InUse:
        server = server_context(settings, material)
        client = client_context(settings, material)
        try:
            leaf, *chain = _certificates(material.shown)
            new = _InUse(material, server, client, leaf, chain + _certificates(material.trusted))
        except ValueError as error:
            raise UserError(f"a certificate cannot be read: {error}") from None
        self._check_validity(leaf)
        if old is not None:
            _check_names(settings, old.leaf, leaf)
        if self._is_between_brokers:
            nameless = client_context(settings, material, checks_names=False)
            check_handshake(server, nameless)
            if old is not None:
                check_handshake(old.server, nameless)
                check_handshake(
                    server, client_context(self._settings, old.material, checks_names=False)
                )
        return new

    def _check_validity(self, leaf: Certificate) -> None:
        now_s = self._now_ms() / 1000
        if leaf.not_valid_after_utc.timestamp() <= now_s:
            raise UserError(f"the certificate ended {leaf.not_valid_after_utc.isoformat()}")
        if leaf.not_valid_before_utc.timestamp() > now_s:
            raise UserError(f"the certificate begins {leaf.not_valid_before_utc.isoformat()}")


def _check_names(settings: TlsSettings, old: Certificate, new: Certificate) -> None:
    (old_name, old_alternative), (name, alternative) = _names_of(old), _names_of(new)
    if name != old_name and not settings.allow_dn_changes:
        raise UserError(f"the certificate is of {name}, not {old_name} (ssl.allow.dn.changes)")
    if (lost := old_alternative - alternative) and not settings.allow_san_changes:
        raise UserError(f"the certificate lacks {', '.join(sorted(lost))} (ssl.allow.san.changes)")
