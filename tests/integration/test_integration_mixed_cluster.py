"""kdist and Apache Kafka 3.9 as brokers of one cluster, under either's controller.

Kafka is the judge: of what a replica, a leader and a controller do, and of the files. Leaders go
back and forth under load; in the end each partition's three logs have the same bytes, Kafka's dump
tool finds nothing wrong with them, and nothing that was acknowledged is lost or there twice.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from peer.kafka_dump import Batch, read_dump
from peer.kafka_peer import dump_log_segments, run_tool

from kdist.model import TopicPartition as KdistPartition
from kdist.ops.reassignment.plan import Move, encode_plan
from tests.integration.broker_processes import settled
from tests.integration.fire_load import PARTITIONS, Group, Place, Writing, grown, read_topic
from tests.integration.load_checks import judge
from tests.integration.mixed_cluster import (
    IDS,
    OFFSETS_PARTITIONS,
    PATIENCE_S,
    MixedCluster,
    mixed_cluster,
)
from tests.integration.replicated_topics import log_bytes, segments
from tests.integration.standalone_process import KDIST

pytestmark = pytest.mark.peer

LOADED, JAVAS, COMPACTED, OFFSETS = "loaded", "javas", "compacted", "__consumer_offsets"
ASSIGNMENT = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]  # each broker is once the preferred leader
JAVA_RECORDS = 500
NUMBERS, KEYS = 6000, 90  # of the compacted topic; the keys of a partition are its own
ROUNDS = 8  # of the long form
BURST = 30  # records of the producer, every 20 ms or so


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MixedCluster]:
    with mixed_cluster(tmp_path, request.param) as running:
        yield running


def create(cluster: MixedCluster, *topics: str) -> None:
    """Topics with a replica on every broker."""
    new = [
        NewTopic(
            name,
            num_partitions=PARTITIONS,
            replica_assignment=ASSIGNMENT,
            config={"min.insync.replicas": "2"},
        )
        for name in topics
    ]
    client = AdminClient({"bootstrap.servers": cluster.addresses})
    for made in client.create_topics(new).values():
        made.result(30)


class Load:
    """A producer and a group, while faults happen one after the other."""

    def __init__(self, cluster: MixedCluster) -> None:
        self.cluster = cluster
        self.writing = Writing(cluster.addresses, LOADED, True, burst=BURST)
        self.group = Group(cluster.addresses, "readers", [LOADED])

    def grow(self) -> None:
        grown(self.writing.acknowledged.values, 1000)

    def outlive(self, how: str, broker_id: int) -> None:
        """Take a broker away, wait for other leaders, and have it back in every ISR."""
        cluster = self.cluster
        sys.stdout.write(f"controller {cluster.znodes.controller()}: {how} {broker_id}\n")
        self.grow()
        getattr(cluster, how)(broker_id)
        cluster.await_leaders_but(broker_id, LOADED)
        self.grow()
        if how == "pause":
            cluster.go_on(broker_id)
        else:
            cluster.start(broker_id)
        cluster.settle(LOADED, JAVAS, OFFSETS)

    def judge(self) -> None:
        judge(self.writing, self.group, self.cluster.addresses)


@contextmanager
def loaded(cluster: MixedCluster) -> Iterator[Load]:
    load = Load(cluster)
    try:
        yield load
    except BaseException:
        load.writing.stop()
        load.group.stop()
        raise
    load.judge()


def elect_preferred(cluster: MixedCluster) -> None:
    """By Java's tool, which fails if it is told that an election failed."""
    run_tool(
        "org.apache.kafka.tools.LeaderElectionCommand",
        *("--bootstrap-server", cluster.addresses),
        *("--election-type", "preferred", "--all-topic-partitions"),
    )
    leaders = [replicas[0] for replicas in ASSIGNMENT]
    settled(lambda: [each.leader for each in cluster.znodes.states(LOADED)] == leaders)


def produce_by_java(cluster: MixedCluster) -> None:
    """Idempotent, as Java's producers are unless told otherwise."""
    said = run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", JAVAS, "--num-records", str(JAVA_RECORDS), "--record-size", "100"),
        *("--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={cluster.addresses}", "acks=all"),
    )
    assert f"{JAVA_RECORDS} records sent" in said


def consume_by_java(cluster: MixedCluster, count: int) -> None:
    said = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", cluster.addresses, "--topic", JAVAS, "--from-beginning"),
        *("--group", "javas", "--max-messages", str(count), "--timeout-ms", "30000"),
    )
    assert f"Processed a total of {count} messages" in said


