"""Our own checks with Apache Kafka's tools of what a cluster has: replicas, leaders, many brokers.

They need three brokers that were started here, since they kill some of them. Each puts right what
it changed, so that the next one finds a whole cluster.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import checks
import java_tools
from checks import expect, new_name
from cluster import Cluster
from confluent_kafka.admin import AdminClient, PartitionMetadata
from java_tools import (
    CONSOLE_CONSUMER,
    CONSOLE_PRODUCER,
    DELETE_RECORDS,
    ELECTIONS,
    LOG_DIRS,
    OFFSETS,
    REPLICA_VERIFICATION,
    TOPICS,
    VERIFIABLE_CONSUMER,
    VERIFIABLE_PRODUCER,
    Running,
    fill,
    json_file,
    refused,
    running,
    settled,
    tool,
)
from outcome import FAILED, Outcome

SUITE = "java-cluster"
ALL = [0, 1, 2]  # the brokers
VERIFIED, VERIFIED_PER_S = 8000, 400  # records
IMPATIENT = (
    "--sync",
    *("--producer-property", "delivery.timeout.ms=3000"),
    *("--producer-property", "request.timeout.ms=1000"),
)
Placed = dict[tuple[int, int], str]
"""Records' values by partition and offset."""
ASSIGNED = "0:1:2,1:2:0,2:0:1"  # each broker leads one of three partitions
METADATA_TIMEOUT_S = 10


def run(cluster: Cluster, names: Sequence[str] = ()) -> Iterator[Outcome]:
    """The named checks, or all."""
    if [broker.id for broker in cluster.brokers] != ALL:
        yield Outcome(SUITE, "all of it", FAILED, 0, "it needs --brokers 3")
        return
    yield from checks.run(SUITE, list(CHECKS.items()), cluster, names)


class Row(NamedTuple):
    """A partition, as the tool describes it."""

    topic: str
    index: int
    leader: str
    replicas: list[int]
    isr: list[int]


def described(cluster: Cluster, *options: str) -> list[Row]:
    """The partitions that the tool describes, given `options`, but for Kafka's internal topics."""
    rows = []
    for line in tool(TOPICS, cluster.address, "--describe", *options):
        words = dict(word.split(": ", 1) for word in line.strip().split("\t") if ": " in word)
        if "Partition" in words and not words["Topic"].startswith("__"):
            replicas, isr = (_numbers(words.get(name, "")) for name in ("Replicas", "Isr"))
            rows.append(
                Row(words["Topic"], int(words["Partition"]), words["Leader"], replicas, isr)
            )
    return rows


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def create(cluster: Cluster, assigned: str = ASSIGNED, *configs: str) -> str:
    """A topic with the given replicas, preferred leaders first; its name."""
    topic = new_name("java-replicated")
    words = [word for config in configs for word in ("--config", config)]
    given = ("--create", "--topic", topic, "--replica-assignment", assigned)
    tool(TOPICS, cluster.address, *given, *words)
    return topic


def produce(cluster: Cluster, topic: str, lines: Sequence[str], *options: str) -> None:
    """As the console's producer does, with acks=all unless told otherwise."""
    tool(CONSOLE_PRODUCER, cluster.address, "--topic", topic, *options, lines=lines)


def numbered(count: int) -> list[str]:
    """So many different lines."""
    return [f"line {number}" for number in range(count)]


def state(cluster: Cluster, topic: str) -> list[PartitionMetadata]:
    """The topic's partitions, as the brokers describe them to a client that is quicker to ask."""
    client = AdminClient({"bootstrap.servers": cluster.address, "log_level": 0})
    partitions = client.list_topics(topic, METADATA_TIMEOUT_S).topics[topic].partitions
    return [partitions[index] for index in sorted(partitions)]


def brokers_alive(cluster: Cluster) -> set[int]:
    """The ids of the brokers that the metadata lists."""
    client = AdminClient({"bootstrap.servers": cluster.address, "log_level": 0})
    return set(client.list_topics(timeout=METADATA_TIMEOUT_S).brokers)


def leaders(cluster: Cluster, topic: str) -> list[int]:
    """Each partition's leader, -1 for none."""
    return [partition.leader for partition in state(cluster, topic)]


