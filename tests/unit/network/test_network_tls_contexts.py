"""What a listener's certificates must be like, when it starts and when they change."""

from __future__ import annotations

import asyncio
import datetime
import errno
import os
import random
import ssl
import time
from dataclasses import dataclass, field, replace

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from kdist.errors import UserError
from kdist.metrics.broker import TlsMetrics
from kdist.network.tls_contexts import (
    TlsContexts,
    check_handshake,
    client_context,
    client_tls,
    read_material,
    server_context,
)
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.testing.virtual_process import VirtualProcess
from tests.certificates import DAY, Authority, Issued, authority

STORE, TRUST = "/etc/kdist/broker.pem", "/etc/kdist/trusted.pem"
NOW = datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """As a listener's, with the names that they have there."""

    keystore_type: str = "PEM"
    keystore_location: str | None = STORE
    keystore_key: str | None = None
    keystore_certificate_chain: str | None = None
    key_password: str | None = field(default=None, repr=False)
    truststore_type: str = "PEM"
    truststore_location: str | None = TRUST
    truststore_certificates: str | None = None
    client_auth: str = "required"
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    protocol: str = "TLSv1.3"
    cipher_suites: tuple[str, ...] = ()
    endpoint_identification_algorithm: str | None = "https"
    allow_dn_changes: bool = False
    allow_san_changes: bool = False


