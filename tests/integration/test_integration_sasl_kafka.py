"""kdist's clients on Apache Kafka 3.9 with TLS and SASL: each mechanism, and again in time."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from peer.kafka_broker import KafkaBroker

from kdist import Admin, Consumer, NewTopic, Producer, TopicPartition
from kdist.errors import Error, KdistError
from tests.certificates import authority
from tests.refusals import refused

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("kafka")]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SESSION_MS = 1_500
LISTENERS = {"SASL": "SASL_PLAINTEXT", "TLS": "SSL", "BOTH": "SASL_SSL"}
MODULE = "org.apache.kafka.common.security"
OF_SASL = {
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    "plain.sasl.jaas.config": f'{MODULE}.plain.PlainLoginModule required user_alice="secret";',
    "scram-sha-256.sasl.jaas.config": f"{MODULE}.scram.ScramLoginModule required;",
    "scram-sha-512.sasl.jaas.config": f"{MODULE}.scram.ScramLoginModule required;",
    "oauthbearer.sasl.jaas.config": (
        f"{MODULE}.oauthbearer.OAuthBearerLoginModule required"
        ' unsecuredLoginStringClaim_sub="broker";'
    ),
    **{f"{each.lower()}.connections.max.reauth.ms": str(SESSION_MS) for each in MECHANISMS},
}
SETTINGS = {
    f"listener.name.{listener}.{name}": value
    for listener in ("sasl", "both")
    for name, value in OF_SASL.items()
}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    directory = tmp_path_factory.mktemp("kafka-sasl") / "broker"
    pems = directory.parent
    (pems / "ca.pem").write_bytes(authority().pem)
    (pems / "broker.pem").write_bytes(authority().issue().pem)
    (pems / "alice.pem").write_bytes(authority().issue("alice").pem)
    tls = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pems / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(pems / "ca.pem"),
        "listener.name.tls.ssl.client.auth": "required",
    }
    with KafkaBroker(directory, listeners=LISTENERS, **SETTINGS, **tls) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            credential = ScramCredentialInfo(mechanism, 4096)
            change = UserScramCredentialUpsertion("alice", credential, b"secret")
            for done in admin.alter_user_scram_credentials([change]).values():
                done.result(30)
        with Admin(broker.address) as clear:
            clear.create_topics([NewTopic(each.lower(), partitions=1) for each in MECHANISMS])
        yield broker


@pytest.fixture
def trusted(kafka: KafkaBroker) -> dict[str, Any]:
    return {"ssl_truststore_location": str(kafka.directory.parent / "ca.pem")}


def security(mechanism: str, directory: Path, password: str = "secret") -> dict[str, Any]:
    """The settings of alice's clients; her token is one that Kafka's default takes: unsigned."""
    of = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism}
    if mechanism != "OAUTHBEARER":
        return {**of, "sasl_username": "alice", "sasl_password": password}
    now_s = int(time.time()) - (0 if password == "secret" else 7_200)
    claims = {"sub": "alice", "iat": now_s, "exp": now_s + 3_600}
    parts = [
        base64.urlsafe_b64encode(json.dumps(each).encode()) for each in ({"alg": "none"}, claims)
    ]
    token = directory / f"token-{password}"
    token.write_bytes(b".".join(each.rstrip(b"=") for each in (*parts, b"")))
    return {**of, "sasl_oauthbearer_token_endpoint_url": token.as_uri()}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_nothing_is_lost_while_sessions_end(
    kafka: KafkaBroker, mechanism: str, tmp_path: Path
) -> None:
    of = security(mechanism, tmp_path)
    topic = mechanism.lower()
    values = []
    with (
        Producer(kafka.addresses["SASL"], **of) as producer,
        Consumer(
            kafka.addresses["SASL"], group_id=topic, auto_offset_reset="earliest", **of
        ) as consumer,
    ):
        consumer.subscribe([topic])
        sent = 0
        end_s = time.monotonic() + 3 * SESSION_MS / 1000
        while time.monotonic() < end_s or len(values) < sent:
            if time.monotonic() < end_s:
                producer.send(topic, str(sent).encode()).result(30)
                sent += 1
            values += [int(each.value or b"") for each in consumer.poll(0.01)]
        for client in (producer, consumer):
            lost = [
                line for line in client.metrics_text().splitlines() if "lost_connections" in line
            ]
            assert all(line.endswith(" 0.0") for line in lost if not line.startswith("#"))
    assert values == list(range(sent))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_or_an_old_token_is_refused_at_once(
    kafka: KafkaBroker, mechanism: str, tmp_path: Path
) -> None:
    of = security(mechanism, tmp_path, "wrong")
    with (
        Admin(kafka.addresses["SASL"], **of) as admin,
        refused(Error.SASL_AUTHENTICATION_FAILED, mechanism),
    ):
        admin.list_topics()
    with (
        Producer(kafka.addresses["SASL"], max_block_ms=600_000, **of) as producer,
        refused(Error.SASL_AUTHENTICATION_FAILED, mechanism),
    ):
        producer.send("plain", b"x")
    with (
        Consumer(kafka.addresses["SASL"], group_id="wrong", **of) as consumer,
        refused(Error.SASL_AUTHENTICATION_FAILED, mechanism),
    ):
        consumer.subscribe(["plain"])
        consumer.poll(600)


def test_a_port_without_sasl_says_so(kafka: KafkaBroker, tmp_path: Path) -> None:
    with (
        Admin(kafka.address, **security("PLAIN", tmp_path)) as admin,
        refused(Error.ILLEGAL_SASL_STATE, "security.protocol"),
    ):
        admin.list_topics()


def test_a_user_authenticates_over_tls(
    kafka: KafkaBroker, trusted: dict[str, Any], tmp_path: Path
) -> None:
    of = security("SCRAM-SHA-512", tmp_path) | trusted | {"security_protocol": "SASL_SSL"}
    value = bytes(1 << 20)[:-1000]
    with Admin(kafka.addresses["BOTH"], **of) as admin:
        admin.create_topics([NewTopic("large", partitions=1)])
    with (
        Producer(kafka.addresses["BOTH"], **of) as producer,
        Consumer(kafka.addresses["BOTH"], auto_offset_reset="earliest", **of) as consumer,
    ):
        for _ in range(5):
            producer.send("large", value).result(30)
        consumer.assign([TopicPartition("large", 0)])
        found: list[bytes | None] = []
        while len(found) < 5:
            found += [each.value for each in consumer.poll(30)]
        assert found == 5 * [value]


def test_a_client_shows_its_certificate(kafka: KafkaBroker, trusted: dict[str, Any]) -> None:
    of = {"security_protocol": "SSL", **trusted}
    own = {"ssl_keystore_location": str(kafka.directory.parent / "alice.pem")}
    with Admin(kafka.addresses["TLS"], **of, **own) as admin:
        assert "plain" in {each.name for each in admin.list_topics()}
    with (
        Admin(kafka.addresses["TLS"], **of) as admin,
        pytest.raises(KdistError, match="certificate"),
    ):
        admin.list_topics()


@pytest.mark.parametrize(
    ("listener", "given", "sentence"),
    [
        ("TLS", {}, "TLS"),
        ("SASL", {"security_protocol": "SSL"}, "TLS"),
        ("TLS", {"security_protocol": "SSL"}, "its certificate is refused"),
    ],
)
def test_a_port_that_speaks_otherwise_or_is_not_trusted_is_told(
    kafka: KafkaBroker, listener: str, given: dict[str, Any], sentence: str
) -> None:
    with (
        Admin(kafka.addresses[listener], request_timeout_ms=3_000, **given) as admin,
        pytest.raises(KdistError, match=sentence),
    ):
        admin.list_topics()