def logs_are_equal(cluster: MixedCluster) -> None:
    """Byte by byte, and without a complaint of Kafka's dump tool about any of them."""
    partitions = [f"{topic}-{n}" for topic in (LOADED, JAVAS) for n in range(PARTITIONS)]
    partitions += [f"{OFFSETS}-{n}" for n in range(OFFSETS_PARTITIONS)]
    lengths = {each: len(cluster.await_equal_logs(each)) for each in partitions}
    for topic in (LOADED, JAVAS):  # Java's producer may leave a partition out
        assert any(lengths[f"{topic}-{n}"] for n in range(PARTITIONS))
    files = segments(place for each in partitions for place in cluster.places(each))
    dumped = read_dump(dump_log_segments(files, "--deep-iteration"))
    assert dumped.keys() == set(files)
    batches = [e for entries in dumped.values() for e in entries if isinstance(e, Batch)]
    assert sum(each.size for each in batches) == len(IDS) * sum(lengths.values())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", [{1, 2}], ids=["two-of-kafka"], indirect=True)
def test_leaders_go_back_and_forth_between_kdist_and_kafka(cluster: MixedCluster) -> None:
    (kdist,) = cluster.kdists
    one, other = sorted(cluster.kafkas)
    cluster.move_controller(cluster.kafkas)
    create(cluster, LOADED, JAVAS)
    with loaded(cluster) as load:
        load.outlive("kill", kdist)
        elect_preferred(cluster)
        produce_by_java(cluster)
        load.outlive("stop", one)
        cluster.move_controller(cluster.kdists)
        load.outlive("kill", other)
        elect_preferred(cluster)
        produce_by_java(cluster)
        load.outlive("stop", kdist)
    consume_by_java(cluster, 2 * JAVA_RECORDS)
    logs_are_equal(cluster)


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "cluster", [{1, 2}, {3}], ids=["two-of-kafka", "one-of-kafka"], indirect=True
)
def test_every_kind_of_end_is_outlived_under_either_controller(cluster: MixedCluster) -> None:
    rng = random.Random(len(cluster.kafkas))
    create(cluster, LOADED, JAVAS)
    with loaded(cluster) as load:
        for controllers in (cluster.kafkas, cluster.kdists) * 2:
            for _ in range(ROUNDS // 4):
                for how in ("kill", "stop", "pause"):
                    cluster.move_controller(controllers)
                    load.outlive(how, rng.choice(IDS))
            elect_preferred(cluster)
            produce_by_java(cluster)
    consume_by_java(cluster, 4 * JAVA_RECORDS)
    logs_are_equal(cluster)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cluster", [{1, 2}], ids=["two-of-kafka"], indirect=True)
def test_topics_are_grown_set_and_deleted_under_either_controller(cluster: MixedCluster) -> None:
    for controllers in (cluster.kafkas, cluster.kdists):
        cluster.move_controller(controllers)
        create(cluster, LOADED)
        client = AdminClient({"bootstrap.servers": cluster.addresses})
        more = NewPartitions(LOADED, PARTITIONS + 1, [ASSIGNMENT[0]])
        client.create_partitions([more])[LOADED].result(30)
        settled(lambda: len(cluster.znodes.states(LOADED)) == PARTITIONS + 1)
        alter(client, "segment.bytes", "2000000")
        for each in cluster.members.values():
            only = AdminClient({"bootstrap.servers": each.address})
            settled(lambda only=only: setting(only, "segment.bytes") == "2000000")
        places = [place for n in range(PARTITIONS + 1) for place in cluster.places(f"{LOADED}-{n}")]
        settled(lambda places=places: all(place.is_dir() for place in places), PATIENCE_S)
        client.delete_topics([LOADED], operation_timeout=20)[LOADED].result(30)
        settled(lambda places=places: not any(place.exists() for place in places), PATIENCE_S)
        settled(lambda: not cluster.znodes.exists(LOADED))


def alter(client: AdminClient, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, LOADED, incremental_configs=[entry])
    client.incremental_alter_configs([resource])[resource].result(30)


def setting(client: AdminClient, name: str) -> str:
    resource = ConfigResource(ConfigResource.Type.TOPIC, LOADED)
    found: str = client.describe_configs([resource])[resource].result(30)[name].value
    return found


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", [{1, 2}], ids=["two-of-kafka"], indirect=True)
def test_records_are_deleted_and_replicas_moved_between_kinds(
    cluster: MixedCluster, tmp_path: Path
) -> None:
    (kdist,), kafka = cluster.kdists, min(cluster.kafkas)
    cluster.move_controller(cluster.kafkas)
    create(cluster, LOADED)
    for away in (kdist, kafka):
        begin_anew(cluster, away)
    cluster.move_controller(cluster.kafkas)
    move_replicas(cluster, tmp_path, LOADED, sorted(cluster.kafkas))
    left = [cluster.members[kdist].data / f"{LOADED}-{number}" for number in range(PARTITIONS)]
    settled(lambda: not any(place.exists() for place in left), PATIENCE_S)
    before = contents(cluster)
    move_replicas(cluster, tmp_path, LOADED, [kdist])
    assert {each.leader for each in cluster.znodes.states(LOADED)} == {kdist}
    assert contents(cluster) == before
    make_compacted(cluster)
    move_replicas(cluster, tmp_path, COMPACTED, [kdist])
    found = sorted(map(int, contents(cluster, COMPACTED).values()))
    assert len(found) < NUMBERS
    assert {number % KEYS: number for number in found} == {n % KEYS: n for n in range(NUMBERS)}


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", [{1, 2}], ids=["two-of-kafka"], indirect=True)
@pytest.mark.parametrize("is_by_kdist", [False, True], ids=["by-kafka", "by-kdist"])
def test_partitions_move_between_kinds_and_back_under_load_and_either_controller(
    cluster: MixedCluster, tmp_path: Path, is_by_kdist: bool
) -> None:
    move = move_by_kdist if is_by_kdist else move_replicas
    (kdist,), kafkas = cluster.kdists, sorted(cluster.kafkas)
    create(cluster, LOADED)
    with loaded(cluster) as load:
        for controllers in (cluster.kdists, cluster.kafkas):
            cluster.move_controller(controllers)
            for replicas in (kafkas, [kdist], [kafkas[0]], [kdist, *kafkas]):
                move(cluster, tmp_path, LOADED, replicas)
                load.grow()
                away = [each for each in IDS if each not in replicas]
                left = [cluster.members[i].data / f"{LOADED}-{n}" for i in away for n in range(3)]
                settled(lambda paths=left: not any(each.exists() for each in paths), PATIENCE_S)


def begin_anew(cluster: MixedCluster, away: int) -> None:
    """While a broker is away, delete all that it has: then it has nothing that its leaders have."""
    cluster.kill(away)
    cluster.await_leaders_but(away, LOADED)
    writing = Writing(cluster.addresses, LOADED, True)
    grown(writing.acknowledged.values, 1000)
    writing.stop()
    ends = {n: max(o for p, o in writing.acknowledged.values if p == n) for n in range(PARTITIONS)}
    asked = [TopicPartition(LOADED, number, end - 10) for number, end in ends.items()]
    client = AdminClient({"bootstrap.servers": cluster.addresses})
    for at, deleted in client.delete_records(asked).items():
        assert deleted.result(30).low_watermark == at.offset
    cluster.start(away)
    cluster.settle(LOADED)
    kept = contents(cluster)
    assert len(kept) == 11 * PARTITIONS
    elect_preferred(cluster)  # so the one that was away leads a partition
    assert contents(cluster) == kept


def contents(cluster: MixedCluster, topic: str = LOADED) -> dict[Place, bytes]:
    return read_topic(cluster.addresses, topic, {})


def make_compacted(cluster: MixedCluster) -> None:
    """A topic of Kafka's brokers in whose logs compaction has left gaps."""
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": "50000",
        "min.cleanable.dirty.ratio": "0.01",
    }
    new = NewTopic(
        COMPACTED,
        num_partitions=PARTITIONS,
        replica_assignment=[sorted(cluster.kafkas)] * PARTITIONS,
        config=settings,
    )
    client = AdminClient({"bootstrap.servers": cluster.addresses})
    client.create_topics([new])[COMPACTED].result(30)
    failed: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.addresses,
            "batch.num.messages": 50,
            "on_delivery": lambda error, _: error and failed.append(error),
        }
    )
    for number in range(NUMBERS):
        key, value = b"%d" % (number % KEYS), b"%0200d" % number
        producer.produce(COMPACTED, value, key, partition=number % PARTITIONS)
    assert (producer.flush(60), failed) == (0, [])
    leaders = [
        cluster.members[min(cluster.kafkas)].data / f"{COMPACTED}-{n}" for n in range(PARTITIONS)
    ]
    settled(lambda: all(len(log_bytes(each)) < 200_000 for each in leaders), PATIENCE_S)


