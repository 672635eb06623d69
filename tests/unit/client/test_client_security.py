"""What clients' settings say about security: each client takes the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kdist.classic.connector import settings as connector
from kdist.classic.simple import SimpleConsumer
from kdist.client.admin import client_settings as admin
from kdist.client.cluster import Address, Cluster
from kdist.client.consumer import settings as consumer
from kdist.client.producer import settings as producer
from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.core import ProducerContext
from kdist.client.security import client_security, security_of
from kdist.errors import Error, UserError
from kdist.network.tls_contexts import check_handshake
from tests.certificates import authority, server_context
from tests.refusals import refused
from tests.simulator.cluster import PORT
from tests.simulator.cluster import Cluster as BrokerCluster

MODULE = "org.apache.kafka.common.security"
JAAS = f'{MODULE}.scram.ScramLoginModule required username="alice" password="secret";'
OAUTH = f'{MODULE}.oauthbearer.OAuthBearerLoginModule required clientId="me" clientSecret="s3cret";'
SASL: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "SCRAM-SHA-256",
    "sasl_username": "alice",
    "sasl_password": "secret",
}
READERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "producer": lambda given: producer.read_settings(given).plain,
    "consumer": consumer.read_settings,
    "admin": admin.read_settings,
    "connector": lambda given: connector.read_settings(
        {"group_id": "g", "zookeeper_connect": "z:2181", **given}
    ),
}


def read(**given: Any) -> admin.AdminSettings:
    return admin.read_settings(given)


def first_message(**given: Any) -> bytes:
    security = client_security(read(**given))
    assert security is not None
    assert security.sasl is not None
    return security.sasl.exchange().respond(None) or b""


@pytest.mark.parametrize("client", READERS)
def test_each_client_takes_the_same_settings(client: str) -> None:
    found = READERS[client](SASL)
    assert security_of(found) == security_of(read(**SASL))
    assert "secret" not in repr(found)


@pytest.mark.parametrize("client", READERS)
def test_names_may_have_dots(client: str) -> None:
    dotted = {name.replace("_", "."): value for name, value in SASL.items()}
    assert security_of(READERS[client](dotted)) == security_of(read(**SASL))


def test_without_settings_nothing_is_secured() -> None:
    assert client_security(read()) is None


def test_a_user_is_given_by_name_and_password_or_as_jaas_text() -> None:
    by_name = first_message(**SASL)
    of_text = {**SASL, "sasl_username": None, "sasl_password": None, "sasl_jaas_config": JAAS}
    assert by_name.startswith(b"n,,n=alice,r=")
    assert first_message(**of_text).startswith(b"n,,n=alice,r=")


def test_each_exchange_has_a_nonce_of_its_own() -> None:
    assert len({first_message(**SASL) for _ in range(10)}) == 10


def test_a_password_is_taken_as_it_is() -> None:
    message = first_message(**SASL | {"sasl_mechanism": "PLAIN", "sasl_password": " p=a,s "})
    assert message == b"\0alice\0 p=a,s "


def test_a_token_comes_from_its_endpoint() -> None:
    given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    url = {"sasl_oauthbearer_token_endpoint_url": "https://issuer/token"}
    security = client_security(read(**given, **url, sasl_jaas_config=OAUTH))
    assert security is not None
    assert security.sasl is not None
    assert security.sasl.prepare is not None
    assert client_security(read(**given, sasl_oauthbearer_token_endpoint_url="file:///t"))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"security_protocol": "TLS"}, "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"sasl_mechanism": None}, "needs sasl_mechanism"),
        ({"sasl_mechanism": "GSSAPI"}, "must be one of PLAIN"),
        ({"security_protocol": "PLAINTEXT"}, "and security_protocol is PLAINTEXT"),
        ({"sasl_username": None}, "needs sasl_username"),
        ({"sasl_password": ""}, "needs sasl_password"),
        ({"sasl_password": 7}, "sasl_password is of type int"),
        ({"sasl_password": "\ud800secret"}, "sasl_password has a character"),
        ({"sasl_jaas_config": JAAS}, "leave out"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "needs sasl_oauthbearer_token_endpoint_url"),
        (
            {"sasl_username": None, "sasl_password": None, "sasl_jaas_config": "x secret"},
            "must begin with",
        ),
        ({"sasl_username": None, "sasl_password": None, "sasl_jaas_config": OAUTH}, "is not for"),
    ],
)
def test_a_mistake_is_told_in_a_sentence_without_the_password(
    wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence) as raised:
        read(**SASL | wrong)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "jaas", "sentence"),
    [
        ("http://issuer/token", OAUTH, "https: or file:"),
        ("https://issuer/token", None, "clientId and clientSecret"),
    ],
)
def test_an_endpoint_that_cannot_be_asked_is_a_mistake(
    url: str, jaas: str | None, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        read(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_jaas_config=jaas,
        )


@pytest.fixture
def pems(tmp_path: Path) -> Path:
    """A directory with a CA's certificate, and a client's own."""
    (tmp_path / "ca.pem").write_bytes(authority().pem)
    (tmp_path / "own.pem").write_bytes(authority().issue("alice").pem)
    return tmp_path


def test_tls_trusts_and_shows_what_the_files_hold(pems: Path) -> None:
    given = {
        "ssl_truststore_location": str(pems / "ca.pem"),
        "ssl_keystore_location": str(pems / "own.pem"),
    }
    security = client_security(read(security_protocol="SSL", **given))
    assert security is not None
    assert security.sasl is None
    assert security.tls is not None
    context = security.tls.context()
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1
    check_handshake(server_context(trusts=authority().pem), context)


def test_a_user_may_authenticate_over_tls() -> None:
    security = client_security(read(**SASL | {"security_protocol": "SASL_SSL"}))
    assert security is not None
    assert None not in security


@pytest.mark.parametrize("none", ["", None])
def test_host_names_are_checked_unless_that_is_switched_off(none: str | None) -> None:
    given = {"security_protocol": "SSL", "ssl_endpoint_identification_algorithm": none}
    security = client_security(read(**given))
    assert security is not None
    assert security.tls is not None
    assert not security.tls.context().check_hostname


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"security_protocol": "PLAINTEXT"}, "and security_protocol is PLAINTEXT"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "and security_protocol is SASL_PLAINTEXT"),
        ({"sasl_username": "alice"}, "and security_protocol is SSL"),
        ({"ssl_truststore_type": "JKS"}, "keytool"),
        ({"ssl_truststore_location": "/does/not/exist"}, "/does/not/exist"),
        ({"ssl_truststore_certificates": "x"}, "both given"),
        ({"ssl_keystore_key": "secret"}, "go together"),
        ({"ssl_endpoint_identification_algorithm": "none"}, "must be one of https"),
        ({"ssl_enabled_protocols": "TLSv1.1"}, "must be any of TLSv1.2, TLSv1.3"),
        ({"ssl_enabled_protocols": ()}, "leave no version"),
    ],
)
def test_a_mistake_about_tls_is_told_in_a_sentence(
    pems: Path, wrong: dict[str, Any], sentence: str
) -> None:
    given = {"security_protocol": "SSL", "ssl_truststore_location": str(pems / "ca.pem")} | wrong
    with pytest.raises(UserError, match=sentence) as raised:
        client_security(read(**given))
    assert "secret" not in str(raised.value)


def test_a_simple_consumer_takes_them_too() -> None:
    with SimpleConsumer("localhost", 1, **SASL) as simple:
        assert simple._settings.security is not None
    with pytest.raises(UserError, match="needs sasl_mechanism"):
        SimpleConsumer("localhost", 1, security_protocol="SASL_PLAINTEXT")


async def test_an_admins_refusal_is_told_at_once_and_not_taken_for_an_outage(
    cluster: BrokerCluster,
) -> None:
    await cluster.started()
    network, connections = cluster.network.host("client"), read(**SASL).connections
    asking = Cluster(network, [Address("m1", PORT)], connections)
    with refused(Error.ILLEGAL_SASL_STATE):
        await asking.retried(asking.metadata)
    asking.close()


async def test_a_producers_refusal_is_told_at_once(cluster: BrokerCluster) -> None:
    await cluster.started()
    context = ProducerContext(cluster.network.host("client"), cluster.clock, cluster.rng)
    servers = f"m1:{PORT}"
    async with AsyncProducer(servers, max_block_ms=10**9, context=context, **SASL) as sending:
        with refused(Error.ILLEGAL_SASL_STATE):
            await sending.send("clicks", b"x")
