"""Clients on secured listeners: each library by PLAIN, SCRAM and its certificate.

Two brokers, which log in to each other by SCRAM over TLS, with ACLs. Who may do what is the ACLs'
matter, so each way in has a user of its own, who may use a topic of his own.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka
import pytest
from kafka.errors import KafkaError
from peer.kafka_peer import java_command

from kdist import Consumer, Producer
from kdist.config.security import ACL_AUTHORIZER
from tests.certificates import Authority, authority
from tests.integration.broker_processes import BrokerProcess, settled
from tests.integration.zookeeper_server import ZooKeeperHost, free_port

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("secured clients")]

WAIT_S = 60
MODULES = "org.apache.kafka.common.security"
OF_BROKERS = f'{MODULES}.scram.ScramLoginModule required username="broker" password="of brokers";'
OF_PLAIN = f'{MODULES}.plain.PlainLoginModule required user_paula="of paula";'
PASSWORDS = {"paula": "of paula", "sally": "of sally", "steve": "of steve"}
MECHANISMS = {"paula": "PLAIN", "sally": "SCRAM-SHA-256", "steve": "SCRAM-SHA-512"}
SETTINGS = {
    "listener.security.protocol.map": "BROKERS:SASL_SSL,SASL:SASL_SSL,TLS:SSL",
    "inter.broker.listener.name": "BROKERS",
    "listener.name.brokers.sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "listener.name.brokers.sasl.jaas.config": OF_BROKERS,
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl.plain.sasl.jaas.config": OF_PLAIN,
    "listener.name.tls.ssl.client.auth": "required",
    "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/",
    "authorizer.class.name": ACL_AUTHORIZER,
    "super.users": "User:broker",
    "num.partitions": "1",
    "default.replication.factor": "2",
    "offsets.topic.replication.factor": "2",
}
BRIEF = {"bootstrap_timeout_ms": 5_000, "max_block_ms": 5_000}  # of who is not let in
USERS = (*MECHANISMS, "carol")  # whom her certificate names


def kdist(*words: str, text: str = "") -> str:
    """What a command says, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "kdist.cli", *words],
        input=text,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Files(NamedTuple):
    """Where the clients' PEM files are."""

    trusted: Path
    own: Path  # carol's key and certificate


class Secured(NamedTuple):
    brokers: list[BrokerProcess]
    files: Files

    def port(self, user: str) -> int:
        """Of the first broker's listener by which the user gets in."""
        listeners = self.brokers[0].settings["listeners"].split(",")
        return int(listeners[2 if user == "carol" else 1].rpartition(":")[2])


def make_files(directory: Path) -> Files:
    files = Files(directory / "ca.pem", directory / "carol.pem")
    files.trusted.write_bytes(authority().pem)
    files.own.write_bytes(authority().issue("carol").pem)
    (directory / "broker.pem").write_bytes(authority().issue("broker").pem)
    return files


def make_users(connect: str) -> None:
    """Before there is a broker."""
    for user, password in (("broker", "of brokers"), *PASSWORDS.items()):
        mechanism = MECHANISMS.get(user, "SCRAM-SHA-512")
        if mechanism != "PLAIN":
            where = ("--zookeeper", connect, "--password-file", "-", "--mechanism", mechanism)
            kdist("users", "create", user, *where, text=password + "\n")


def make_acls(connect: str) -> None:
    for user in USERS:
        who = ("--zookeeper", connect, "--principal", f"User:{user}")
        kdist("acls", "add", *who, "--operation", "all", "--topic", user)
        kdist("acls", "add", *who, "--operation", "read", "--group", user, "--prefixed")


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperHost
) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    connect = f"{zookeeper.settings.address}/secured"
    files = make_files(directory)
    make_users(connect)
    make_acls(connect)
    brokers = [BrokerProcess(number, directory, connect) for number in (1, 2)]
    for broker in brokers:
        names = ("BROKERS", "SASL", "TLS")
        listeners = ",".join(f"{name}://127.0.0.1:{free_port()}" for name in names)
        broker.settings |= {
            **SETTINGS,
            "listeners": listeners,
            "ssl.keystore.location": str(directory / "broker.pem"),
            "ssl.truststore.location": str(files.trusted),
        }
    try:
        for broker in brokers:
            broker.begin()
        for broker in brokers:
            settled(lambda b=broker: b.process.poll() is not None or ": ready: " in b.text)
            assert broker.process.poll() is None, broker.text
        yield Secured(brokers, files)
    finally:
        for broker in brokers:
            broker.end()


