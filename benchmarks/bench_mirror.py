"""The mirror beside copies that decode and encode each record: one run, two brokers of kdist.

The source topic is filled beforehand. Measured is the time from the first batch in the target to
the last: MB/s by wall clock, and the copying process's CPU time per GB, both of records before
compression. Every round runs all contenders. Results are medians, and ratios to the same mirror
made to decode and re-encode every batch (in compiled code).

`.venv/bin/python benchmarks/bench_mirror.py [--mb MB] [--rounds N] [--codec NAME ...]`
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
from bench_clients import broker, values
from confluent_kafka.admin import AdminClient, NewTopic
from measuring import cpu_ns

from kdist import Producer
from kdist.config.mirror import load_mirror
from kdist.mirror import rewritten_batch as rewritten
from kdist.mirror.mirror import run_mirror

PORT, APART = 19430, 30  # below the kernel's ephemeral ports
RECORD_BYTES = 200
PARTITIONS = 4
WAIT_S = 60
LOOK_S = 0.01
_numbers = itertools.count(1)


class Taken(NamedTuple):
    """The wall-clock and CPU seconds that one copy took, and for how many records."""

    wall_s: float
    cpu_s: float
    records: int


class Place(NamedTuple):
    """Two clusters, and a filled topic of the source with its number of records."""

    source: str
    target: str
    topic: str
    records: int
    directory: Path


# The contenders: commands that end on SIGTERM or by themselves


def mirror(place: Place, name: str) -> list[str]:
    """`kdist mirror`, which copies batches unchanged."""
    return [sys.executable, "-m", "kdist.cli", "mirror", "--config", settings_file(place, name)]


def decoding_mirror(place: Place, name: str) -> list[str]:
    """A mirror that rebuilds every batch: this program, in a process of its own."""
    return [sys.executable, __file__, "--decode", settings_file(place, name)]


def one_by_one(place: Place, name: str) -> list[str]:
    """An application that copies single records: this program, in a process of its own."""
    words = [place.source, place.target, place.topic, f"{name}.{place.topic}"]
    return [sys.executable, __file__, "--copy", *words, str(place.records)]


def settings_file(place: Place, name: str) -> str:
    """Write the settings of a mirror with one flow and its own prefix; the file's path."""
    lines = {
        f"flow.{name}.source": place.source,
        f"flow.{name}.target": place.target,
        f"flow.{name}.topics": place.topic,
        f"flow.{name}.prefix": f"{name}.",
    }
    file = place.directory / f"{name}.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return str(file)


YARDSTICK = "kdist mirror, decoding and encoding each record"
CONTENDERS = {
    "kdist mirror": mirror,
    YARDSTICK: decoding_mirror,
    "confluent-kafka, record by record": one_by_one,
}


def run_decoding(file: str) -> None:
    """Run a mirror that decodes and re-encodes every batch."""
    rewritten._may_pass = lambda _batch: False
    run_mirror(load_mirror(Path(file).read_text(), file), os.environ)