def await_isr(cluster: Cluster, topic: str, isr: Sequence[int]) -> None:
    """Wait until each partition of the topic has these in-sync replicas."""
    settled(
        lambda: all(sorted(each.isrs) == sorted(isr) for each in state(cluster, topic)),
        f"{topic} has the in-sync replicas {isr}",
    )


def await_leaders(cluster: Cluster, topic: str, wanted: Sequence[int]) -> None:
    """Wait until the topic's partitions have these leaders."""
    settled(lambda: leaders(cluster, topic) == list(wanted), f"{topic} has the leaders {wanted}")


@contextmanager
def without(cluster: Cluster, *killed: int) -> Iterator[None]:
    """Kill brokers, one after the other; start those again that were not."""
    gone = []
    try:
        for number in killed:
            cluster.brokers[number].kill()
            gone.append(number)
        yield
    finally:
        for number in gone:
            cluster.brokers[number].start()


def spreads_replicas_and_leaders(cluster: Cluster) -> None:
    """Three replicas of each partition, each broker leading as many; not four on three brokers."""
    address, topic = cluster.address, new_name("java-replicated")
    given = ("--create", "--topic", topic, "--partitions", "6", "--replication-factor")
    expect("InvalidReplicationFactor" in refused(TOPICS, address, *given, "4"), True, "refused")
    tool(TOPICS, address, *given, "3")
    rows = described(cluster, "--topic", topic)
    expect([sorted(row.replicas) for row in rows], [ALL] * 6, "the replicas")
    expect([sorted(row.isr) for row in rows], [ALL] * 6, "the in-sync replicas")
    expect(Counter(row.leader for row in rows), {"0": 2, "1": 2, "2": 2}, "the leaders")
    tool(TOPICS, address, "--alter", "--topic", topic, "--partitions", "9")
    rows = described(cluster, "--topic", topic)
    expect(Counter(row.leader for row in rows), {"0": 3, "1": 3, "2": 3}, "the leaders of nine")
    said = refused(TOPICS, address, "--alter", "--topic", topic, "--partitions", "3")
    expect("InvalidPartitions" in said, True, f"that partitions cannot be taken away: {said}")


def puts_replicas_where_it_is_told(cluster: Cluster) -> None:
    """When a topic is created, and when it gets more partitions; not where no broker is."""
    address = cluster.address
    topic = create(cluster, "2:0,1:2", "min.insync.replicas=1")
    more = ("--alter", "--topic", topic, "--partitions", "3", "--replica-assignment")
    for wrong in ("2:0,1:2,0:7", "2:0,1:2,0:1:2"):
        refused(TOPICS, address, *more, wrong)
    tool(TOPICS, address, *more, "2:0,1:2,0:1")
    rows = described(cluster, "--topic", topic)
    expect([row.replicas for row in rows], [[2, 0], [1, 2], [0, 1]], "the replicas")
    overridden = tool(TOPICS, address, "--describe", "--topics-with-overrides")
    expect(any(topic in line for line in overridden), True, "a topic with settings of its own")


def names_partitions_that_lack_replicas(cluster: Cluster) -> None:
    """Under-replicated, at and under min ISR, unavailable; none of them once all are back."""
    three, one = create(cluster), create(cluster, "2", "min.insync.replicas=1")

    def named(option: str) -> dict[str, int]:
        found = Counter(row.topic for row in described(cluster, option))
        return {topic: found[topic] for topic in (three, one)}

    with without(cluster, 2):
        await_isr(cluster, three, [0, 1])
        expect(named("--under-replicated-partitions"), {three: 3, one: 0}, "under-replicated")
        expect(named("--at-min-isr-partitions"), {three: 3, one: 1}, "at min ISR")
        expect(named("--unavailable-partitions"), {three: 0, one: 1}, "unavailable")
        with without(cluster, 1):
            await_isr(cluster, three, [0])
            expect(named("--under-min-isr-partitions"), {three: 3, one: 1}, "under min ISR")
            said = java_tools.said(
                CONSOLE_PRODUCER, cluster.address, "--topic", three, *IMPATIENT, lines=["x"]
            )
            expect("NOT_ENOUGH_REPLICAS" in said, True, f"what a producer is told: {said}")
    await_isr(cluster, three, ALL)
    await_leaders(cluster, one, [2])
    for option in ("--under-replicated", "--under-min-isr", "--unavailable"):
        expect(named(f"{option}-partitions"), {three: 0, one: 0}, option)


