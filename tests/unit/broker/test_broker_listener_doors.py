"""Whole brokers with secured listeners, in virtual time: who gets in as whom, brokers included."""

from __future__ import annotations

import datetime
import functools
import json
import random
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kdist.broker.broker import Broker
from kdist.config.security import ACL_AUTHORIZER
from kdist.errors import Error, UserError
from kdist.model import ANONYMOUS, Principal, TopicPartition
from kdist.network.client import Client, ClientSettings
from kdist.network.client_security import ClientSecurity, Sasl, with_password
from kdist.network.tls import ClientTls
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic
from kdist.protocol.metadata import MetadataRequest
from kdist.security.sasl import OAuthClient
from kdist.security.scram import format_credential, new_credential
from tests.certificates import Authority, Issued, client_context
from tests.refusals import refused
from tests.simulator.cluster import Cluster, produce

SCRAM = "SCRAM-SHA-512"
MODULES = "org.apache.kafka.common.security"
OF_BROKERS = f'{MODULES}.scram.ScramLoginModule required username="broker" password="hunter1";'
OF_PLAIN = f'{MODULES}.plain.PlainLoginModule required user_alice="hunter2";'
LISTENERS = {
    "listeners": "IN://:9091,OUT://:9092,TLS://:9093,CLEAR://:9094",
    "listener.security.protocol.map": "IN:SASL_SSL,OUT:SASL_SSL,TLS:SSL,CLEAR:PLAINTEXT",
    "listener.name.in.sasl.enabled.mechanisms": SCRAM,
    "listener.name.in.sasl.jaas.config": OF_BROKERS,
    "listener.name.out.sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
    "listener.name.out.plain.sasl.jaas.config": OF_PLAIN,
    "inter.broker.listener.name": "IN",
    "ssl.keystore.location": "/d/key.pem",
    "ssl.truststore.location": "/d/ca.pem",
    "ssl.client.auth": "requested",
    "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/",
    "authorizer.class.name": ACL_AUTHORIZER,
    "super.users": "User:broker;User:alice",
}
FROM = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)  # before the virtual clock begins
UNTIL = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


@functools.cache
def authority() -> Authority:
    return Authority(not_before=FROM, not_after=UNTIL)


@functools.cache
def issued(name: str, *hosts: str) -> Issued:
    return authority().issue(name, hosts=hosts, not_before=FROM, not_after=UNTIL)


class Secured:
    """A cluster whose brokers all have these listeners."""

    def __init__(self, **settings: str) -> None:
        given = LISTENERS | {name.replace("_", "."): text for name, text in settings.items()}
        self.cluster = Cluster(settings=given)
        self.until = self.cluster.until
        # Made before the loop runs: a callback of it must not take so long.
        self.certificates = {each: issued("broker", f"m{each}").pem for each in (1, 2, 3)}
        self.credentials = {
            user: format_credential(new_credential(SCRAM, password, b"salt"))
            for user, password in (("broker", "hunter1"), ("bob", "hunter3"))
        }

    async def start(self, *ids: int) -> list[Broker]:
        zk = self.cluster.ensemble.client(host="admin")
        await zk.connect()
        for user, credential in self.credentials.items():
            data = json.dumps({"version": 1, "config": {SCRAM: credential}}).encode()
            await zk.create(f"/config/users/{user}", data, make_parents=True)
        for each in ids:
            self.cluster.replace_disk(each)
            disk = self.cluster.disks[each]
            disk.replace("/d/key.pem", self.certificates[each])
            disk.replace("/d/ca.pem", authority().pem)
        return [await self.cluster.started(each) for each in ids]

    async def client(
        self,
        port: int,
        user: tuple[str, str, str] | None = None,
        own: Issued | None = None,
        broker: int = 1,
    ) -> Client:
        """A connection to a broker. `user`: mechanism, name and password."""
        sasl = with_password(*user, random.Random(1)) if user is not None else None
        return await self.client_by(port, sasl, own, broker)

    async def client_by(
        self, port: int, sasl: Sasl | None, own: Issued | None = None, broker: int = 1
    ) -> Client:
        context = client_context(own, trusts=authority().pem)
        tls = ClientTls(lambda: context, self.cluster.clock.now_ms) if port != 9094 else None
        settings = ClientSettings("tests", security=ClientSecurity(sasl, tls))
        host = self.cluster.network.host("client")
        return await Client.connect_negotiated(host, f"m{broker}", port, settings)


def whom(broker: Broker) -> set[Principal]:
    """Who is connected."""
    listeners = broker._gateway._listeners
    return {each.principal for listener in listeners for each in listener.connections}


