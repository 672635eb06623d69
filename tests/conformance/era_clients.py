"""Clients of every era, by two libraries that can be configured for old brokers.

Configured with an old broker version, kafka-python and librdkafka do not send ApiVersions and use
that version's format: message sets of magic 0 (up to 0.9) and 1 (0.10), then record batches (from
0.11). Configured for 0.10 or later, librdkafka sends ApiVersions anyway and uses its newest format.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import patience
import suite_kcat
from checks import expect
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

HOUR_MS = 3_600_000  # old enough to tell it from the current time, too recent for retention
NO_TIMESTAMP = -1
TIMEOUT_S = 20

Version = tuple[int, ...]


class Row(NamedTuple):
    """A record as every reader has to see it; offsets have no gaps and start at 0."""

    key: bytes | None
    value: bytes | None


class Written(NamedTuple):
    """Records written or read. A timestamp is None where the writer's own clock set it."""

    rows: list[Row]
    timestamps_ms: list[int | None]


def make_rows(writer: str, codec: str) -> list[Row]:
    """Records with keys and values, also empty and null ones, and redundant enough to compress."""
    head = f"{writer} {codec}".encode()
    rows = [Row(f"key {n}".encode(), head + b" %d " % n + b"kdist " * 30) for n in range(20)]
    return [*rows, Row(None, head), Row(b"empty", b""), Row(head, None)]


def python_writes(version: Version | None, codec: str, address: str, topic: str) -> Written:
    """Write with kafka-python, configured for brokers of `version`."""
    rows = make_rows(f"kafka-python {version}", codec)
    has_timestamps = version is None or version >= (0, 10)
    start_ms = int(time.time() * 1000) - HOUR_MS
    stamps: list[int | None] = [start_ms + n for n in range(len(rows))]
    timeout_s = patience.scaled(TIMEOUT_S)
    producer = KafkaProducer(
        bootstrap_servers=address.split(","),
        api_version=version,
        compression_type=None if codec == "none" else codec,
        linger_ms=50,
        max_block_ms=int(timeout_s * 1000),
    )
    sent = []
    try:
        for row, stamp in zip(rows, stamps, strict=True):
            options = {"timestamp_ms": stamp} if has_timestamps else {}
            sent.append(producer.send(topic, key=row.key, value=row.value, partition=0, **options))
        for future in sent:
            future.get(timeout=timeout_s)
    finally:
        producer.close(timeout=5)
    return Written(rows, stamps if has_timestamps else [NO_TIMESTAMP] * len(rows))


def librdkafka_writes(version: str | None, codec: str, address: str, topic: str) -> Written:
    """Write with kcat, configured for brokers of `version`, or None to negotiate the versions."""
    rows = [row for row in make_rows(f"librdkafka {version}", codec) if row.key and row.value]
    lines = [f"{row.key.decode()}={row.value.decode()}" for row in rows if row.key and row.value]
    suite_kcat.produce(address, topic, lines, "-z", codec, "-K", "=", *_fallback(version))
    has_timestamps = version is None
    return Written(rows, [None if has_timestamps else NO_TIMESTAMP] * len(rows))


def python_reads(version: Version | None, address: str, topic: str, count: int) -> Written:
    """Read the first `count` records with kafka-python; in old eras they have no timestamps."""
    consumer = KafkaConsumer(
        bootstrap_servers=address.split(","),
        api_version=version,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=int(patience.scaled(TIMEOUT_S) * 1000),
    )
    found: list[Any] = []
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
    """Read the first `count` records with kcat, which prints text; all the records are text."""
    found = suite_kcat.consume(address, topic, "beginning", "-c", str(count), *_fallback(version))
    expect(len(found), count, "the number of records")
    expect([message["offset"] for message in found], list(range(count)), "offsets")
    rows = [Row(_bytes(message["key"]), _bytes(message["payload"])) for message in found]
    has_timestamps = version is None
    stamps = [message.get("ts", NO_TIMESTAMP) if has_timestamps else None for message in found]
    return Written(rows, stamps)


Writer = Callable[[str, str, str], Written]  # codec, address, topic
Reader = Callable[[str, str, int], Written]  # address, topic, count

PYTHON_VERSIONS: tuple[Version | None, ...] = ((0, 8, 2), (0, 9), (0, 10), (0, 11), (2, 4), None)
LIBRDKAFKA_VERSIONS = ("0.8.2.2", "0.9.0.1", None)
WRITERS: dict[str, Writer] = {
    **{f"kafka-python {version}": partial(python_writes, version) for version in PYTHON_VERSIONS},
    **{f"librdkafka {v}": partial(librdkafka_writes, v) for v in LIBRDKAFKA_VERSIONS},
}
READERS: dict[str, Reader] = {
    **{f"kafka-python {version}": partial(python_reads, version) for version in PYTHON_VERSIONS},
    **{f"librdkafka {v}": partial(librdkafka_reads, v) for v in LIBRDKAFKA_VERSIONS},
}


def _fallback(version: str | None) -> tuple[str, ...]:
    if version is None:
        return ()
    return ("-X", "api.version.request=false", "-X", f"broker.version.fallback={version}")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