def copy_by_confluent(source: str, target: str, topics: tuple[str, str], count: int) -> None:
    """Copy as an application does: consume each record and produce it."""
    codec = os.environ["BENCH_CODEC"]
    settings = {"bootstrap.servers": source, "group.id": "x", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign(
        [confluent_kafka.TopicPartition(topics[0], each, 0) for each in range(PARTITIONS)]
    )
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": target,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    while count > 0:
        for message in consumer.consume(1000, WAIT_S):
            while True:
                try:
                    producer.produce(
                        topics[1],
                        message.value(),
                        message.key(),
                        message.partition(),
                        timestamp=message.timestamp()[1],
                        headers=message.headers(),
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            count -= 1
        producer.poll(0)
    producer.flush()


# One sample


def measured(place: Place, command: Callable[[Place, str], list[str]], codec: str) -> Taken:
    """Start a copy, and time it from the first record in the target to the last."""
    name = f"c{next(_numbers)}"
    topic = f"{name}.{place.topic}"
    admin = AdminClient({"bootstrap.servers": place.target})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(WAIT_S)
    reader = confluent_kafka.Consumer({"bootstrap.servers": place.target, "group.id": "look"})
    process = subprocess.Popen(command(place, name), env={**os.environ, "BENCH_CODEC": codec})
    try:
        begun = awaited(process, reader, topic, 1)
        start_s, start_cpu_ns = time.perf_counter(), cpu_ns(process.pid)
        ended = awaited(process, reader, topic, place.records)
        taken_s = time.perf_counter() - start_s
        taken_cpu_s = (cpu_ns(process.pid) - start_cpu_ns) / 1e9
    finally:
        process.terminate()
        process.wait(60)
        reader.close()
        admin.delete_topics([topic])[topic].result(WAIT_S)
    assert ended == place.records, f"{ended} records where there should be {place.records}"
    return Taken(taken_s, taken_cpu_s, ended - begun)


def awaited(
    process: subprocess.Popen[bytes], reader: confluent_kafka.Consumer, topic: str, records: int
) -> int:
    """Wait until the topic has at least `records` records; how many it has then."""
    end_s = time.monotonic() + WAIT_S
    while True:
        ends = (
            reader.get_watermark_offsets(confluent_kafka.TopicPartition(topic, each), timeout=10)
            for each in range(PARTITIONS)
        )
        found = sum(end for _, end in ends)
        if found >= records:
            return found
        assert process.poll() is None, f"the copy ended with status {process.returncode}"
        assert time.monotonic() < end_s, f"{found} of {records} records after {WAIT_S} s"
        time.sleep(LOOK_S)


# A run


@contextmanager
def places(mb: int, codec: str, ports: tuple[int, int]) -> Iterator[Place]:
    """Two brokers; the first has a topic of `mb` MB before compression."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        with broker(home / "a", ports[0]) as source, broker(home / "b", ports[1]) as target:
            topic = f"filled-{codec}"
            admin = AdminClient({"bootstrap.servers": source})
            admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(WAIT_S)
            chunk = values(RECORD_BYTES, 50_000)
            count = mb * 1_000_000 // (len(chunk) * RECORD_BYTES) or 1
            settings = {"compression_type": codec, "batch_size": 64 << 10, "linger_ms": 50}
            with Producer(bootstrap_servers=source, **settings) as producer:
                for _ in range(count):
                    producer.send_many(topic, chunk)
                producer.flush()
            yield Place(source, target, topic, count * len(chunk), home)


def run(mb: int, rounds: int, codec: str, port: int) -> None:
    """Measure and print."""
    with places(mb, codec, (port, port + APART)) as place:
        taken: dict[str, list[Taken]] = {name: [] for name in CONTENDERS}
        for number in range(rounds):
            turn = list(CONTENDERS.items())
            for name, command in turn if number % 2 else turn[::-1]:
                taken[name].append(measured(place, command, codec))
    print(f"{codec}: {place.records} records of {RECORD_BYTES} B, {rounds} rounds")
    rows = {name: _medians(each) for name, each in taken.items()}
    for name, (rate, cost) in rows.items():
        faster, cheaper = rate / rows[YARDSTICK][0], rows[YARDSTICK][1] / cost
        speed, price = f"{rate:8.1f} MB/s {faster:6.2f}x", f"{cost:7.2f} CPU s/GB {cheaper:6.2f}x"
        print(f"  {name:<52} {speed}   {price}")


def _medians(taken: list[Taken]) -> tuple[float, float]:
    """MB/s of records before compression, and CPU seconds for each GB of them.

    Leaves out a copy that was already complete when first checked.
    """
    taken = [each for each in taken if each.records]
    if not taken:
        sys.exit("all was copied before it could be measured: give more with --mb")
    rates = [each.records * RECORD_BYTES / each.wall_s / 1e6 for each in taken]
    costs = [each.cpu_s / (each.records * RECORD_BYTES / 1e9) for each in taken]
    return statistics.median(rates), statistics.median(costs)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codec", nargs="+", default=["none", "lz4"])
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--copy", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--decode", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.decode:
        run_decoding(given.decode)
        return
    if given.copy:
        source, target, topic, copy, count = given.copy
        copy_by_confluent(source, target, (topic, copy), int(count))
        time.sleep(WAIT_S)  # stay alive until its CPU time has been read
        return
    for codec in given.codec:
        run(given.mb, given.rounds, codec, given.port)


if __name__ == "__main__":
    main()
