"""Three brokers of kdist beside three of Apache Kafka, replicated: `make bench-cluster`.

Replication factor 3, `min.insync.replicas` 2, acks=all. Both clusters are up at the same time, each
with a ZooKeeper of its own, and are loaded in turn by confluent-kafka, in the order A B B A. Rates
and times are what the client saw; CPU is that of the three brokers, without ZooKeeper's, for each
message that was acknowledged. Most tasks run once uncounted first, which warms up Kafka's JVMs.
With `--beside DIR` three brokers of another checkout of kdist stand in for Apache Kafka.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench_peer import Line, table
from cluster_contenders import (
    BROKERS,
    REPLICATION,
    Cluster,
    Member,
    kafka_cluster,
    kdist_cluster,
    path_of,
)
from cluster_probe import first_produces
from confluent_kafka import KafkaError, Message, Producer
from kazoo.client import KazooClient
from measuring import make_room

_FLUSH_S = 240
_OVERHEAD_BYTES = 76  # the most that a message takes besides its value
_LOOK_S, _LOOKS_MAX, _IDLE_SHARE = 0.5, 20, 0.1
_WATCH_S = 0.01
_SETTLING = 3  # times as long as is measured then
_LATENCY_PARTITIONS = 16
_CATCH_UP_PARTITIONS = 16
_MIB = 1 << 20


class Scale(NamedTuple):
    """How long a run is. Rounds are even in a full one: each contender goes first as often."""

    rounds: int
    messages: int
    latency_s: float
    catch_up_mib: int
    failed_over: int
    idle: int
    idle_s: float


FULL = Scale(2, 300_000, 5, 512, 1_000, 2_000, 30)
QUICK = Scale(1, 2_000, 0.2, 4, 20, 20, 1)


class Measured(NamedTuple):
    """One row of the table."""

    name: str
    unit: str
    is_rate: bool = False


class Outcome(NamedTuple):
    """One round of a task: a value for each of its rows. `cpu_us` is per message, 0 if unknown."""

    values: Sequence[float]
    cpu_us: float = 0.0


class Task(NamedTuple):
    """What is asked of each cluster.

    `room` is how many bytes it writes to each broker's disk, for each of `Scale.messages`. One that
    takes long runs `rounds_max` times and not to warm up.
    """

    rows: Sequence[Measured]
    run: Callable[[Cluster, Scale], Outcome]
    room: int = 0
    rounds_max: int | None = None


# Tasks


@contextlib.contextmanager
def _topic(cluster: Cluster, partitions: int) -> Iterator[str]:
    name = cluster.create_topic(partitions)
    try:
        yield name
    finally:
        cluster.delete_topic(name)


def _fill(cluster: Cluster, topic: str, partitions: int, size: int, count: int) -> None:
    """Produce to all partitions in turn, until all is acknowledged by all in-sync replicas."""
    producer = Producer({"bootstrap.servers": cluster.address, "acks": "all", "linger.ms": 5})
    value = (os.urandom(size // 4).hex() + "x" * size)[:size].encode()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(_FLUSH_S) == 0, "not all were acknowledged"


def _produce(size: int, partitions: int, share: int) -> Task:
    """`share`: what part of `Scale.messages` is produced."""

    def run(cluster: Cluster, scale: Scale) -> Outcome:
        count = scale.messages // share
        with _topic(cluster, partitions) as topic:
            cpu_s, started_s = cluster.cpu_s(), time.perf_counter()
            _fill(cluster, topic, partitions, size, count)
            seconds, cpu_s = time.perf_counter() - started_s, cluster.cpu_s() - cpu_s
        return Outcome((count / seconds,), cpu_s / count * 1e6)

    name = f"produce {size} B, {partitions} partition{'s' if partitions > 1 else ''}"
    return Task((Measured(name, "messages/s", True),), run, (size + _OVERHEAD_BYTES) // share)


def _latency(rate: int, linger_ms: int) -> Task:
    """From when a message is due until all in-sync replicas have acknowledged it."""

    def run(cluster: Cluster, scale: Scale) -> Outcome:
        count = int(rate * scale.latency_s)
        took_ms: list[float] = []

        def acknowledged(due_s: float, error: KafkaError | None, _: Message) -> None:
            assert error is None, error
            took_ms.append((time.perf_counter() - due_s) * 1e3)

        producer = Producer(
            {"bootstrap.servers": cluster.address, "acks": "all", "linger.ms": linger_ms}
        )
        with _topic(cluster, _LATENCY_PARTITIONS) as topic:
            for number in range(_LATENCY_PARTITIONS):  # connect to all leaders
                producer.produce(topic, b"x", partition=number)
            assert producer.flush(_FLUSH_S) == 0
            cpu_s, started_s, sent = cluster.cpu_s(), time.perf_counter(), 0
            while len(took_ms) < count:
                due = min(count, int((time.perf_counter() - started_s) * rate))
                for number in range(sent, due):
                    producer.produce(
                        topic,
                        b"x" * 100,
                        partition=number % _LATENCY_PARTITIONS,
                        on_delivery=partial(acknowledged, started_s + number / rate),
                    )
                sent = max(sent, due)
                producer.poll(0.0005)
            cpu_s = cluster.cpu_s() - cpu_s
        hundredths = statistics.quantiles(took_ms, n=100)
        return Outcome((hundredths[49], hundredths[98]), cpu_s / count * 1e6)

    name = f"acknowledged, at {rate:,}/s"
    return Task((Measured(name, "ms, median"), Measured(name, "ms, p99")), run)


def _catch_up(cluster: Cluster, scale: Scale) -> Outcome:
    """How fast a broker's new disk is filled, from its first byte on."""
    size = scale.catch_up_mib * _MIB
    with _topic(cluster, _CATCH_UP_PARTITIONS) as topic:
        _fill(cluster, topic, _CATCH_UP_PARTITIONS, 1024, size // 1024)
        member = _no_controller(cluster)
        whole = _log_bytes(next(each for each in cluster.members if each is not member), topic)
        is_over = threading.Event()
        member.stop()
        shutil.rmtree(member.data)
        with ThreadPoolExecutor(1) as pool:
            watched = pool.submit(_seconds_to_fill, member, topic, whole, is_over)
            try:
                member.start()
                cluster.await_in_sync(topic, _CATCH_UP_PARTITIONS)
            finally:
                is_over.set()
            seconds = watched.result()
    return Outcome((whole / 1e6 / seconds,))


def _seconds_to_fill(member: Member, topic: str, whole: int, is_over: threading.Event) -> float:
    while not is_over.is_set() and not _log_bytes(member, topic):
        time.sleep(_WATCH_S)
    started_s = time.perf_counter()
    while not is_over.is_set() and _log_bytes(member, topic) < whole:
        time.sleep(_WATCH_S)
    return time.perf_counter() - started_s


def _log_bytes(member: Member, topic: str) -> int:
    size = 0
    for each in member.data.glob(f"{topic}-*/*.log"):
        with contextlib.suppress(FileNotFoundError):
            size += each.stat().st_size
    return size


def _no_controller(cluster: Cluster) -> Member:
    """A broker that is not the controller, as its loss is to be measured, not an election."""
    controller = cluster.admin().list_topics(timeout=_FLUSH_S).controller_id
    return next(each for each in cluster.members if each.id != controller)


def _failover(cluster: Cluster, scale: Scale) -> Outcome:
    """From the end of a killed broker's session until all that it led is served by others."""
    with _topic(cluster, scale.failed_over) as topic:
        killed = _no_controller(cluster)
        led = {each.partition for each in cluster.states(topic) if each.leader == killed.id}
        assert len(led) >= scale.failed_over // BROKERS
        left = [each.address for each in cluster.members if each is not killed]
        ended = threading.Event()
        zk = KazooClient(cluster.connect)
        zk.start()
        try:
            assert zk.exists(path_of(killed), watch=lambda _: ended.set())
            killed.kill()
            assert ended.wait(_FLUSH_S)
            started_s = time.perf_counter()
            seconds = first_produces(left, topic, led) - started_s
        finally:
            zk.stop()
            zk.close()
        killed.start()
        cluster.await_in_sync(topic, scale.failed_over)
    return Outcome((seconds,))


def _idle(cluster: Cluster, scale: Scale) -> Outcome:
    """What a broker uses of a core with nothing to do, as a mean of the three.

    New partitions are work for a while: kdist creates their files bit by bit, for instance.
    """
    bare = _share(cluster, scale.idle_s)
    with _topic(cluster, scale.idle):
        time.sleep(_SETTLING * scale.idle_s)
        return Outcome((bare, _share(cluster, scale.idle_s)))


def _share(cluster: Cluster, seconds: float) -> float:
    cpu_s = cluster.cpu_s()
    time.sleep(seconds)
    return max((cluster.cpu_s() - cpu_s) / BROKERS / seconds * 100, 0.01)


def _memory(cluster: Cluster, _: Scale) -> Outcome:
    return Outcome((cluster.resident_bytes() / _MIB,))


def tasks(scale: Scale) -> list[Task]:
    """All of them, in the order in which they run."""
    return [
        _produce(100, 1, 1),
        _produce(100, 16, 1),
        _produce(100, 200, 20),
        _produce(1024, 1, 3),
        _produce(1024, 16, 3),
        _produce(1024, 200, 20),
        _latency(1_000, linger_ms=0),
        _latency(20_000, linger_ms=5),
        Task((Measured("memory of three brokers", "MiB"),), _memory, rounds_max=1),
        Task((Measured("fill an empty disk", "MB/s", True),), _catch_up, rounds_max=2),
        Task(
            (Measured(f"fail over, {scale.failed_over:,} partitions", "s"),),
            _failover,
            rounds_max=2,
        ),
        Task(
            (
                Measured("idle broker, no topic", "% of a core"),
                Measured(f"idle broker, {scale.idle:,} replicas", "% of a core"),
            ),
            _idle,
            rounds_max=1,
        ),
    ]


# The run


def measure(task: Task, clusters: Sequence[Cluster], scale: Scale) -> dict[str, list[Outcome]]:
    """All rounds of a task, after one uncounted round of each contender to warm up."""
    outcomes: dict[str, list[Outcome]] = {each.name: [] for each in clusters}
    rounds = range(-1, scale.rounds)
    if task.rounds_max is not None:
        rounds = range(min(task.rounds_max, scale.rounds))
    for number in rounds:
        for cluster in clusters if number % 2 else reversed(clusters):
            _settle(clusters)
            make_room(REPLICATION * scale.messages * task.room)
            outcome = task.run(cluster, scale)
            if number >= 0:
                outcomes[cluster.name].append(outcome)
            values = ", ".join(f"{each:,.2f}" for each in outcome.values)
            line = f"{task.rows[0].name}: {cluster.name}: {values}; {outcome.cpu_us:.2f} us"
            print(line, file=sys.stderr, flush=True)
    return outcomes


def _settle(clusters: Sequence[Cluster]) -> None:
    """Wait until both are idle: files that one still creates and syncs would slow the other."""
    for _ in range(_LOOKS_MAX):
        before_s = sum(each.cpu_s() for each in clusters)
        time.sleep(_LOOK_S)
        if sum(each.cpu_s() for each in clusters) - before_s < _IDLE_SHARE * _LOOK_S:
            return


def lines(task: Task, outcomes: dict[str, list[Outcome]]) -> Iterator[Line]:
    """A line for each row of a task: medians of the rounds."""
    peer, ours = outcomes.values()
    cpu_us = [statistics.median(each.cpu_us for each in some) for some in (peer, ours)]
    for number, row in enumerate(task.rows):
        theirs, own = (
            statistics.median(each.values[number] for each in some) for some in (peer, ours)
        )
        better = own / theirs if row.is_rate else theirs / own
        yield Line(row.name, row.unit, theirs, own, better, *cpu_us)


@contextlib.contextmanager
def clusters(directory: Path, beside: Path | None) -> Iterator[list[Cluster]]:
    """Both clusters, ready: the peer first."""
    with kdist_cluster(directory / "kdist") as ours:
        other = (
            kafka_cluster(directory / "other")
            if beside is None
            else kdist_cluster(directory / "other", beside.absolute())
        )
        with other as peer:
            yield [peer, ours]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="tasks whose name has this in it; repeats")
    parser.add_argument("--quick", action="store_true", help="does it run?")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--beside", metavar="DIR", type=Path, help="another checkout of kdist")
    options = parser.parse_args()
    scale = QUICK if options.quick else FULL
    chosen = [
        task
        for task in tasks(scale)
        if not options.only or any(part in row.name for part in options.only for row in task.rows)
    ]
    with (
        tempfile.TemporaryDirectory(prefix="bench-cluster-") as name,
        clusters(Path(name), options.beside) as both,
    ):
        found = [each for task in chosen for each in lines(task, measure(task, both, scale))]
    if options.json:
        print(json.dumps([each._asdict() for each in found]))
    else:
        print(table(found, both[0].name))


if __name__ == "__main__":
    main()
