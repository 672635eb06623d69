"""A workload that makes Kafka write every kind of file and batch into its log directory.

`fill` runs one history on a running broker; TOPICS says what each topic is for. Each step returns
once its effect is on the disk, so nothing depends on how long Kafka takes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from peer.kafka_broker import KafkaBroker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WAIT_S = 30
# An hour ago: Kafka forgets an idempotent producer a day after its newest timestamp.
START_MS = time.time_ns() // 1_000_000 - 3_600_000
RETAINED_BYTES = 150_000
FOREVER = {"retention.ms": "-1"}
SMALL = FOREVER | {"segment.bytes": "100000", "index.interval.bytes": "2000"}
CLEANED = SMALL | {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.001",
    "segment.bytes": "30000",
}

# Topic: its settings. All have one partition, except where PARTITIONS says otherwise.
TOPICS: dict[str, dict[str, str]] = {
    **{f"codec-{codec}": SMALL for codec in CODECS},
    "codec-mixed": SMALL,
    "default-settings": FOREVER,  # index files of 10 MiB while active
    "idempotent": SMALL,
    "transactions": SMALL,
    "append-time": SMALL | {"message.timestamp.type": "LogAppendTime"},
    "unordered-times": SMALL | {"index.interval.bytes": "100"},
    "full-indexes": SMALL | {"index.interval.bytes": "1", "segment.index.bytes": "240"},
    "compacted": CLEANED | {"delete.retention.ms": "1"},  # tombstones go: batches with gaps
    "compacted-tombstones": CLEANED,  # tombstones stay: batches with a delete horizon
    "size-retention": SMALL | {"retention.bytes": str(RETAINED_BYTES)},
    "deleted-records": SMALL,
    "empty": SMALL,
    "deleted-topic": SMALL,
    "kdist-written": SMALL,  # Kafka makes it, kdist fills it
    "kdist-torn": SMALL,  # likewise, but kdist ends in the middle of it
}
PARTITIONS = {"idempotent": 2, "empty": 2}


HeaderList = list[tuple[str, bytes | None]]


class Sent(NamedTuple):
    """One record as given to a producer."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: HeaderList


def make_records(seed: int, count: int, first_ms: int = START_MS) -> list[Sent]:
    """Records with present, empty and null keys, values and header values; times go up by 10 ms."""
    rng = random.Random(seed)
    records = []
    for n in range(count):
        key = (b"key-%d" % rng.randrange(50), b"", None)[n % 7 % 3]
        noise = rng.randbytes(rng.randrange(150)).hex()
        body = f"value-{n} {noise:.<300}".encode()
        value = b"" if n % 11 == 5 else None if n % 13 == 7 else body
        headers = HeaderList([("trace", b"%d" % n), ("trace", None), ("ключ", b"")][: n % 4])
        records.append(Sent(key, value, first_ms + n * 10, headers))
    return records


def fill(broker: KafkaBroker) -> None:
    """Write everything that TOPICS is there for into a fresh broker."""
    create_topics(broker, TOPICS)
    _fill_codecs(broker)
    _fill_idempotent(broker)
    _fill_transactions(broker)
    _fill_times(broker)
    _fill_compacted(broker)
    _commit_offsets(broker)
    _delete_some(broker)
    _await_housekeeping(broker)


def create_topics(broker: KafkaBroker, topics: dict[str, dict[str, str]]) -> None:
    """Create topics of one replica."""
    wanted = [
        NewTopic(name, PARTITIONS.get(name, 1), 1, config=settings)
        for name, settings in topics.items()
    ]
    admin = _admin(broker)
    for created in admin.create_topics(wanted).values():
        created.result(WAIT_S)


def produce(
    broker: KafkaBroker, topic: str, records: Iterable[Sent], partition: int = 0, **settings: object
) -> None:
    """Send records in batches of 20 and return once all are in the log."""
    producer = _producer(broker, **settings)
    _send(producer, topic, records, partition)
    assert producer.flush(WAIT_S) == 0


def await_(claim: Callable[[], bool], what: str) -> None:
    """Return once the claim holds."""
    deadline = time.monotonic() + WAIT_S
    while not claim():
        assert time.monotonic() < deadline, f"Kafka did not get there: {what}"
        time.sleep(0.05)


def read_checkpoint(path: Path) -> dict[str, int]:
    """An offset checkpoint of Kafka's as `topic-partition: offset`."""
    rows = path.read_text().splitlines()[2:]
    return {
        f"{topic}-{partition}": int(offset) for topic, partition, offset in map(str.split, rows)
    }


def _admin(broker: KafkaBroker) -> AdminClient:
    """A client to keep in a variable: its answers are lost once it is garbage."""
    return AdminClient({"bootstrap.servers": broker.address})


def _producer(broker: KafkaBroker, **settings: object) -> Producer:
    base = {"bootstrap.servers": broker.address, "batch.num.messages": 20, "linger.ms": 5}
    return Producer(base | {name.replace("_", "."): value for name, value in settings.items()})


def _send(producer: Producer, topic: str, records: Iterable[Sent], partition: int = 0) -> None:
    for record in records:
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            partition=partition,
            timestamp=record.timestamp_ms,
            headers=[*record.headers],
        )
        producer.poll(0)


