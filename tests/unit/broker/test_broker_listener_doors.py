"""Whole brokers with secured listeners, in virtual time: who gets in as whom, brokers included."""

from __future__ import annotations

import datetime
import functools
import json
import random

from kdist.broker.broker import Broker
from kdist.config.security import ACL_AUTHORIZER
from kdist.errors import Error
from kdist.model import ANONYMOUS, Principal
from kdist.network.client import Client, ClientSettings
from kdist.network.client_security import ClientSecurity, with_password
from kdist.network.tls import ClientTls
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic
from kdist.protocol.metadata import MetadataRequest
from kdist.security.scram import format_credential, new_credential
from tests.certificates import Authority, Issued, client_context
from tests.simulator.cluster import Cluster

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

    async def start(self, *ids: int) -> list[Broker]:
        zk = self.cluster.ensemble.client(host="admin")
        await zk.connect()
        for user, password in (("broker", "hunter1"), ("bob", "hunter3")):
            credential = format_credential(new_credential(SCRAM, password, b"salt"))
            data = json.dumps({"version": 1, "config": {SCRAM: credential}}).encode()
            await zk.create(f"/config/users/{user}", data, make_parents=True)
        for each in ids:
            self.cluster.replace_disk(each)
            disk = self.cluster.disks[each]
            disk.replace("/d/key.pem", issued("broker", f"m{each}").pem)
            disk.replace("/d/ca.pem", authority().pem)
        return [await self.cluster.started(each) for each in ids]

    async def client(
        self, port: int, user: tuple[str, str, str] | None = None, own: Issued | None = None
    ) -> Client:
        """A connection to the first broker. `user`: mechanism, name and password."""
        sasl = with_password(*user, random.Random(1)) if user is not None else None
        context = client_context(own, trusts=authority().pem)
        tls = ClientTls(lambda: context, self.cluster.clock.now_ms) if port != 9094 else None
        settings = ClientSettings("tests", security=ClientSecurity(sasl, tls))
        host = self.cluster.network.host("client")
        return await Client.connect_negotiated(host, "m1", port, settings)


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


async def create_on_both(client: Client, topic: str) -> None:
    new = NewTopic(name=topic, num_partitions=1, replication_factor=2, assignments=[], configs=[])
    answer = await client.send(CreateTopicsRequest(topics=[new], timeout_ms=10_000), 7)
    assert answer.topics[0].error_code == Error.NONE


def test_brokers_log_in_to_each_other_and_clients_get_in_by_each_door() -> None:
    secured = Secured()

    async def scenario() -> None:
        brokers = await secured.start(1, 2)
        alice = await secured.client(9092, ALICE)
        await create_on_both(alice, "clicks")
        await secured.until(
            lambda: all(len(each.service.replicas.partitions) == 1 for each in brokers)
        )
        bob = await secured.client(9092, BOB)
        shown = await secured.client(9093, own=issued("alice"))
        nameless = await secured.client(9093)
        clear = await secured.client(9094)
        assert whom(brokers[0]) == {ANONYMOUS, user("alice"), user("bob"), user("broker")}
        assert [await may_see(each) for each in (alice, bob, shown, nameless, clear)] == [
            *(True, False, True, False, False)
        ]

    secured.cluster.run(scenario())