def elects_preferred_leaders(cluster: Cluster) -> None:
    """Of one partition, of those in a file, of all; none where the leader is the preferred one."""
    address, topic = cluster.address, create(cluster, "0:1:2,0:2:1,0:1:2,1:2:0")
    elect = ("--election-type", "preferred")
    with without(cluster, 0):
        settled(lambda: 0 not in leaders(cluster, topic), "others lead in its place")
    await_isr(cluster, topic, ALL)
    expect(0 in leaders(cluster, topic), False, "it leads again by itself")
    said = tool(ELECTIONS, address, *elect, "--topic", topic, "--partition", "0")
    done = f"Successfully completed leader election (PREFERRED) for partitions {topic}-0"
    expect(said[0], done, "what is said of one")
    settled(lambda: leaders(cluster, topic)[0] == 0, "one has its leader back")
    expect(leaders(cluster, topic).count(0), 1, "how many have")
    said = tool(ELECTIONS, address, *elect, "--topic", topic, "--partition", "0")
    expect(said[0], f"Valid replica already elected for partitions {topic}-0", "not needed")
    with json_file({"partitions": [{"topic": topic, "partition": 1}]}) as file:
        tool(ELECTIONS, address, *elect, "--path-to-json-file", file)
    settled(lambda: leaders(cluster, topic)[1] == 0, "a file's has its leader back")
    tool(ELECTIONS, address, *elect, "--all-topic-partitions")
    await_leaders(cluster, topic, [0, 0, 0, 1])
    said = [refused(ELECTIONS, address, *elect, "--topic", "nowhere", "--partition", "0")]
    expect("UnknownTopicOrPartition" in said[0], True, "an unknown topic is refused")


def elects_unclean_leaders_only_when_told(cluster: Cluster) -> None:
    """Whoever is left, where nobody in sync is; it says so of partitions that have a leader."""
    address, topic = cluster.address, create(cluster, "1:2", "min.insync.replicas=1")
    elect = ("--election-type", "unclean", "--topic", topic, "--partition", "0")
    produce(cluster, topic, numbered(10))
    said = tool(ELECTIONS, address, *elect)
    expect(said[0], f"Valid replica already elected for partitions {topic}-0", "not needed")
    with ExitStack() as one_is_gone:
        with without(cluster, 2):
            await_isr(cluster, topic, [1])
            produce(cluster, topic, ["only 1 has this"])
            one_is_gone.enter_context(without(cluster, 1))
        settled(lambda: 2 in brokers_alive(cluster), "2 is back")
        expect(leaders(cluster, topic), [-1], "the leader without a command")
        said = tool(ELECTIONS, address, *elect)
        expect(said[0].startswith("Successfully completed"), True, f"the election: {said}")
        await_leaders(cluster, topic, [2])
        expect(tool(OFFSETS, address, "--topic", topic), [f"{topic}:0:10"], "what 2 had")
    await_isr(cluster, topic, [1, 2])
    produce(cluster, topic, ["both have this"])
    options = ("--topic", topic, "--from-beginning", "--max-messages", "11")
    found = tool(CONSOLE_CONSUMER, address, *options, "--timeout-ms", "20000")
    expect(found, [*numbered(10), "both have this"], "the records on both")


def deletes_records_on_every_replica(cluster: Cluster) -> None:
    """The log starts at the same offset whoever leads, and takes the same size everywhere."""
    address, topic = cluster.address, create(cluster, "0:1:2")
    fill(address, topic, 0, 50)
    rows = [{"topic": topic, "partition": 0, "offset": 30}]
    with json_file({"version": 1, "partitions": rows}) as file:
        said = "\n".join(tool(DELETE_RECORDS, address, "--offset-json-file", file))
    expect("low_watermark: 30" in said, True, f"the new start in {said!r}")
    with without(cluster, 0):
        settled(lambda: leaders(cluster, topic)[0] in (1, 2), "another broker leads")
        found = tool(OFFSETS, address, "--topic", topic, "--time", "earliest")
        expect(found, [f"{topic}:0:30"], "the start under the next leader")
    await_isr(cluster, topic, ALL)
    said = tool(LOG_DIRS, address, "--describe", "--topic-list", topic, "--broker-list", "0,1,2")
    (brokers,) = (json.loads(line)["brokers"] for line in said if line.startswith("{"))
    replicas = [each for broker in brokers for each in broker["logDirs"][0]["partitions"]]
    expect([each["offsetLag"] for each in replicas], [0, 0, 0], "the lags of the replicas")
    expect(len({each["size"] for each in replicas}), 1, f"one size of {replicas}")