@pytest.fixture(scope="module")
def secrets() -> tuple[str, ...]:
    """What no file but those of the settings may have."""
    return (*PASSWORDS.values(), "of brokers", "PRIVATE KEY")


# Each library: produce and consume by a group


def by_confluent_kafka(secured: Secured, user: str, password: str, values: list[bytes]) -> None:
    config: dict[str, Any] = {
        "bootstrap.servers": f"127.0.0.1:{secured.port(user)}",
        "ssl.ca.location": str(secured.files.trusted),
    }
    if user == "carol":
        own = str(secured.files.own)
        config |= {"ssl.certificate.location": own, "ssl.key.location": own}
        config["security.protocol"] = "SSL"
    else:
        config |= {"security.protocol": "SASL_SSL", "sasl.mechanism": MECHANISMS[user]}
        config |= {"sasl.username": user, "sasl.password": password}
    failed: list[Any] = []
    producer = confluent_kafka.Producer({**config, "message.timeout.ms": 15_000})
    for value in values:
        producer.produce(user, value, on_delivery=lambda e, _: e and failed.append(e))
    producer.flush(WAIT_S)
    if failed:
        raise confluent_kafka.KafkaException(failed[0])
    consumer = confluent_kafka.Consumer(
        {**config, "group.id": f"{user}-1", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([user])
    found: list[bytes] = []

    def look() -> bool:
        found.extend(each.value() for each in consumer.consume(100, 0.2) if not each.error())
        return values[-1] in found

    settled(look, WAIT_S)
    consumer.close()
    assert found[-len(values) :] == values


def by_kafka_python(secured: Secured, user: str, password: str, values: list[bytes]) -> None:
    config: dict[str, Any] = {
        "bootstrap_servers": f"127.0.0.1:{secured.port(user)}",
        "ssl_cafile": str(secured.files.trusted),
    }
    if user == "carol":
        own = str(secured.files.own)
        config |= {"security_protocol": "SSL", "ssl_certfile": own, "ssl_keyfile": own}
    else:
        config |= {"security_protocol": "SASL_SSL", "sasl_mechanism": MECHANISMS[user]}
        config |= {"sasl_plain_username": user, "sasl_plain_password": password}
    producer = kafka.KafkaProducer(**config, max_block_ms=15_000)
    sent = [producer.send(user, value) for value in values]
    for each in sent:
        each.get(WAIT_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        user, **config, group_id=f"{user}-2", auto_offset_reset="earliest"
    )
    found: list[bytes] = []

    def look() -> bool:
        for batch in consumer.poll(200).values():
            found.extend(each.value for each in batch)
        return values[-1] in found

    settled(look, WAIT_S)
    consumer.close()
    assert found[-len(values) :] == values


def by_aiokafka(secured: Secured, user: str, password: str, values: list[bytes]) -> None:
    asyncio.run(_by_aiokafka(secured, user, password, values))


async def _by_aiokafka(secured: Secured, user: str, password: str, values: list[bytes]) -> None:
    context = ssl.create_default_context(cafile=str(secured.files.trusted))
    config: dict[str, Any] = {
        "bootstrap_servers": f"127.0.0.1:{secured.port(user)}",
        "ssl_context": context,
    }
    if user == "carol":
        context.load_cert_chain(secured.files.own)
        config["security_protocol"] = "SSL"
    else:
        config |= {"security_protocol": "SASL_SSL", "sasl_mechanism": MECHANISMS[user]}
        config |= {"sasl_plain_username": user, "sasl_plain_password": password}
    async with aiokafka.AIOKafkaProducer(**config) as producer:
        for value in values:
            await producer.send_and_wait(user, value)
    consumer = aiokafka.AIOKafkaConsumer(
        user, **config, group_id=f"{user}-3", auto_offset_reset="earliest"
    )
    async with consumer:
        found: list[bytes] = []
        async with asyncio.timeout(WAIT_S):
            while values[-1] not in found:
                found.append((await consumer.getone()).value)
    assert found[-len(values) :] == values


def by_kdist(secured: Secured, user: str, password: str, values: list[bytes]) -> None:
    config: dict[str, Any] = {"ssl_truststore_location": str(secured.files.trusted)}
    if user == "carol":
        config |= {"security_protocol": "SSL", "ssl_keystore_location": str(secured.files.own)}
    else:
        config |= {"security_protocol": "SASL_SSL", "sasl_mechanism": MECHANISMS[user]}
        config |= {"sasl_username": user, "sasl_password": password}
    server = f"127.0.0.1:{secured.port(user)}"
    with Producer(server, **config) as producer:
        for sent in [producer.send(user, value) for value in values]:
            sent.result(WAIT_S)
    found: list[bytes] = []
    with Consumer(server, group_id=f"{user}-4", auto_offset_reset="earliest", **config) as consumer:
        consumer.subscribe([user])
        for record in consumer:
            found.append(record.value)
            if record.value == values[-1]:
                break
    assert found[-len(values) :] == values


Library = Callable[[Secured, str, str, list[bytes]], None]
LIBRARIES: tuple[Library, ...] = (by_confluent_kafka, by_kafka_python, by_aiokafka, by_kdist)


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_client_produces_and_consumes_as_its_user(
    secured: Secured, library: Library, user: str
) -> None:
    values = [f"{library.__name__} {number}".encode() for number in range(20)]
    library(secured, user, PASSWORDS.get(user, ""), values)


@pytest.mark.parametrize("user", USERS)
def test_apache_kafkas_tools_see_what_their_user_may(
    secured: Secured, user: str, tmp_path: Path
) -> None:
    given = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(secured.files.trusted)}
    if user == "carol":
        given |= {"security.protocol": "SSL", "ssl.keystore.type": "PEM"}
        given["ssl.keystore.location"] = str(secured.files.own)
    else:
        module = "plain.Plain" if MECHANISMS[user] == "PLAIN" else "scram.Scram"
        login = f'username="{user}" password="{PASSWORDS[user]}"'
        given |= {"security.protocol": "SASL_SSL", "sasl.mechanism": MECHANISMS[user]}
        given["sasl.jaas.config"] = f"{MODULES}.{module}LoginModule required {login};"
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    server = ("--bootstrap-server", f"127.0.0.1:{secured.port(user)}")
    how = (*server, "--command-config", str(file))
    create = ("--create", "--if-not-exists", "--topic", user)
    for words in (create, ("--list",)):
        command = java_command("org.apache.kafka.tools.TopicCommand", *how, *words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == [user]


def refused_by_confluent_kafka(secured: Secured, user: str, password: str, topic: str) -> None:
    """Fails unless the user can neither see nor write the topic."""
    config = {
        "bootstrap.servers": f"127.0.0.1:{secured.port(user)}",
        "ssl.ca.location": str(secured.files.trusted),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISMS[user],
        "sasl.username": user,
        "sasl.password": password,
        "message.timeout.ms": 5_000,
    }
    failed: list[Any] = []
    producer = confluent_kafka.Producer(config)
    producer.produce(topic, b"x", on_delivery=lambda e, _: e and failed.append(e.code()))
    producer.flush(WAIT_S)
    assert failed == [confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED]


def test_a_user_cannot_write_where_no_acl_allows_it(secured: Secured) -> None:
    refused_by_confluent_kafka(secured, "sally", PASSWORDS["sally"], "paula")
    refused_by_confluent_kafka(secured, "sally", PASSWORDS["sally"], "nobody's")


@pytest.mark.parametrize("user", ["paula", "sally", "steve"])
def test_a_wrong_password_gets_nobody_in(secured: Secured, user: str) -> None:
    config = {
        "bootstrap_servers": f"127.0.0.1:{secured.port(user)}",
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(secured.files.trusted),
        "sasl_mechanism": MECHANISMS[user],
        "sasl_plain_username": user,
        "sasl_plain_password": "of nobody",
    }
    with pytest.raises(KafkaError):
        kafka.KafkaProducer(**config, **BRIEF).send(user, b"x").get(10)


def test_no_certificate_or_one_of_another_ca_gets_nobody_in(
    secured: Secured, tmp_path: Path
) -> None:
    stranger = tmp_path / "stranger.pem"
    stranger.write_bytes(Authority("another CA").issue("carol").pem)
    for own in (None, str(stranger)):
        config = {
            "bootstrap_servers": f"127.0.0.1:{secured.port('carol')}",
            "security_protocol": "SSL",
            "ssl_cafile": str(secured.files.trusted),
            "ssl_certfile": own,
            "ssl_keyfile": own,
        }
        with pytest.raises(KafkaError):
            kafka.KafkaProducer(**config, **BRIEF).send("carol", b"x").get(10)


def test_no_secret_is_in_a_log(secured: Secured, secrets: tuple[str, ...]) -> None:
    """Last: after all that has happened here."""
    assert "no TLS connection with" in secured.brokers[0].text  # what was refused above is told
    for broker in secured.brokers:
        assert not [each for each in secrets if each in broker.text]
