"""kdist's clients authenticate to Apache Kafka 3.9, by each mechanism, and again in time."""

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

from kdist import Admin, Consumer, NewTopic, Producer
from kdist.errors import Error
from tests.refusals import refused

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("kafka")]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SESSION_MS = 1_500
MODULE = "org.apache.kafka.common.security"
ONE = "listener.name.sasl"
SETTINGS = {
    f"{ONE}.sasl.enabled.mechanisms": ",".join(MECHANISMS),
    f"{ONE}.plain.sasl.jaas.config": (
        f'{MODULE}.plain.PlainLoginModule required user_alice="secret";'
    ),
    f"{ONE}.scram-sha-256.sasl.jaas.config": f"{MODULE}.scram.ScramLoginModule required;",
    f"{ONE}.scram-sha-512.sasl.jaas.config": f"{MODULE}.scram.ScramLoginModule required;",
    f"{ONE}.oauthbearer.sasl.jaas.config": (
        f"{MODULE}.oauthbearer.OAuthBearerLoginModule required"
        ' unsecuredLoginStringClaim_sub="broker";'
    ),
    **{f"{ONE}.{each.lower()}.connections.max.reauth.ms": str(SESSION_MS) for each in MECHANISMS},
}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    directory = tmp_path_factory.mktemp("kafka-sasl") / "broker"
    with KafkaBroker(directory, sasl=True, **SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            credential = ScramCredentialInfo(mechanism, 4096)
            change = UserScramCredentialUpsertion("alice", credential, b"secret")
            for done in admin.alter_user_scram_credentials([change]).values():
                done.result(30)
        with Admin(broker.address) as clear:
            clear.create_topics([NewTopic(each.lower(), partitions=1) for each in MECHANISMS])
        yield broker


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
        Producer(kafka.sasl_address, **of) as producer,
        Consumer(
            kafka.sasl_address, group_id=topic, auto_offset_reset="earliest", **of
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
        Admin(kafka.sasl_address, **of) as admin,
        refused(Error.SASL_AUTHENTICATION_FAILED, mechanism),
    ):
        admin.list_topics()
    with (
        Producer(kafka.sasl_address, max_block_ms=600_000, **of) as producer,
        refused(Error.SASL_AUTHENTICATION_FAILED, mechanism),
    ):
        producer.send("plain", b"x")
    with (
        Consumer(kafka.sasl_address, group_id="wrong", **of) as consumer,
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