def _fill_codecs(broker: KafkaBroker) -> None:
    for seed, codec in enumerate(CODECS):
        produce(broker, f"codec-{codec}", make_records(seed, 1500), compression_type=codec)
        produce(broker, "codec-mixed", make_records(seed, 300), compression_type=codec)
    produce(broker, "default-settings", make_records(10, 500))


def _fill_idempotent(broker: KafkaBroker) -> None:
    for seed in range(20, 23):
        producer = _producer(broker, enable_idempotence=True)
        for partition in range(2):
            _send(producer, "idempotent", make_records(seed, 400), partition)
        assert producer.flush(WAIT_S) == 0


def _fill_transactions(broker: KafkaBroker) -> None:
    """Committed, aborted and interleaved transactions, and one that stays open."""
    one, two, open_one = (
        _producer(
            broker, transactional_id=name, compression_type=codec, transaction_timeout_ms=600000
        )
        for name, codec in (("one", "none"), ("two", "lz4"), ("open", "none"))
    )
    for producer in (one, two, open_one):
        producer.init_transactions(WAIT_S)
    for turn in range(8):
        one.begin_transaction()
        two.begin_transaction()
        for n, producer in enumerate((one, two, one)):
            _send(producer, "transactions", make_records(30 + turn * 3 + n, 60))
            assert producer.flush(WAIT_S) == 0
        _end(one, commits=turn % 2 == 0)
        _end(two, commits=turn % 3 == 0)
    open_one.begin_transaction()
    _send(open_one, "transactions", make_records(60, 40))
    assert open_one.flush(WAIT_S) == 0


def _end(producer: Producer, commits: bool) -> None:
    if commits:
        producer.commit_transaction(WAIT_S)
    else:
        producer.abort_transaction(WAIT_S)


def _fill_times(broker: KafkaBroker) -> None:
    records = make_records(70, 1000)
    produce(broker, "append-time", records)
    random.Random(71).shuffle(records)
    produce(broker, "unordered-times", records, compression_type="lz4")
    produce(broker, "full-indexes", make_records(72, 1500))


def _fill_compacted(broker: KafkaBroker) -> None:
    """Few keys, many versions, tombstones, a transaction's markers between them."""
    for topic in ("compacted", "compacted-tombstones"):
        for codec in ("none", "zstd"):
            records = make_records(80, 1000)
            keyed = [
                record._replace(key=b"k%d" % (n * n % 61), value=record.value if n % 5 else None)
                for n, record in enumerate(records)
            ]
            produce(broker, topic, keyed, compression_type=codec)
            producer = _producer(broker, transactional_id=f"compacting-{codec}")
            producer.init_transactions(WAIT_S)
            for commits in (True, False):
                producer.begin_transaction()
                _send(producer, topic, keyed[:40])
                assert producer.flush(WAIT_S) == 0
                _end(producer, commits)
        produce(broker, topic, [r._replace(key=b"last") for r in make_records(81, 300)])


def _commit_offsets(broker: KafkaBroker) -> None:
    for group in ("readers", "other-readers"):
        settings = {"group.id": group, "auto.offset.reset": "earliest"}
        consumer = Consumer({"bootstrap.servers": broker.address} | settings)
        consumer.subscribe(["codec-none", "idempotent"])
        await_(lambda: consumer.poll(0.2) is not None, "a member of the group reads")  # noqa: B023
        for offset in range(10, 60, 10):
            offsets = [TopicPartition("codec-none", 0, offset, metadata=f"at {offset}")]
            consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()


def _delete_some(broker: KafkaBroker) -> None:
    admin = _admin(broker)
    produce(broker, "size-retention", make_records(90, 3000))
    produce(broker, "deleted-records", make_records(91, 1500))
    wanted = TopicPartition("deleted-records", 0, 777)
    admin.delete_records([wanted])[wanted].result(WAIT_S)
    produce(broker, "deleted-topic", make_records(92, 500))
    admin.delete_topics(["deleted-topic"])["deleted-topic"].result(WAIT_S)


def _await_housekeeping(broker: KafkaBroker) -> None:
    """Until the cleaner, retention and the checkpoints have caught up with what was written."""
    data = broker.data
    first_deleted = data / "deleted-records-0" / f"{0:020d}.log"

    def retained() -> bool:
        sizes = [p.stat().st_size for p in sorted((data / "size-retention-0").glob("*.log"))]
        return sum(sizes) - RETAINED_BYTES < sizes[0]

    def cleaned() -> bool:
        clean = read_checkpoint(data / "cleaner-offset-checkpoint")
        return all(
            clean.get(f"{topic}-0", 0)
            >= max(int(p.stem) for p in (data / f"{topic}-0").glob("*.log"))
            for topic in ("compacted", "compacted-tombstones")
        )

    await_(retained, "retention by size")
    await_((data / "cleaner-offset-checkpoint").exists, "a first cleaning")
    await_(cleaned, "compaction up to the active segment")
    starts = data / "log-start-offset-checkpoint"
    await_(lambda: read_checkpoint(starts).get("deleted-records-0") == 777, "a start offset")
    await_(lambda: not first_deleted.exists(), "the removal of a segment below the log start")
    await_(lambda: any(data.glob("deleted-topic-0.*-delete")), "the deleted topic's new name")
