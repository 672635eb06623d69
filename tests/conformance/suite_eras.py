"""Old and new clients in one topic: what any of them wrote, every one of them reads, and the same.

The clients are two libraries that can be told to behave as they did before brokers could be asked
for their versions: message sets of magic 0 (to 0.9) and 1 (0.10), then record batches (from 0.11).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import checks
import suite_kcat
from checks import expect, new_name
from cluster import Cluster
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from outcome import Outcome

SUITE = "eras"
CODECS = ("none", "gzip", "snappy", "lz4")
HOUR_MS = 3_600_000  # old enough to be told from a clock, too young for retention
NO_TIMESTAMP = -1
TIMEOUT_MS = 20_000

Version = tuple[int, ...]


class Row(NamedTuple):
    """A record as every reader has to see it, offsets being dense from 0."""

    key: bytes | None
    value: bytes | None


class Written(NamedTuple):
    """`timestamps_ms` are None where the writer's clock gave them."""

    rows: list[Row]
    timestamps_ms: list[int | None]


def make_rows(writer: str, codec: str) -> list[Row]:
    """Keys and values, empty and null ones too; enough alike for a codec to find something."""
    head = f"{writer} {codec}".encode()
    rows = [Row(f"key {n}".encode(), head + b" %d " % n + b"kdist " * 30) for n in range(20)]
    return [*rows, Row(None, head), Row(b"empty", b""), Row(head, None)]


def python_writes(version: Version | None, codec: str, address: str, topic: str) -> Written:
    """With kafka-python as it speaks to brokers of `version`."""
    rows = make_rows(f"kafka-python {version}", codec)
    has_timestamps = version is None or version >= (0, 10)
    start_ms = int(time.time() * 1000) - HOUR_MS
    stamps: list[int | None] = [start_ms + n for n in range(len(rows))]
    producer = KafkaProducer(
        bootstrap_servers=address.split(","),
        api_version=version,
        compression_type=None if codec == "none" else codec,
        linger_ms=50,
        max_block_ms=TIMEOUT_MS,
    )
    sent = []
    try:
        for row, stamp in zip(rows, stamps, strict=True):
            options = {"timestamp_ms": stamp} if has_timestamps else {}
            sent.append(producer.send(topic, key=row.key, value=row.value, partition=0, **options))
        for future in sent:
            future.get(timeout=TIMEOUT_MS / 1000)
    finally:
        producer.close(timeout=5)
    return Written(rows, stamps if has_timestamps else [NO_TIMESTAMP] * len(rows))


def librdkafka_writes(version: str | None, codec: str, address: str, topic: str) -> Written:
    """With kcat, told that the broker is of `version`, or asking it."""
    rows = [row for row in make_rows(f"librdkafka {version}", codec) if row.key and row.value]
    lines = [f"{row.key.decode()}={row.value.decode()}" for row in rows if row.key and row.value]
    suite_kcat.produce(address, topic, lines, "-z", codec, "-K", "=", *_fallback(version))
    has_timestamps = _has_timestamps(version)
    return Written(rows, [None if has_timestamps else NO_TIMESTAMP] * len(rows))


def python_reads(version: Version | None, address: str, topic: str, count: int) -> Written:
    """With kafka-python; timestamps are None where its era has none."""
    consumer = KafkaConsumer(
        bootstrap_servers=address.split(","),
        api_version=version,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=TIMEOUT_MS,
    )
    found: list[object] = []
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        for record in consumer:
            found.append(record)
            if len(found) == count:
                break
    finally:
        consumer.close()
    expect(len(found), count, "the number of records")
    expect([record.offset for record in found], list(range(count)), "offsets")
    has_timestamps = version is None or version >= (0, 10)
    return Written(
        [Row(record.key, record.value) for record in found],
        [record.timestamp if has_timestamps else None for record in found],
    )


def librdkafka_reads(version: str | None, address: str, topic: str, count: int) -> Written:
    """With kcat; it prints text, and all that was written is text."""
    found = suite_kcat.consume(address, topic, "beginning", *_fallback(version))
    expect(len(found), count, "the number of records")
    expect([message["offset"] for message in found], list(range(count)), "offsets")
    rows = [Row(_bytes(message["key"]), _bytes(message["payload"])) for message in found]
    has_timestamps = _has_timestamps(version)
    stamps = [message.get("ts", NO_TIMESTAMP) if has_timestamps else None for message in found]
    return Written(rows, stamps)


Writer = Callable[[str, str, str], Written]  # codec, address, topic
Reader = Callable[[str, str, int], Written]  # address, topic, count

PYTHON_VERSIONS: tuple[Version | None, ...] = ((0, 8, 2), (0, 9), (0, 10), (0, 11), (2, 4), None)
LIBRDKAFKA_VERSIONS = ("0.8.2.2", "0.9.0.1", "0.10.0.1", None)
WRITERS: dict[str, Writer] = {
    **{f"kafka-python {version}": partial(python_writes, version) for version in PYTHON_VERSIONS},
    **{f"librdkafka {v}": partial(librdkafka_writes, v) for v in LIBRDKAFKA_VERSIONS},
}
READERS: dict[str, Reader] = {
    **{f"kafka-python {version}": partial(python_reads, version) for version in PYTHON_VERSIONS},
    **{f"librdkafka {v}": partial(librdkafka_reads, v) for v in LIBRDKAFKA_VERSIONS},
}
SMALL = ("kafka-python (0, 9)", "kafka-python (0, 10)", "librdkafka None")


def run(cluster: Cluster, names: Sequence[str] = ()) -> Iterator[Outcome]:
    """First the named writers, or all, into one partition, then all readers."""
    topic = new_name("eras")
    written: list[Written] = []

    def write(writer: str, codec: str, address: str) -> None:
        written.append(WRITERS[writer](codec, address, topic))

    def read(reader: str, address: str) -> None:
        wanted = [row for each in written for row in each.rows]
        stamps = [stamp for each in written for stamp in each.timestamps_ms]
        found = READERS[reader](address, topic, len(wanted))
        for offset, (row, other) in enumerate(zip(wanted, found.rows, strict=True)):
            expect(other, row, f"the record at offset {offset}")
        pairs = enumerate(zip(stamps, found.timestamps_ms, strict=True))
        for offset, (stamp, other_stamp) in pairs:
            if stamp is not None and other_stamp is not None:
                expect(other_stamp, stamp, f"the timestamp at offset {offset}")

    table: list[tuple[str, checks.Check]] = [
        (f"{writer} writes {codec}", partial(write, writer, codec))
        for writer in names or WRITERS
        for codec in CODECS
    ]
    table += [(f"{reader} reads all", partial(read, reader)) for reader in READERS]
    yield from checks.run(SUITE, table, cluster.address)


def _has_timestamps(version: str | None) -> bool:
    return version is None or tuple(map(int, version.split("."))) >= (0, 10)


def _fallback(version: str | None) -> tuple[str, ...]:
    if version is None:
        return ()
    return ("-X", "api.version.request=false", "-X", f"broker.version.fallback={version}")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
