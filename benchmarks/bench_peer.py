"""kdist beside Apache Kafka, in one run, with other projects' clients: `make bench-peer`.

Both brokers are up at the same time with their defaults, each on a directory of its own, and are
loaded in turn by confluent-kafka, and by Java's producer and consumer where a task says so, in the
order A B B A; nothing is pinned to a core. Rates and times are what the client saw, and often the
client is the limit; CPU is the broker process's CPU time meanwhile, which is the cost on a busy
host. One uncounted round of each task warms up Kafka's JVM first, as in a long-running broker.
With `--beside DIR` the broker of another checkout of kdist stands in for Apache Kafka.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path += [str(Path(__file__).parents[1] / "tests" / "integration")]

import broker_world
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from java_tools import java_consume, java_produce
from measuring import make_room, resident_bytes
from peer.kafka_broker import KafkaBroker

GROUP_WAIT_S = 30
LATENCY_RATE = 1000  # messages a second, in the end-to-end task
_TOPIC_PARTITIONS = 4
_JAVA_PARTITIONS = 16
_MESSAGE_BYTES_MAX = 1100  # with the record's own overhead
_LOOK_S, _LOOKS_MAX, _IDLE_SHARE = 0.5, 20, 0.1
# As in the start script of Kafka's server; the thread counts are Kafka's defaults too.
KAFKA_JVM = ("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
KAFKA_SETTINGS = {"num_io_threads": "8", "num_network_threads": "3"}


class Scale(NamedTuple):
    """How long a run is. `rounds` is even, so that each contender goes first equally often."""

    rounds: int
    messages: int
    one_by_one: int
    topics: int


FULL = Scale(rounds=4, messages=400_000, one_by_one=2_000, topics=100)
QUICK = Scale(rounds=2, messages=2_000, one_by_one=20, topics=3)


class Contender(NamedTuple):
    """A running broker."""

    name: str
    address: str
    pid: int

    def cpu_s(self) -> float:
        """CPU seconds of all its threads, including those that have ended."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Sample(NamedTuple):
    """One round of one task. `value` is in the task's unit, `cpu_us` is per message."""

    value: float
    cpu_us: float


class Task(NamedTuple):
    """What is asked of each broker, and what counts as better."""

    name: str
    unit: str
    is_rate: bool
    run: Callable[[Contender, Scale], tuple[float, int]]  # the value, and how many messages


# Tasks


def _topic(contender: Contender, partitions: int = _TOPIC_PARTITIONS) -> str:
    name = f"bench-{time.monotonic_ns()}"
    admin = AdminClient({"bootstrap.servers": contender.address})
    for created in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        created.result(GROUP_WAIT_S)
    return name


