"""Servers that nobody here wrote, for kdist's clients: each by a name, with what it can be asked.

Apache Kafka 3.9 and 4.1 in KRaft mode, franz-go's kfake, and the cluster that librdkafka has inside
for its own tests. That one answers clients only: it has no controller, and makes topics when they
are first asked for. It advertises flexible versions of the requests of groups and misreads them, so
that it is spoken to in those that librdkafka itself speaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from confluent_kafka import Producer
from peer.kafka_broker import KafkaBroker
from peer.kfake_peer import kfake

from kdist.client.admin.clients import Admin
from kdist.client.admin.topics import NewTopic
from kdist.network.client import Client
from kdist.protocol import heartbeat, join_group, leave_group, sync_group

WAIT_S = 40
_OLD_OF_GROUPS = {
    join_group.API.key: 5,
    sync_group.API.key: 3,
    heartbeat.API.key: 3,
    leave_group.API.key: 3,
}


class Server(NamedTuple):
    """A running server; one that `is_administered` answers what operators ask."""

    name: str
    address: str
    is_administered: bool

    def make_topic(self, topic: str, partitions: int) -> None:
        """Have the topic; where it is made by asking for it, with as many as the server likes."""
        if self.is_administered:
            with Admin(self.address) as admin:
                admin.create_topics([NewTopic(topic, partitions, 1)])
        else:
            Producer({"bootstrap.servers": self.address}).list_topics(topic, timeout=WAIT_S)


@contextmanager
def _kafka(release: str, directory: Path) -> Iterator[Server]:
    with KafkaBroker(directory / "broker", release=release) as broker:
        yield Server(f"kafka-{release}", broker.address, True)


@contextmanager
def _kfake(directory: Path) -> Iterator[Server]:
    with kfake() as address:
        yield Server("kfake", address, True)


@contextmanager
def _librdkafka(directory: Path) -> Iterator[Server]:
    host = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "ignored", "log_level": 0})
    brokers = host.list_topics(timeout=WAIT_S).brokers.values()
    address = ",".join(f"{each.host}:{each.port}" for each in brokers)
    with _in_old_versions():
        yield Server("librdkafka", address, False)


@contextmanager
def _in_old_versions() -> Iterator[None]:
    negotiate = Client.negotiate

    async def negotiate_old(client: Client) -> None:
        await negotiate(client)
        for key, newest in _OLD_OF_GROUPS.items():
            theirs = client.versions[key]
            theirs.max_version = min(newest, theirs.max_version)

    with mock.patch.object(Client, "negotiate", negotiate_old):
        yield


ADMINISTERED: dict[str, Callable[[Path], AbstractContextManager[Server]]] = {
    "kafka-3.9": partial(_kafka, "3.9"),
    "kafka-4.1": partial(_kafka, "4.1"),
    "kfake": _kfake,
}
SERVERS = ADMINISTERED | {"librdkafka": _librdkafka}
