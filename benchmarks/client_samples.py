"""One sample of a client: what a message took, sent or read; and the broker and topic for it."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from consumer_contenders import Contender
from measuring import make_room
from producer_contenders import Load, Send

WAIT_S = 60
_numbers = itertools.count(1)


class Taken(NamedTuple):
    """What one message took, in seconds."""

    wall: float
    cpu: float


class Options(NamedTuple):
    """How much is measured, and where."""

    address: str
    rounds: int
    share: float  # of the messages
    only: str


@contextmanager
def broker(directory: Path, port: int) -> Iterator[str]:
    """A kdist broker on an empty directory; its address."""
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


@contextmanager
def topic(address: str, partitions: int) -> Iterator[str]:
    """A temporary topic."""
    name = f"bench-{os.getpid()}-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": address})  # keeps its futures alive
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(WAIT_S)
    yield name
    admin.delete_topics([name])[name].result(WAIT_S)


def values(size: int, count: int) -> list[bytes]:
    """`count` values, each a separate object; they compress to about half their size."""
    rng = random.Random(size)
    texts = [rng.randbytes(size // 4).hex().encode().ljust(size, b".") for _ in range(1000)]
    return [b"%d " % number + texts[number % 1000][: size - 7] for number in range(count)]


class Meter:
    """What passes between `begin` and `taken`."""

    def begin(self) -> None:
        """A first message is through."""
        self._begun_s = time.perf_counter(), time.process_time()

    def taken(self, count: int) -> Taken:
        """What each of `count` messages took since."""
        now_s = time.perf_counter(), time.process_time()
        return Taken(
            *((now - begun) / count for now, begun in zip(now_s, self._begun_s, strict=True))
        )


def sent(address: str, send: Send, load: Load, meter: Meter) -> Taken:
    """Time one producer, sending to a new topic."""
    make_room(2 * sum(map(len, load.values)))
    with topic(address, 4) as name:
        send(address, name, load, meter.begin)
        return meter.taken(len(load.values))


def read(address: str, contender: Contender, name: str, count: int, meter: Meter) -> Taken:
    """Time one consumer."""
    reading = contender(address, name, count)
    next(reading)
    meter.begin()
    next(reading)
    taken = meter.taken(count)
    assert next(reading, None) is None, "a contender yields twice"
    return taken


def fill(address: str, name: str, codec: str, records: list[bytes]) -> None:
    """Produce the records for the consumers."""
    settings = {"bootstrap.servers": address, "linger.ms": 20, "compression.type": codec}
    producer = Producer(settings)
    for value in records:
        while True:
            try:
                producer.produce(name, value)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(WAIT_S) == 0