def user(name: str) -> Principal:
    return Principal("User", name)


ALICE, BOB = ("PLAIN", "alice", "hunter2"), (SCRAM, "bob", "hunter3")


async def may_see(client: Client) -> bool:
    """Whether it is told of the topic that there is."""
    answer = await client.send(MetadataRequest(topics=None), 12)
    return [each.name for each in answer.topics] == ["clicks"]


async def create_on_all(client: Client, topic: str, replicas: int = 2) -> None:
    new = NewTopic(
        name=topic,
        num_partitions=1,
        replication_factor=replicas,
        assignments=[],
        configs=[],
    )
    answer = await client.send(CreateTopicsRequest(topics=[new], timeout_ms=10_000), 7)
    assert answer.topics[0].error_code == Error.NONE


def played_secured(
    scenario: Callable[[Secured], Coroutine[Any, Any, None]], **settings: str
) -> None:
    """On a cluster that is not started yet."""
    for name in ("alice", "Alice 1"):
        issued(name)
    secured = Secured(**settings)
    secured.cluster.run(scenario(secured))


pytestmark = pytest.mark.played(by=played_secured)


async def test_brokers_log_in_to_each_other_and_clients_get_in_by_each_door(
    secured: Secured, /
) -> None:
    brokers = await secured.start(1, 2)
    alice = await secured.client(9092, ALICE)
    await create_on_all(alice, "clicks")
    await secured.until(lambda: all(len(each.service.replicas.partitions) == 1 for each in brokers))
    bob = await secured.client(9092, BOB)
    shown = await secured.client(9093, own=issued("alice"))
    nameless = await secured.client(9093)
    clear = await secured.client(9094)
    assert whom(brokers[0]) == {ANONYMOUS, user("alice"), user("bob"), user("broker")}
    assert [await may_see(each) for each in (alice, bob, shown, nameless, clear)] == [
        *(True, False, True, False, False)
    ]


async def test_what_is_acknowledged_by_all_is_on_both_brokers(secured: Secured, /) -> None:
    brokers = await secured.start(1, 2)
    await create_on_all(await secured.client(9092, ALICE), "clicks")
    key = TopicPartition("clicks", 0)
    await secured.until(lambda: any(_leads(each, key) for each in brokers))
    leader = next(each for each in brokers if _leads(each, key))
    alice = await secured.client(9092, ALICE, broker=leader.id)
    answer = await produce(alice, "clicks", b"1", b"2")
    assert answer.error_code == Error.NONE
    assert {each.service.replicas.partitions[key].log.end_offset for each in brokers} == {2}


def _leads(broker: Broker, key: TopicPartition) -> bool:
    partition = broker.service.replicas.partitions.get(key)
    return partition is not None and partition.is_leader


@pytest.mark.parametrize(
    "user",
    [
        ("PLAIN", "alice", "hunter3"),
        ("PLAIN", "bob", "hunter3"),  # has no password for PLAIN
        (SCRAM, "bob", "hunter2"),
        (SCRAM, "alice", "hunter2"),  # has no credential for SCRAM
        (SCRAM, "nobody", "x"),
    ],
)
async def test_a_wrong_password_gets_nobody_in(
    secured: Secured, /, user: tuple[str, str, str]
) -> None:
    await secured.start(1)
    with refused(Error.SASL_AUTHENTICATION_FAILED):
        await secured.client(9092, user)


async def test_a_mechanism_that_the_listener_does_not_have_is_refused(secured: Secured, /) -> None:
    await secured.start(1)
    with refused(Error.UNSUPPORTED_SASL_MECHANISM):
        await secured.client(9091, ALICE)


async def test_nobody_is_served_before_he_has_logged_in(secured: Secured, /) -> None:
    await secured.start(1)
    client = await secured.client(9092)  # ApiVersions is answered
    with refused(Error.NETWORK_EXCEPTION):
        await client.send(MetadataRequest(topics=None), 12)


async def test_a_certificate_that_no_rule_makes_a_user_of_gets_nobody_in(
    secured: Secured, /
) -> None:
    (broker,) = await secured.start(1)
    with refused(Error.NETWORK_EXCEPTION):
        await secured.client(9093, own=issued("Alice 1"))
    assert whom(broker) <= {user("broker")}


