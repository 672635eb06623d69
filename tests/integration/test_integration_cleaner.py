"""Compaction in a real broker, as librdkafka's clients see it, by the cleaner's own process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka as ck
import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.broker_processes import settled
from tests.integration.standalone_process import Standalone, standalone

TIMEOUT_S = 20
KEYS = 40
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
}


def address(run: Standalone) -> dict[str, str]:
    return {"bootstrap.servers": f"127.0.0.1:{run.port}"}


def create(run: Standalone, topic: str, **settings: str) -> None:
    config = COMPACTED | {name.replace("_", "."): value for name, value in settings.items()}
    wanted = NewTopic(topic, 1, 1, config=config)
    admin = AdminClient(address(run))  # in a variable: its answers are lost once it is garbage
    admin.create_topics([wanted])[topic].result(TIMEOUT_S)


def produce(run: Standalone, topic: str, first: int, count: int) -> None:
    producer = ck.Producer(address(run) | {"linger.ms": 1, "batch.num.messages": 10})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number + bytes(100), b"key-%d" % (number % KEYS))
    assert producer.flush(TIMEOUT_S) == 0


def consumed(run: Standalone, topic: str) -> list[tuple[int, bytes, bytes]]:
    """Offset, key and value of all that a consumer gets, from the start to the end."""
    consumer = ck.Consumer(address(run) | {"group.id": "g", "enable.partition.eof": True})
    consumer.assign([ck.TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
        found.append((message.offset(), message.key(), message.value()))
    assert message is not None
    assert message.error().code() == ck.KafkaError._PARTITION_EOF
    consumer.close()
    return found


def cleaner_processes(run: Standalone) -> list[psutil.Process]:
    below = psutil.Process(run.process.pid).children(recursive=True)
    return [each for each in below if "kdist.cli.cleaner" in " ".join(each.cmdline())]


def test_a_topic_is_compacted_while_it_is_written_and_read(tmp_path: Path) -> None:
    with standalone(tmp_path, "--config", "log.cleaner.backoff.ms=200") as run:
        create(run, "table")
        produce(run, "table", 0, 2_000)
        few: Callable[[], bool] = lambda: len(consumed(run, "table")) < 500  # noqa: E731
        settled(few)
        (process,) = settled(lambda: cleaner_processes(run))
        assert process.ionice().ioclass == psutil.IOPRIO_CLASS_IDLE

        process.kill()
        produce(run, "table", 2_000, 2_000)
        settled(lambda: [each for each in cleaner_processes(run) if each.pid != process.pid])
        settled(few)
        found = consumed(run, "table")
        assert [offset for offset, *_ in found] == sorted({offset for offset, *_ in found})
        last = {key: value for _, key, value in found}
        assert {key: int(value.rstrip(b"\0")) for key, value in last.items()} == {
            b"key-%d" % (number % KEYS): number for number in range(4_000 - KEYS, 4_000)
        }
        refused: list[ck.KafkaError] = []
        producer = ck.Producer(address(run))
        producer.produce("table", b"without a key", on_delivery=lambda e, _: refused.append(e))
        producer.flush(TIMEOUT_S)
        assert refused[0].code() == ck.KafkaError.INVALID_RECORD
        second = settled(lambda: cleaner_processes(run))
    psutil.wait_procs(second, timeout=TIMEOUT_S)
    assert not any(each.is_running() for each in second)


def test_the_cleaners_settings_change_while_it_runs(tmp_path: Path) -> None:
    with standalone(tmp_path, "--config", "log.cleaner.backoff.ms=3600000") as run:
        create(run, "table")
        produce(run, "table", 0, 2_000)
        assert len(consumed(run, "table")) == 2_000
        given = {"log.cleaner.backoff.ms": "200", "log.cleaner.dedupe.buffer.size": "2097152"}
        entries = [
            ck.admin.ConfigEntry(name, value, incremental_operation=ck.admin.AlterConfigOpType.SET)
            for name, value in given.items()
        ]
        its = ck.admin.ConfigResource("broker", "0", incremental_configs=entries)
        admin = AdminClient(address(run))
        for done in admin.incremental_alter_configs([its]).values():
            done.result(TIMEOUT_S)
        settled(lambda: len(consumed(run, "table")) < 500)


@pytest.mark.slow
def test_committed_offsets_are_compacted_and_survive_a_restart(tmp_path: Path) -> None:
    given = {
        "log.cleaner.backoff.ms": "200",
        "offsets.topic.segment.bytes": "20000",
        "offsets.topic.num.partitions": "1",
        "message.max.bytes": "10000",
    }
    options = [word for each in given.items() for word in ("--config", "=".join(each))]
    with standalone(tmp_path, *options) as run:
        create(run, "table")
        consumer = ck.Consumer(address(run) | {"group.id": "g"})
        deadline = time.monotonic() + 60
        (meta,) = run.data.glob("**/meta.properties")
        place = meta.parent / "__consumer_offsets-0"
        number = 0
        while len(list(place.glob("*.log"))) < 3 or len(list(place.glob("*.deleted"))) < 2:
            assert time.monotonic() < deadline
            for _ in range(50):
                number += 1
                at = ck.TopicPartition("table", 0, number)
                consumer.commit(offsets=[at], asynchronous=False)
        consumer.close()
    with standalone(tmp_path, *options) as run:
        consumer = ck.Consumer(address(run) | {"group.id": "g"})
        (kept,) = consumer.committed([ck.TopicPartition("table", 0)], TIMEOUT_S)
        assert kept.offset == number
        consumer.close()
