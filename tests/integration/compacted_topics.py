"""Compacted topics on a standalone broker, and what the cleaner must have left of what was sent.

Most records have one of a few keys, so that whole batches go; some have a key of their own and a
large value, so that several segments stay, with holes at their ends. Record N has the value N, and
is a millisecond younger than the one before.
"""

from __future__ import annotations

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic
from peer.kafka_workload import read_checkpoint

from kdist.storage.names import CLEANER_OFFSETS
from tests.integration.broker_processes import settled
from tests.integration.standalone_process import Standalone

TIMEOUT_S = 40
KEYS = 40
LARGE_EACH = 200
HASTY_CLEANER = ("--config", "log.cleaner.backoff.ms=100")
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "20000",
    "index.interval.bytes": "1000",
    "min.cleanable.dirty.ratio": "0.001",
}
Line = tuple[int, str]  # offset and key


def address_of(run: Standalone) -> str:
    return f"127.0.0.1:{run.port}"


def create(run: Standalone, topic: str, **settings: str) -> None:
    """A topic of one partition, compacted unless the settings differ."""
    config = COMPACTED | {name.replace("_", "."): value for name, value in settings.items()}
    admin = AdminClient({"bootstrap.servers": address_of(run)})
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(TIMEOUT_S)


def key_of(number: int) -> str:
    return f"once-{number}" if number % LARGE_EACH == 0 else f"key-{number % KEYS}"


def value_of(number: int) -> bytes:
    return b"%d" % number + b" " * (6_000 if number % LARGE_EACH == 0 else 100)


def number_in(value: bytes | None) -> int:
    return int(value or b"")


def send(run: Standalone, topic: str, numbers: range, start_ms: int) -> None:
    """The records of these numbers, by an idempotent producer, in small batches."""
    settings = {"linger.ms": 20, "batch.num.messages": 10, "enable.idempotence": True}
    producer = ck.Producer({"bootstrap.servers": address_of(run)} | settings)
    for number in numbers:
        at_ms = start_ms + number
        producer.produce(topic, value_of(number), key_of(number), 0, timestamp=at_ms)
        if number % 1000 == 999:
            producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


def await_clean(run: Standalone, topic: str) -> int:
    """Wait until all but the active segment is clean; return its base offset."""
    (meta,) = run.data.glob("**/meta.properties")
    offsets, log = meta.parent / CLEANER_OFFSETS, meta.parent / f"{topic}-0"

    def look() -> int:
        active = max(int(each.stem) for each in log.glob("*.log"))
        done = read_checkpoint(offsets).get(log.name, 0) if offsets.exists() else 0
        return done if done == active else 0

    return settled(look)


def segments_of(run: Standalone, topic: str) -> int:
    """How many segments the topic has."""
    return len(list(run.data.glob(f"**/{topic}-0/*.log")))


def left_of(sent: int, cleaned_end: int) -> list[Line]:
    """What is left of so many records: the last of each key before an offset, and all from it."""
    last = {key_of(offset): offset for offset in range(cleaned_end)}
    kept = range(cleaned_end, sent)
    return [(offset, key) for key, offset in sorted(last.items(), key=lambda item: item[1])] + [
        (offset, key_of(offset)) for offset in kept
    ]