def loses_nothing_while_leaders_die(cluster: Cluster) -> None:
    """Kafka's verifiable producer and consumer go on while two leaders are killed in turn.

    The producer is idempotent and tries again. Each of its records is acknowledged, and is there
    once, at the offset that it was told.
    """
    topic = create(cluster)
    where = ("--bootstrap-server", cluster.address, "--topic", topic)
    with (
        tempfile.NamedTemporaryFile("w", suffix=".properties") as properties,
        running(VERIFIABLE_CONSUMER, *where, "--group-id", topic, "--verbose") as consumer,
    ):
        properties.write("enable.idempotence=true\nretries=2147483647\n")
        properties.flush()
        given = ("--max-messages", str(VERIFIED), "--throughput", str(VERIFIED_PER_S))
        given = (*given, "--acks", "-1", "--producer.config", properties.name)
        with running(VERIFIABLE_PRODUCER, *where, *given) as producer:
            for index in (0, 1):
                seen = len(producer.lines)
                settled(lambda: len(producer.lines) > seen + VERIFIED_PER_S, "it produces")  # noqa: B023
                with without(cluster, index):  # which leads the partition of the same number
                    seen = len(producer.lines)
                    settled(lambda: len(producer.lines) > seen + VERIFIED_PER_S, "it goes on")  # noqa: B023
                await_isr(cluster, topic, ALL)
            sent = [json.loads(line) for line in producer.done()]
        acknowledged = placed(sent, "producer_send_success")
        expect([row for row in sent if row["name"] == "producer_send_error"], [], "errors")
        expect(sorted(map(int, acknowledged.values())), list(range(VERIFIED)), "acknowledged")
        settled(lambda: len(read_by(consumer)) >= VERIFIED, "the consumer has read everything")
        expect(read_by(consumer), acknowledged, "what was read, by partition and offset")


def read_by(consumer: Running) -> Placed:
    """The records that a verifiable consumer has read."""
    return placed([json.loads(line) for line in list(consumer.lines)], "record_data")


def placed(events: Sequence[dict[str, Any]], name: str) -> Placed:
    """The records of the events of one name; `WrongAnswerError` if two are at one place."""
    found: Placed = {}
    for event in events:
        if event["name"] == name:
            place = (event["partition"], event["offset"])
            expect(found.setdefault(place, event["value"]), event["value"], f"the one at {place}")
    return found


def has_equal_replicas(cluster: Cluster) -> None:
    """Kafka's verification of replicas reads each partition from all, and compares them."""
    topic = create(cluster)
    for index in (0, 1, 2):
        fill(cluster.address, topic, index, 500)
    where = ("--broker-list", cluster.address, "--topics-include", topic, "--time", "-2")
    with running(REPLICA_VERIFICATION, *where, "--report-interval-ms", "500") as verification:
        all_read = re.compile(rf": max lag is 0 for partition {topic}-\d at offset 500 ")
        settled(
            lambda: any(map(all_read.search, list(verification.lines))),
            "all replicas are read to their ends",
        )
        said = [line.split(": ", 1)[1] for line in verification.lines]
        wrong = [line for line in said if not line.startswith(("verification process", "max lag"))]
        expect(wrong, [], "differences")


CHECKS = {
    check.__name__: check
    for check in (
        spreads_replicas_and_leaders,
        puts_replicas_where_it_is_told,
        deletes_records_on_every_replica,
        elects_preferred_leaders,
        elects_unclean_leaders_only_when_told,
        names_partitions_that_lack_replicas,
        loses_nothing_while_leaders_die,
        has_equal_replicas,
    )
}
# Each command starts a JVM, which is slow: only what no other test of `make test` does.
SMALL = (
    elects_preferred_leaders.__name__,
    names_partitions_that_lack_replicas.__name__,
)