class Site:
    """A broker's files, and what becomes of them."""

    def __init__(self, settings: Settings = Settings(), **files: bytes) -> None:
        self.files = {STORE: authority().issue().pem, TRUST: authority().pem}
        self.files |= {{"store": STORE, "trust": TRUST}[name]: it for name, it in files.items()}
        self.settings = settings
        self.metrics = TlsMetrics()
        self.now_s = time.time()
        self.is_between_brokers = True

    def read(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory")
        return self.files[path]

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def contexts(self) -> TlsContexts:
        return TlsContexts(
            "SSL",
            self.settings,
            self.read,
            self.now_ms,
            self.metrics,
            is_between_brokers=self.is_between_brokers,
        )

    def refusal(self) -> str:
        """Why the broker does not start."""
        with pytest.raises(UserError) as refused:
            self.contexts()
        return str(refused.value)


def shown(contexts: TlsContexts) -> bytes:
    """The certificate that a client of the tests' CA sees."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = contexts.server.context().wrap_bio(to_server, to_client, server_side=True)
    context = contexts.client.context()
    client = context.wrap_bio(to_client, to_server, server_hostname="server")
    for _ in range(3):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    found = client.getpeercert(binary_form=True)
    assert found
    return found


# At the start


def test_a_listener_shows_its_certificate() -> None:
    site, issued = Site(), authority().issue()
    site.files[STORE] = issued.pem
    assert shown(site.contexts()) == issued.der


def test_key_and_certificate_may_be_settings_themselves() -> None:
    issued = authority().issue()
    settings = Settings(
        keystore_location=None,
        keystore_key=issued.key_pem.decode(),
        keystore_certificate_chain=issued.certificate_pem.decode(),
        truststore_location=None,
        truststore_certificates=authority().pem.decode(),
    )
    assert shown(Site(settings).contexts()) == issued.der


def test_a_key_may_be_encrypted() -> None:
    issued = authority().issue()
    encrypted = issued.encrypted_key(serialization.BestAvailableEncryption(b"a password"))
    store = encrypted + issued.certificate_pem
    settings = Settings(key_password="a password")
    assert shown(Site(settings, store=store).contexts()) == issued.der
    for wrong in (None, "another"):
        why = Site(Settings(key_password=wrong), store=store).refusal()
        assert why == "ssl.keystore: ssl.key.password is not the private key's"


def swapped() -> bytes:
    return authority().issue().key_pem + authority().issue().certificate_pem


@pytest.mark.parametrize(
    ("site", "why"),
    [
        (Site(Settings(keystore_location=None)), "needs a certificate: set ssl.keystore.location"),
        (Site(Settings(keystore_location="/gone")), "cannot read /gone: No such file"),
        (Site(Settings(keystore_key="x")), "and ssl.keystore.key or a chain as well"),
        (Site(Settings(keystore_location=None, keystore_key="x")), "go together"),
        (Site(Settings(truststore_location=None)), "set ssl.truststore.location"),
        (Site(Settings(keystore_type="JKS")), "keytool -importkeystore"),
        (Site(Settings(truststore_type="pkcs12")), "openssl pkcs12 -in STORE"),
        (Site(store=b"no PEM"), "ssl.keystore: there is no certificate in PEM"),
        (Site(store=authority().issue().key_pem), "there is no certificate in PEM"),
        (Site(store=authority().issue().certificate_pem), "there is no private key in PEM"),
        (Site(store=authority().issue().pem.replace(b"M", b"N")), "it cannot be read as PEM"),
        (Site(store=swapped()), "the private key is not the certificate's"),
        (Site(trust=b"no PEM"), "ssl.truststore: there is no certificate"),
        (Site(store=authority().issue(not_after=NOW - DAY / 2).pem), "the certificate ended"),
        (Site(store=authority().issue(not_before=NOW + DAY).pem), "the certificate begins"),
        (Site(Settings(enabled_protocols=("TLSv1.3",), protocol="TLSv1.2")), "no version"),
        (Site(Settings(cipher_suites=("TLS_RSA_WITH_RC4_128_MD5",))), "RC4_128_MD5 is not known"),
    ],
)
def test_what_cannot_be_used_is_refused_at_the_start(site: Site, why: str) -> None:
    assert why in site.refusal()


@pytest.mark.parametrize(
    ("settings", "issued", "why"),
    [
        (Settings(), Authority("another").issue(), "unable to get local issuer"),
        (
            Settings(),
            authority().issue(uses=[ExtendedKeyUsageOID.SERVER_AUTH]),
            "unsuitable certificate purpose",
        ),
        (
            Settings(client_auth="none"),
            authority().issue(uses=[ExtendedKeyUsageOID.CLIENT_AUTH]),
            "unsuitable certificate purpose",
        ),
    ],
)
def test_a_certificate_that_brokers_would_refuse_is_refused_where_they_connect(
    settings: Settings, issued: Issued, why: str
) -> None:
    site = Site(settings, store=issued.pem)
    assert why in site.refusal()
    site.is_between_brokers = False
    site.contexts()


@pytest.mark.parametrize(
    ("settings", "suite"),
    [
        (Settings(), "TLS_AES_256_GCM_SHA384"),
        (Settings(protocol="TLSv1.2"), "ECDHE-ECDSA-AES256-GCM-SHA384"),
        (
            Settings(
                protocol="TLSv1.2", cipher_suites=("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",)
            ),
            "ECDHE-ECDSA-AES128-GCM-SHA256",
        ),
        (Settings(cipher_suites=("TLS_AES_128_GCM_SHA256",)), "TLS_AES_256_GCM_SHA384"),
    ],
)
def test_suites_are_chosen_by_their_iana_names(settings: Settings, suite: str) -> None:
    contexts = Site(settings).contexts()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = contexts.server.context().wrap_bio(to_server, to_client, server_side=True)
    client = client_context(settings, read_material(settings, Site().read), checks_names=False)
    end = client.wrap_bio(to_client, to_server)
    for _ in range(3):
        for each in (end, server):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                pass
    cipher = end.cipher()
    assert cipher is not None
    assert cipher[0] == suite


def test_the_oldest_version_is_1_2_unless_the_settings_leave_only_1_3() -> None:
    material = read_material(Settings(), Site().read)
    for settings, oldest in (
        (Settings(), ssl.TLSVersion.TLSv1_2),
        (Settings(enabled_protocols=("TLSv1.3",)), ssl.TLSVersion.TLSv1_3),
    ):
        for context in (server_context(settings, material), client_context(settings, material)):
            assert (context.minimum_version, context.maximum_version) == (
                oldest,
                ssl.TLSVersion.TLSv1_3,
            )


def test_no_session_is_resumed_by_a_ticket() -> None:
    context = server_context(Settings(), read_material(Settings(), Site().read))
    assert context.num_tickets == 0
    assert context.options & ssl.OP_NO_TICKET


def test_a_client_checks_names_unless_told_otherwise() -> None:
    site = Site(Settings(keystore_location=None))
    tls = client_tls(site.settings, site.read, site.now_ms)
    assert (tls.context().check_hostname, tls.context().verify_mode) == (True, ssl.CERT_REQUIRED)
    settings = replace(site.settings, endpoint_identification_algorithm=None)
    tls = client_tls(settings, site.read, site.now_ms)
    assert (tls.context().check_hostname, tls.context().verify_mode) == (False, ssl.CERT_REQUIRED)


def test_no_key_is_shown() -> None:
    material = read_material(Settings(), Site().read)
    assert "KEY" not in f"{material!r} {material}"


# Changes


def test_a_new_certificate_is_shown_from_the_next_connection_on() -> None:
    site = Site()
    contexts = site.contexts()
    server, new = contexts.server, authority().issue()
    old = server.context()
    contexts.review()
    assert server.context() is old
    site.files[STORE] = new.pem
    contexts.review()
    assert server.context() is not old
    assert shown(contexts) == new.der
    assert site.metrics.refused == 0


def test_a_change_that_cannot_be_used_changes_nothing_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Key and certificate may be two writes: what is wrong now may be right a minute later."""
    site = Site()
    contexts = site.contexts()
    before, new = contexts.server.context(), authority().issue()
    site.files[STORE] = swapped()
    for _ in range(3):
        contexts.review()
    assert (contexts.server.context(), site.metrics.refused) == (before, 1)
    assert [each.levelname for each in caplog.records] == ["ERROR"]
    assert "keeps its old certificate: ssl.keystore: the private key is not" in caplog.text
    del site.files[STORE]
    contexts.review()
    assert "cannot read /etc/kdist/broker.pem" in caplog.text
    site.files[STORE] = new.pem
    contexts.review()
    assert (shown(contexts), site.metrics.refused) == (new.der, 0)


@pytest.mark.parametrize(
    ("changed", "why", "allowing"),
    [
        (
            authority().issue("another"),
            "is of CN=another, not CN=broker (ssl.allow.dn.changes)",
            {"allow_dn_changes": True},
        ),
        (
            authority().issue(hosts=("localhost", "127.0.0.1")),
            "(ssl.allow.san.changes)",
            {"allow_san_changes": True},
        ),
    ],
)
def test_a_renewed_certificate_has_the_names_of_the_old_one_unless_it_may_not(
    changed: Issued, why: str, allowing: dict[str, bool], caplog: pytest.LogCaptureFixture
) -> None:
    site = Site()
    contexts = site.contexts()
    site.files[STORE] = changed.pem
    contexts.review()
    assert why in caplog.text
    site = Site(replace(Settings(), **allowing))
    contexts = site.contexts()
    site.files[STORE] = changed.pem
    contexts.review()
    assert site.metrics.refused == 0


def test_a_renewed_certificate_waits_for_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """None may be left, for a moment, when a crowd connects."""
    site = Site()
    contexts = site.contexts()
    before = contexts.server.context()
    site.files[STORE] = authority().issue().pem

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as crowd:
        crowd.setattr(os, "memfd_create", refuse)
        contexts.review()
    assert contexts.server.context() is before
    assert site.metrics.refused == 1
    contexts.review()
    assert contexts.server.context() is not before
    assert site.metrics.refused == 0


def test_a_ca_is_replaced_in_three_steps_and_in_no_fewer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Trust both, then show the new one's, then trust only that."""
    site, successor = Site(), Authority("successor")
    contexts = site.contexts()
    site.files[STORE] = successor.issue().pem
    contexts.review()
    assert "brokers would refuse each other's certificate" in caplog.text
    assert site.metrics.refused == 1
    site = Site()
    contexts = site.contexts()
    both = authority().pem + successor.pem
    for store, trust in (
        (site.files[STORE], both),
        (successor.issue().pem, both),
        (successor.issue().pem, successor.pem),
    ):
        site.files[STORE], site.files[TRUST] = store, trust
        contexts.review()
        assert site.metrics.refused == 0
    with pytest.raises(UserError, match="would refuse"):
        check_handshake(
            contexts.server.context(),
            client_context(Settings(), read_material(Settings(), Site().read)),
        )


def test_settings_that_cannot_be_used_are_refused_and_change_nothing() -> None:
    site = Site()
    contexts = site.contexts()
    before = contexts.server.context()
    with pytest.raises(UserError, match="cannot read /gone"):
        contexts.use(replace(site.settings, keystore_location="/gone"))
    assert contexts.server.context() is before
    contexts.use(replace(site.settings, client_auth="requested"))
    assert contexts.server.context().verify_mode is ssl.CERT_OPTIONAL


def test_the_time_that_is_left_is_measured() -> None:
    site, successor = Site(), Authority("successor", not_after=NOW + 50 * DAY)
    site.files[STORE] = authority().issue(not_after=NOW + 10 * DAY).pem
    site.files[TRUST] += successor.pem
    site.contexts()
    for days in (0, 8, 11):
        site.now_s = NOW.timestamp() + days * 86_400
        assert site.metrics.certificate_seconds() == pytest.approx((10 - days) * 86_400, abs=2)
        assert site.metrics.authority_seconds() == pytest.approx((50 - days) * 86_400, abs=2)


def test_files_are_looked_at_every_minute_until_the_end() -> None:

    loop = VirtualLoop(VirtualClock())
    process = VirtualProcess(loop, random.Random(1))
    site = Site()
    contexts = site.contexts()
    contexts.begin(process)
    seen = [contexts.server.context()]
    for _ in range(3):
        site.files[STORE] = authority().issue().pem
        loop.run_until_complete(_later(61))
        seen.append(contexts.server.context())
    assert len(set(map(id, seen))) == 4
    site.files[STORE] = b"half a fi"
    loop.run_until_complete(_later(61))
    assert (contexts.server.context(), site.metrics.refused) == (seen[-1], 1)
    contexts.end()
    site.files[STORE] = authority().issue().pem
    loop.run_until_complete(_later(200))
    assert contexts.server.context() is seen[-1]
    process.close()
    loop.close()


async def _later(seconds: float) -> None:

    await asyncio.sleep(seconds)
