"""A cluster's partitions seen from three sides: directories on disk, znodes, brokers' metadata.

`Churn` creates and deletes topics all the time, and records which requests were confirmed.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol import create_topics, delete_topics, metadata
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic
from kdist.protocol.delete_topics import DeleteTopicsRequest
from kdist.protocol.metadata import MetadataRequest, MetadataResponse
from kdist.storage.meta import decode_partition_metadata
from kdist.zk import znodes
from tests.integration.broker_processes import BrokerProcess
from tests.integration.fire_wire import Wire

POOL = [f"churn-{n}" for n in range(8)]  # few names, so that most were there before
PARTITIONS_MAX = 6
PAUSE_S = 0.01
ASK_S = 10.0


class Held(NamedTuple):
    """Where a partition is, and of which topic it is one."""

    broker: int
    topic_id: uuid.UUID


Picture = dict[TopicPartition, Held]


def on_disk(brokers: list[BrokerProcess]) -> Picture:
    """Each partition's directory; a directory of anything else is a failure."""
    found: Picture = {}
    for broker in brokers:
        for path in _directories(broker.directory):
            topic, _, number = path.name.rpartition("-")
            partition = TopicPartition(topic, int(number))
            assert partition not in found, f"{partition} is on two brokers"
            content = (path / "partition.metadata").read_bytes()
            found[partition] = Held(broker.id, decode_partition_metadata(content, str(path)))
    return found


def leftovers(brokers: list[BrokerProcess]) -> list[str]:
    """Directories that are neither a partition's nor gone."""
    paths = (path for broker in brokers for path in broker.directory.iterdir() if path.is_dir())
    return [str(path) for path in paths if not path.name.rpartition("-")[2].isdecimal()]


def _directories(directory: Path) -> list[Path]:
    paths = [path for path in directory.iterdir() if path.is_dir()]
    return [path for path in paths if path.name.rpartition("-")[2].isdecimal()]


def in_zookeeper(client: KazooClient) -> Picture:
    """Each partition that a topic's znode has, with the leader in its state znode (-1: none)."""
    found: Picture = {}
    for topic in _children(client, znodes.TOPICS.path()):
        try:
            path = znodes.TOPIC.path(topic)
            assignment = znodes.TOPIC.decode(path, client.get(path)[0])
            assert assignment.topic_id is not None
            for number in assignment.partitions:
                path = znodes.PARTITION_STATE.path(topic, number)
                state = znodes.PARTITION_STATE.decode(path, client.get(path)[0])
                found[TopicPartition(topic, number)] = Held(state.leader, assignment.topic_id)
        except NoNodeError:  # created or deleted just now
            found[TopicPartition(topic, -1)] = Held(-1, uuid.UUID(int=0))
    return found


def unfinished(client: KazooClient, topics: set[str]) -> list[str]:
    """What a deletion should have taken with it: requests to delete, settings, partition znodes."""
    pending = [f"deletion of {topic}" for topic in _children(client, znodes.TOPIC_DELETIONS.path())]
    settings = set(_children(client, znodes.TOPIC_SETTINGS.parent)) - topics
    return pending + [f"settings of {topic}" for topic in settings]


def _children(client: KazooClient, path: str) -> list[str]:
    try:
        found: list[str] = client.get_children(path)
    except NoNodeError:
        return []
    return found


def told_by(broker: BrokerProcess) -> Picture:
    """Each partition's leader (-1: none) as this broker tells it."""
    answer = ask_metadata(broker)
    return {
        TopicPartition(topic.name, each.partition_index): Held(each.leader_id, topic.topic_id)
        for topic in answer.topics
        for each in topic.partitions
    }


def ask_metadata(broker: BrokerProcess) -> MetadataResponse:
    with Wire(broker.port) as wire:
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer: MetadataResponse = wire.ask(metadata.API, 12, request)
        return answer


def differences(brokers: list[BrokerProcess], client: KazooClient) -> list[str]:
    """Where the three sides do not agree, in words; empty when all is settled."""
    wanted = in_zookeeper(client)
    sides = {"disk": on_disk(brokers)} | {
        f"broker {broker.id}": told_by(broker) for broker in brokers
    }
    words = [
        f"{partition}: ZooKeeper has {wanted.get(partition)}, {name} {side.get(partition)}"
        for name, side in sides.items()
        for partition in sorted(wanted.keys() | side.keys())
        if wanted.get(partition) != side.get(partition)
    ]
    gone = unfinished(client, {partition.topic for partition in wanted})
    return words + gone + leftovers(brokers)


class Churn:
    """Topics of a small pool created and deleted in turn, by whoever is the controller.

    `exists` is what was promised: True, False, or None where no answer came.
    """

    def __init__(self, brokers: list[BrokerProcess], seed: int) -> None:
        self.exists: dict[str, bool | None] = dict.fromkeys(POOL, False)
        self.created = self.deleted = self.unanswered = 0
        self.broken: list[str] = []
        self.history: list[str] = []
        self._brokers = brokers
        self._rng = random.Random(seed)
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def done(self) -> int:
        return self.created + self.deleted

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_stopping.wait(PAUSE_S):
            name = self._rng.choice(POOL)
            if self.exists[name] is False:
                self.exists[name] = self._create(name)
            else:  # None: after a deletion we know again
                self.exists[name] = self._delete(name)

    def _create(self, name: str) -> bool | None:
        new = NewTopic(
            name=name,
            num_partitions=self._rng.randint(1, PARTITIONS_MAX),
            replication_factor=1,
            assignments=[],
            configs=[],
        )
        request = CreateTopicsRequest(topics=[new], timeout_ms=5_000)
        error = self._ask(f"create {name}", create_topics.API, 7, request, lambda a: a.topics[0])
        if error is Error.NONE:
            self.created += 1
            return True
        if error is Error.TOPIC_ALREADY_EXISTS and "is being deleted" in self.history[-1]:
            return False  # until the brokers that were down have deleted it too
        self._doubt(name, error)
        return None

    def _delete(self, name: str) -> bool | None:
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=5_000)
        error = self._ask(f"delete {name}", delete_topics.API, 5, request, lambda a: a.responses[0])
        if error is Error.UNKNOWN_TOPIC_OR_PARTITION and self.exists[name] is None:
            return False
        if error is Error.NONE:
            self.deleted += 1
            return False
        self._doubt(name, error)
        return None

    def _doubt(self, name: str, error: Error | None) -> None:
        """An answer that promises nothing; others are broken promises."""
        self.unanswered += 1
        if error not in (None, Error.NOT_CONTROLLER, Error.REQUEST_TIMED_OUT):
            self.broken += [line for line in self.history if f" {name} " in f"{line} "][-6:]

    def _ask(
        self, what: str, api: Any, version: int, request: Any, result: Callable[[Any], Any]
    ) -> Error | None:
        """Of whom somebody alive believes to be the controller; None if no answer comes."""
        asked = self._rng.choice(self._brokers)
        begun_s = time.monotonic()
        answered = "no answer"
        try:
            controller = ask_metadata(asked).controller_id
            broker = next((b for b in self._brokers if b.id == controller), asked)
            answered = f"no answer from {broker.id}"
            with Wire(broker.port, ASK_S) as wire:
                answer = result(wire.ask(api, version, request))
            answered = f"{broker.id} said {Error(answer.error_code).name} {answer.error_message}"
            return Error(answer.error_code)
        except (OSError, EOFError):
            return None
        finally:
            took_s = time.monotonic() - begun_s
            self.history.append(f"{begun_s:.2f} s: {what} : {answered} after {took_s:.2f} s")
