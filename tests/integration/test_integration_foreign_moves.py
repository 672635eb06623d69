"""Partitions are moved, and leaders elected, by admin clients that nobody here wrote, under load.

What they did is judged by ZooKeeper, and what they are told by what kdist's own client is.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartitionReplica
from peer.go_program import ensure_program

from kdist.client.admin.clients import Admin
from kdist.client.admin.reassignments import Reassignment
from kdist.client.admin.topics import NewTopic
from kdist.model import TopicPartition
from tests.integration.broker_processes import BrokerProcess, broker_processes, settled
from tests.integration.moved_by_tool import MOVED_S, PARTITIONS, TOPIC, Load
from tests.integration.replicated_topics import ZnodesOfTopics, znodes_of
from tests.integration.zookeeper_server import ZooKeeperHost

pytestmark = [
    pytest.mark.peer,
    pytest.mark.xdist_group("foreign-moves"),
    pytest.mark.timeout(600),
]

PROGRAM_S = 120
FIRST, SECOND = [[1, 2], [2, 1], [1, 2]], [[2, 3], [2, 1], [3, 1]]
REORDERED = [[3, 2], [1, 2], [1, 3]]
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
Targets = Sequence[list[int] | None]


class Refused(Exception):
    """A client was told of an error of a partition."""


class KafkaPython:
    """kafka-python's admin client."""

    can_cancel = True

    def __init__(self, address: str) -> None:
        self._client = KafkaAdminClient(bootstrap_servers=address)

    def close(self) -> None:
        self._client.close()

    def alter(self, targets: Targets) -> None:
        asked = {kafka.TopicPartition(TOPIC, number): each for number, each in enumerate(targets)}
        told = self._client.alter_partition_reassignments(asked)
        if wrong := [each.__name__ for each in told.values() if each is not None]:
            raise Refused(", ".join(wrong))

    def moves(self) -> dict[int, Reassignment]:
        return {
            each.partition: Reassignment(
                tuple(found["replicas"]),
                tuple(found["adding_replicas"]),
                tuple(found["removing_replicas"]),
            )
            for each, found in self._client.list_partition_reassignments().items()
        }

    def elect(self) -> dict[int, bool]:
        """By partition whether one was elected now: else it was the leader before."""
        told = self._client.elect_leaders(0, {TOPIC: [*range(PARTITIONS)]})
        (result,) = told.replica_election_results
        return {each.partition_id: not each.error_code for each in result.partition_result}

    def sizes(self) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for told in self._client.describe_log_dirs([TOPIC]):
            for directory in told["log_dirs"]:
                for topic in directory["topics"]:
                    found = sum(each["partition_size"] for each in topic["partitions"])
                    sizes[told["broker"]] = sizes.get(told["broker"], 0) + found
        return sizes

    def move_within(self, broker: BrokerProcess, path: str) -> str:
        asked = {TopicPartitionReplica(TOPIC, 0, broker.id): path}
        (error,) = self._client.alter_replica_log_dirs(asked).values()
        return str(error.__name__)