def move_replicas(cluster: MixedCluster, directory: Path, topic: str, replicas: list[int]) -> None:
    """By Java's tool, until each partition has exactly these replicas, and all are in sync."""
    plan = directory / "plan.json"
    moves = [
        {"topic": topic, "partition": number, "replicas": replicas} for number in range(PARTITIONS)
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    run_tool(
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        *("--bootstrap-server", cluster.addresses),
        *("--reassignment-json-file", str(plan), "--execute"),
    )
    await_replicas(cluster, topic, replicas)


def move_by_kdist(cluster: MixedCluster, directory: Path, topic: str, replicas: list[int]) -> None:
    """The same by `kdist reassign`."""
    plan = directory / "plan.json"
    moves = [
        Move(KdistPartition(topic, number), tuple(before), tuple(replicas), 0)
        for number, before in enumerate(cluster.znodes.replicas(topic))
    ]
    plan.write_bytes(encode_plan(moves))
    words = ("reassign", "execute", str(plan), "--broker", cluster.addresses)
    done = subprocess.run([*KDIST, *words], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    await_replicas(cluster, topic, replicas)


def await_replicas(cluster: MixedCluster, topic: str, replicas: list[int]) -> None:
    wanted = [frozenset(replicas)] * PARTITIONS
    settled(lambda: [each.isr for each in cluster.znodes.states(topic)] == wanted, PATIENCE_S)
    settled(lambda: not cluster.znodes.is_moved(topic), PATIENCE_S)
