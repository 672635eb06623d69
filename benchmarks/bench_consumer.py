"""kdist's consumer beside confluent-kafka, kafka-python and aiokafka: one run, one broker.

Each reads the same partition in turn, in every round; what is told are medians, of records per
second of time, and per second of the client's own processor time, which a busy machine falsifies
less. Ratios are to confluent-kafka's way of the same kind: lists, or one record a call. Budgets:
batches 3 times, record by record 1.5 times. A missed one is said and is no failure.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from consumer_contenders import BATCHES, ONE_BY_ONE, Contender
from measuring import Row, table

ROUNDS = 5
BUDGETS = {"kdist batches": 3.0, "kdist iteration": 1.5, "kdist poll": 1.5}
PORT = 39400


class Task(NamedTuple):
    """What is read; `count` records of `size` bytes."""

    size: int
    codec: str
    count: int

    @property
    def topic(self) -> str:
        return f"bench-{self.size}-{self.codec}"

    def __str__(self) -> str:
        return f"{self.size} B, {self.codec}"


# More than librdkafka reads ahead (100,000 records): else it would be done before the clock starts.
COUNTS = {100: 500_000, 1024: 300_000}
TASKS = [Task(size, codec, COUNTS[size]) for size in COUNTS for codec in ("none", "lz4")]


@contextmanager
def broker(directory: Path, port: int) -> Iterator[str]:
    """A broker of kdist over an empty directory."""
    words = [sys.executable, "-m", "kdist.cli", "standalone", "--json"]
    process = subprocess.Popen(
        [*words, "--data", str(directory), "--port", str(port)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the broker did not start"
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def fill(address: str, task: Task) -> None:
    """Produce the records that the task reads: they shrink to about a half."""
    admin = AdminClient({"bootstrap.servers": address})  # kept: it takes its answers along
    admin.create_topics([NewTopic(task.topic, 1, 1)])[task.topic].result(30)
    producer = Producer(
        {"bootstrap.servers": address, "linger.ms": 20, "compression.type": task.codec}
    )
    chance = random.Random(task.size)
    values = [chance.randbytes(task.size // 4).hex().encode() for _ in range(1000)]
    values = [value.ljust(task.size, b".") for value in values]
    for number in range(task.count):
        value = values[number % len(values)]
        while True:
            try:
                producer.produce(task.topic, value)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0


class Taken(NamedTuple):
    """What one round took, in seconds."""

    wall: float
    processor: float


def take(contender: Contender, address: str, task: Task) -> Taken:
    """One contender's round."""
    reading = contender(address, task.topic, task.count)
    next(reading)
    wall, processor = time.perf_counter(), time.process_time()
    next(reading)
    taken = Taken(time.perf_counter() - wall, time.process_time() - processor)
    assert next(reading, None) is None, "a contender yields twice"
    return taken


def measure(
    address: str, task: Task, contenders: Mapping[str, Contender], rounds: int
) -> Iterator[Row]:
    """All contenders in turn; the first is the yardstick."""
    taken: dict[str, list[Taken]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            taken[name].append(take(contender, address, task))
    for kind, unit in (("wall", "records/s"), ("processor", "records/CPU s")):
        rates = {
            name: task.count / statistics.median(getattr(each, kind) for each in found)
            for name, found in taken.items()
        }
        yardstick = next(iter(rates))
        for name, rate in rates.items():
            ratio = rate / rates[yardstick]
            budget = BUDGETS.get(name)
            yield Row(
                f"{task}, {kind}",
                name,
                rate,
                unit,
                {} if name == yardstick else {yardstick: ratio},
                f"{budget} x" if budget else "",
                ratio >= budget if budget else None,
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny rounds: does it run at all?")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="(default: %(default)s)")
    parser.add_argument("--only", default="", help="tasks that begin so, as '100 B'")
    parser.add_argument(
        "--port", type=int, default=PORT, help="the broker's (default: %(default)s)"
    )
    parser.add_argument("--directory", metavar="DIR", default=".", help="work below DIR")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    rows: list[Row] = []
    tasks = [task for task in TASKS if str(task).startswith(arguments.only)]
    if arguments.quick:
        tasks = [task._replace(count=task.count // 100) for task in tasks]
    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=arguments.directory) as path,
        broker(Path(path).absolute(), arguments.port) as address,
    ):
        for task in tasks:
            fill(address, task)
            for contenders in (BATCHES, ONE_BY_ONE):
                rows += measure(address, task, contenders, rounds)
    if arguments.json:
        print(json.dumps([row._asdict() | {"verdict": row.verdict} for row in rows], indent=2))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