def _produced(contender: Contender, scale: Scale, size: int, **settings: Any) -> tuple[str, float]:
    """Produce all messages to a new topic; its name, and the seconds that took."""
    topic = _topic(contender)
    config = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({"bootstrap.servers": contender.address, "linger.ms": 5} | config)
    value = (os.urandom(size // 4).hex() + "x" * size)[:size].encode()
    started_s = time.perf_counter()
    for _ in range(scale.messages):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(GROUP_WAIT_S) == 0, "not all were acknowledged"
    return topic, time.perf_counter() - started_s


def _produce(size: int, **settings: Any) -> Callable[[Contender, Scale], tuple[float, int]]:
    def run(contender: Contender, scale: Scale) -> tuple[float, int]:
        _, seconds = _produced(contender, scale, size, **settings)
        return scale.messages / seconds, scale.messages

    return run


_filled: dict[str, str] = {}


def _consume(contender: Contender, scale: Scale) -> tuple[float, int]:
    """Read a topic, which is filled on first use."""
    if contender.name not in _filled:
        _filled[contender.name], _ = _produced(contender, scale, 1024, acks=1)
    consumer = Consumer(
        {
            "bootstrap.servers": contender.address,
            "group.id": f"bench-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            # Its default, 1 s, makes it sleep whenever the broker is faster than the reader.
            "fetch.queue.backoff.ms": 1,
        }
    )
    consumer.subscribe([_filled[contender.name]])
    with contextlib.closing(consumer):
        first = consumer.consume(1, GROUP_WAIT_S)
        assert len(first) == 1, "no first record"
        seen, started_s = 1, time.perf_counter()
        while seen < scale.messages:
            # Not more than are left: it waits for that many, or for the timeout.
            messages = consumer.consume(min(10_000, scale.messages - seen), GROUP_WAIT_S)
            assert messages, "records are missing"
            seen += len(messages)
        return scale.messages / (time.perf_counter() - started_s), scale.messages


def _one_by_one(contender: Contender, scale: Scale) -> tuple[float, int]:
    """The median milliseconds of a produce that waits for its acknowledgement."""
    topic = _topic(contender, 1)
    producer = Producer({"bootstrap.servers": contender.address, "linger.ms": 0, "acks": 1})
    took_ms = []
    for _ in range(scale.one_by_one):
        started_s = time.perf_counter()
        producer.produce(topic, b"x" * 100, partition=0)
        assert producer.flush(GROUP_WAIT_S) == 0
        took_ms.append((time.perf_counter() - started_s) * 1e3)
    return statistics.median(took_ms), scale.one_by_one


def _end_to_end(contender: Contender, scale: Scale) -> tuple[float, int]:
    """The 99th percentile of milliseconds from produce to consume, at a steady rate."""
    topic = _topic(contender, 1)
    producer = Producer({"bootstrap.servers": contender.address, "linger.ms": 0, "acks": 1})
    consumer = Consumer(
        {
            "bootstrap.servers": contender.address,
            "group.id": f"bench-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    took_ms: list[float] = []
    with contextlib.closing(consumer):
        producer.produce(topic, b"0")  # once it arrives, the group has rebalanced
        producer.flush(GROUP_WAIT_S)
        assert consumer.consume(1, GROUP_WAIT_S), "no first record"
        started_s, sent = time.perf_counter(), 0
        while len(took_ms) < scale.one_by_one:
            due = min(scale.one_by_one, int((time.perf_counter() - started_s) * LATENCY_RATE))
            for _ in range(sent, due):
                producer.produce(topic, repr(time.perf_counter()).encode())
            sent = max(sent, due)
            producer.poll(0)
            came = consumer.consume(100, 0.001)
            took_ms += [(time.perf_counter() - float(each.value())) * 1e3 for each in came]
    producer.flush(GROUP_WAIT_S)
    return statistics.quantiles(took_ms, n=100)[98], scale.one_by_one


def _create_topics(contender: Contender, scale: Scale) -> tuple[float, int]:
    """Seconds to create topics in one request and delete them again."""
    admin = AdminClient({"bootstrap.servers": contender.address})
    names = [f"many-{time.monotonic_ns()}-{number}" for number in range(scale.topics)]
    started_s = time.perf_counter()
    for created in admin.create_topics([NewTopic(name, 4, 1) for name in names]).values():
        created.result(GROUP_WAIT_S)
    for deleted in admin.delete_topics(names).values():
        deleted.result(GROUP_WAIT_S)
    return time.perf_counter() - started_s, scale.topics


def _java_produce(contender: Contender, scale: Scale) -> tuple[float, int]:
    """Produce to a new topic, which `_java_consume` then reads."""
    topic = _filled[f"{contender.name}, Java"] = _topic(contender, _JAVA_PARTITIONS)
    return java_produce(contender.address, topic, scale.messages, 100), scale.messages


def _java_consume(contender: Contender, scale: Scale) -> tuple[float, int]:
    if f"{contender.name}, Java" not in _filled:
        _java_produce(contender, scale)
    topic = _filled[f"{contender.name}, Java"]
    return java_consume(contender.address, topic, scale.messages), scale.messages


TASKS = (
    Task("produce 100 B, acks=1", "messages/s", True, _produce(100, acks=1)),
    Task("produce 100 B, idempotent", "messages/s", True, _produce(100, enable_idempotence=True)),
    Task("produce 1 KiB, acks=1", "messages/s", True, _produce(1024, acks=1)),
    Task("produce 1 KiB, lz4", "messages/s", True, _produce(1024, acks=1, compression_type="lz4")),
    Task("consume 1 KiB", "messages/s", True, _consume),
    Task("produce one by one", "ms, median", False, _one_by_one),
    Task("end to end at 1,000/s", "ms, p99", False, _end_to_end),
    Task("Java: produce 100 B", "messages/s", True, _java_produce),
    Task("Java: consume 100 B", "messages/s", True, _java_consume),
    Task("create and delete topics", "s", False, _create_topics),
)


# The run


def measure(task: Task, contenders: Sequence[Contender], scale: Scale) -> dict[str, list[Sample]]:
    """All rounds of a task, after one uncounted round of each contender."""
    samples: dict[str, list[Sample]] = {contender.name: [] for contender in contenders}
    for number in range(-1, scale.rounds):
        for contender in contenders if number % 2 else reversed(contenders):
            _settle(contenders)
            make_room(scale.messages * _MESSAGE_BYTES_MAX)
            cpu_s = contender.cpu_s()
            value, messages = task.run(contender, scale)
            sample = Sample(value, (contender.cpu_s() - cpu_s) / messages * 1e6)
            if number >= 0:
                samples[contender.name].append(sample)
            print(".", end="", file=sys.stderr, flush=True)
    return samples


def _settle(contenders: Sequence[Contender]) -> None:
    """Wait until both are idle: files that one still creates and syncs would slow the other."""
    for _ in range(_LOOKS_MAX):
        before_s = sum(contender.cpu_s() for contender in contenders)
        time.sleep(_LOOK_S)
        if sum(contender.cpu_s() for contender in contenders) - before_s < _IDLE_SHARE * _LOOK_S:
            return


@contextlib.contextmanager
def brokers(directory: Path, beside: Path | None) -> Iterator[list[Contender]]:
    """Both brokers, ready: the peer first."""
    with contextlib.ExitStack() as stack:
        connect = stack.enter_context(broker_world.zookeeper(directory / "zookeeper"))
        ours = _kdist(stack.enter_context(broker_world.kdist_broker(directory, connect)))
        if beside is not None:
            other = broker_world.kdist_broker(directory / "other", f"{connect}/other", tree=beside)
            yield [_kdist(stack.enter_context(other)), ours]
            return
        kafka = stack.enter_context(KafkaBroker(directory / "kafka", KAFKA_JVM, **KAFKA_SETTINGS))
        yield [Contender("Apache Kafka", kafka.address, kafka.pid), ours]


def _kdist(broker: broker_world.Broker) -> Contender:
    """A broker of kdist, which may use all cores here."""
    for thread in Path(f"/proc/{broker.process.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), os.sched_getaffinity(0))
    return Contender(broker.name, f"127.0.0.1:{broker.port}", broker.process.pid)


class Line(NamedTuple):
    """A task's result: medians. `better` is above 1 where kdist is the better."""

    task: str
    unit: str
    peer: float
    kdist: float
    better: float
    peer_cpu_us: float
    kdist_cpu_us: float


def line(task: Task, samples: dict[str, list[Sample]]) -> Line:
    """Medians of the rounds."""
    peer, ours = samples.values()
    theirs = statistics.median(sample.value for sample in peer)
    own = statistics.median(sample.value for sample in ours)
    return Line(
        task.name,
        task.unit,
        theirs,
        own,
        own / theirs if task.is_rate else theirs / own,
        statistics.median(sample.cpu_us for sample in peer),
        statistics.median(sample.cpu_us for sample in ours),
    )


def _cells(each: Line) -> tuple[str, ...]:
    return (
        each.task,
        each.unit,
        f"{each.peer:,.2f}",
        f"{each.kdist:,.2f}",
        f"{each.better:.2f} x",
        f"{each.peer_cpu_us:.1f}",
        f"{each.kdist_cpu_us:.1f}",
        f"{each.kdist_cpu_us / each.peer_cpu_us:.2f}" if each.peer_cpu_us else "-",
    )


def table(lines: Sequence[Line], peer: str) -> str:
    """The lines, aligned."""
    headings = ("task", "unit", peer, "kdist", "kdist is", f"CPU us: {peer}", "kdist", "ratio")
    rows = [headings, *map(_cells, lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="tasks whose name has this in it")
    parser.add_argument("--quick", action="store_true", help="does it run?")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--beside", metavar="DIR", type=Path, help="another checkout of kdist")
    options = parser.parse_args()
    scale = QUICK if options.quick else FULL
    tasks = [task for task in TASKS if not options.only or options.only in task.name]
    with (
        tempfile.TemporaryDirectory(prefix="bench-peer-") as name,
        brokers(Path(name), options.beside) as both,
    ):
        lines = [line(task, measure(task, both, scale)) for task in tasks]
        memory = {contender.name: resident_bytes(contender.pid) / 2**20 for contender in both}
    print(file=sys.stderr)
    if options.json:
        results = [each._asdict() for each in lines]
        print(json.dumps({"tasks": results, "resident_mib": memory}))
        return
    print(table(lines, both[0].name))
    print("; ".join(f"{name} holds {mib:.0f} MiB" for name, mib in memory.items()))


if __name__ == "__main__":
    main()