async def test_a_user_whose_credential_is_deleted_is_disconnected(secured: Secured, /) -> None:
    (broker,) = await secured.start(1)
    await secured.client(9092, BOB)
    assert user("bob") in whom(broker)
    zk = secured.cluster.ensemble.client(host="admin")
    await zk.connect()
    await zk.delete("/config/users/bob")
    await broker._users.reload_user("bob")
    await secured.until(lambda: user("bob") not in whom(broker))
    with refused(Error.SASL_AUTHENTICATION_FAILED):
        await secured.client(9092, BOB)


@pytest.mark.parametrize("content", [b"", b"no PEM"])
async def test_a_broker_without_its_certificate_opens_no_listener(
    secured: Secured, /, content: bytes
) -> None:
    secured.certificates[1] = content
    with pytest.raises(UserError, match=r"listener IN: .*ssl\.keystore"):
        await secured.start(1)


@pytest.mark.played(by=played_secured, ssl_principal_mapping_rules="RULE:(/x/")
async def test_mapping_rules_that_cannot_be_read_are_a_sentence(secured: Secured, /) -> None:
    with pytest.raises(UserError, match=r"listener IN: ssl\.principal\.mapping\.rules: "):
        await secured.start(1)


# Tokens

TOKEN_KEY = ec.generate_private_key(ec.SECP256R1())
WITH_TOKENS = {
    "listener.name.out.sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.out.plain.sasl.jaas.config": OF_PLAIN,
    "sasl.oauthbearer.expected.issuer": "issuer",
    "sasl.oauthbearer.expected.audience": "kdist",
}


def played_with_tokens(scenario: Callable[[Secured], Coroutine[Any, Any, None]]) -> None:
    """With a listener that takes tokens, which are signed by TOKEN_KEY."""
    reader: Any = jwt.get_algorithm_by_name("ES256")
    jwk = {"kid": "1", **reader.to_jwk(TOKEN_KEY.public_key(), as_dict=True)}
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(json.dumps({"keys": [jwk]}).encode())
        file.flush()
        url = {"sasl.oauthbearer.jwks.endpoint.url": Path(file.name).as_uri()}
        played_secured(scenario, **WITH_TOKENS, **url)


@pytest.mark.parametrize(
    ("name", "key", "error"),
    [
        ("carol", TOKEN_KEY, None),
        ("carol", ec.generate_private_key(ec.SECP256R1()), Error.SASL_AUTHENTICATION_FAILED),
        ("broker", TOKEN_KEY, Error.SASL_AUTHENTICATION_FAILED),  # a super user's name
        ("alice", TOKEN_KEY, Error.SASL_AUTHENTICATION_FAILED),
    ],
)
@pytest.mark.played(by=played_with_tokens)
async def test_a_token_gets_in_whom_it_names_unless_that_is_a_super_user(
    secured: Secured, /, name: str, key: ec.EllipticCurvePrivateKey, error: Error | None
) -> None:
    (broker,) = await secured.start(1)
    now_s = secured.cluster.clock.now_ms() / 1000
    claims = {"iss": "issuer", "aud": "kdist", "sub": name, "iat": now_s, "exp": now_s + 600}
    token = jwt.encode(claims, key, "ES256", {"kid": "1"})
    sasl = Sasl("OAUTHBEARER", lambda: OAuthClient(token), random.Random(1))
    if error is not None:
        with refused(error):
            await secured.client_by(9092, sasl)
    else:
        await secured.client_by(9092, sasl)
        assert user(name) in whom(broker)


# Brokers move to another listener, one after the other

OLD = {"inter_broker_listener_name": "CLEAR", "super_users": "User:broker;User:ANONYMOUS"}
MOVED = {"inter_broker_listener_name": "IN", "inter_broker_listener_former": "CLEAR"}


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1)], ids=["controller first", "last"])
@pytest.mark.played(by=played_secured, **OLD)
async def test_brokers_move_to_a_secured_listener_one_by_one(
    secured: Secured, /, order: tuple[int, ...]
) -> None:
    """After each restart all brokers follow their leaders, whichever broker is the controller."""
    cluster = secured.cluster
    await secured.start(1, 2, 3)
    await create_on_all(await secured.client(9094), "clicks", replicas=3)
    key = TopicPartition("clicks", 0)

    def is_whole() -> bool:
        found = [each.service.replicas.partitions.get(key) for each in cluster.brokers.values()]
        return any(
            each is not None and each.is_leader and len(each.state.isr) == 3 for each in found
        )

    await secured.until(is_whole)
    for broker_id in order:
        await cluster.brokers[broker_id].stop()
        await cluster.started(broker_id, **MOVED)
        await secured.until(is_whole)
        assert not cluster.brokers[broker_id].failure.done()