class Go:
    """sarama's or kafka-go's admin client, in `peer/gomoves`."""

    def __init__(self, address: str, library: str) -> None:
        source = Path(__file__).parent / "peer" / "gomoves"
        self._program = ensure_program(source, "the moves of sarama and kafka-go")
        self._words = [address, library]
        self.can_cancel = library == "sarama"  # kafka-go sends no null

    def _run(self, command: str, *words: str) -> Any:
        line = [str(self._program), *self._words, command, TOPIC, *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
        if done.returncode:
            raise Refused(done.stderr)
        return json.loads(done.stdout)

    def alter(self, targets: Targets) -> None:
        self._run("alter", json.dumps(targets))

    def moves(self) -> dict[int, Reassignment]:
        return {
            int(number): Reassignment(
                *(tuple(found[each] or ()) for each in ("replicas", "adding", "removing"))
            )
            for number, found in self._run("list", str(PARTITIONS)).items()
        }

    def elect(self) -> dict[int, bool]:
        told = self._run("elect", str(PARTITIONS))
        return {int(number): not error for number, error in told.items()}

    def sizes(self) -> dict[int, int]:
        return {int(broker): size for broker, size in self._run("dirs").items()}


class Stage:
    """Three brokers with a topic that is written to, and those who look at it."""

    def __init__(self, brokers: list[BrokerProcess], admin: Admin, znodes: ZnodesOfTopics) -> None:
        self.brokers = brokers
        self.admin = admin
        self.znodes = znodes
        self.load = Load(",".join(each.address for each in brokers))
        admin.create_topics([NewTopic(TOPIC, replicas=FIRST)])
        self.load.fill(3_000)

    @contextmanager
    def mover(self, library: str) -> Iterator[Any]:
        address = self.brokers[0].address
        if library != "kafka-python":
            yield Go(address, library)
            return
        client = KafkaPython(address)
        yield client
        client.close()

    def settle(self, replicas: Sequence[list[int]]) -> None:
        """Wait until these are the replicas, all in sync, and nothing moves."""
        znodes = self.znodes

        def is_there() -> bool:
            is_placed = not znodes.is_moved(TOPIC) and znodes.replicas(TOPIC) == [*replicas]
            return is_placed and znodes.are_in_sync(TOPIC, 2)

        settled(is_there, MOVED_S)

    def hold(self, rate: int | None) -> None:
        """Have moves get nowhere, or free them again."""
        set_ = {} if rate is None else dict.fromkeys(RATES, str(rate))
        unset = RATES if rate is None else ()
        for each in self.brokers:
            self.admin.incremental_alter_broker_configs(each.id, set_, unset)
        set_ = {} if rate is None else dict.fromkeys(LISTS, "*")
        self.admin.incremental_alter_topic_configs(TOPIC, set_, unset=LISTS if rate is None else ())


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperHost) -> Iterator[Stage]:
    connect = f"{zookeeper.settings.address}/moves"
    with (
        broker_processes(3, tmp_path_factory.mktemp("brokers"), connect) as started,
        znodes_of(connect) as znodes,
        Admin(started[0].address) as admin,
    ):
        yield Stage(started, admin, znodes)


@pytest.fixture
def mover(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Any]:
    with stage.mover(request.param) as client:
        yield client


@pytest.mark.parametrize("mover", ["kafka-python", "sarama", "kafka-go"], indirect=True)
def test_foreign_clients_move_list_cancel_and_elect(stage: Stage, mover: Any) -> None:
    own = {TopicPartition(TOPIC, number): each for number, each in enumerate(FIRST)}
    stage.admin.alter_partition_reassignments(own)
    stage.settle(FIRST)
    stage.admin.elect_leaders(own)
    stage.load.send(0.5)

    stage.hold(0)
    mover.alter(SECOND)
    assert stage.znodes.is_moved(TOPIC)
    found = stage.admin.list_partition_reassignments()
    assert mover.moves() == {each.partition: move for each, move in found.items()}
    assert mover.moves() == {
        0: Reassignment((2, 3, 1), (3,), (1,)),
        2: Reassignment((3, 1, 2), (3,), (2,)),
    }
    stage.load.send(0.5)
    mover.alter([None, [2, 1], None] if mover.can_cancel else FIRST)
    stage.settle(FIRST)

    stage.hold(None)
    mover.alter(SECOND)
    stage.settle(SECOND)
    assert mover.moves() == {}
    mover.alter(REORDERED)
    stage.settle(REORDERED)
    before = [each.leader for each in stage.znodes.states(TOPIC)]
    elected = mover.elect()
    assert elected == {n: before[n] != each[0] for n, each in enumerate(REORDERED)}
    assert elected[1]
    settled(
        lambda: (
            [each.leader for each in stage.znodes.states(TOPIC)] == [each[0] for each in REORDERED]
        )
    )
    with pytest.raises(Refused, match=r"(?i)replica(tion)?.?assignment"):
        mover.alter([[1, 9], *REORDERED[1:]])
    assert stage.znodes.replicas(TOPIC) == REORDERED
    stage.load.check()


@pytest.mark.parametrize("mover", ["kafka-python", "sarama"], indirect=True)
def test_foreign_clients_are_told_of_log_directories(stage: Stage, mover: Any) -> None:
    assert stage.load.flush(60)

    def own() -> dict[int, int]:
        sizes: dict[int, int] = {}
        for broker, directories in stage.admin.describe_log_dirs().items():
            for each in (one for directory in directories for one in directory.replicas):
                if each.partition.topic == TOPIC:
                    sizes[broker] = sizes.get(broker, 0) + each.size_bytes
        return sizes

    settled(lambda: mover.sizes() == own())
    assert all(own().values())


@pytest.mark.parametrize("mover", ["kafka-python"], indirect=True)
def test_no_replica_is_moved_within_a_broker_which_has_one_directory(
    stage: Stage, mover: Any
) -> None:
    broker = stage.brokers[stage.znodes.replicas(TOPIC)[0][0] - 1]
    assert mover.move_within(broker, str(broker.directory)) == "NoError"
    assert mover.move_within(broker, "/nowhere") == "LogDirNotFoundError"
