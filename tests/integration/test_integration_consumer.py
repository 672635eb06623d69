"""kdist's consumer against a real broker of kdist: positions, commits, fronts, what goes wrong."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kdist.client.consumer import aio
from kdist.client.consumer.consumer import Consumer
from kdist.client.consumer.core import WakenUp
from kdist.client.consumer.fetcher import OffsetOutOfRange
from kdist.client.consumer.rebalancing import Partitions, RebalanceListener
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import UserError
from kdist.model import TopicPartition
from tests.integration.consumer_members import HASTY, WAIT_S, create, produce, until
from tests.integration.standalone_process import Standalone, standalone


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("consumer")) as run:
        yield run


@pytest.fixture(scope="module")
def broker(cluster: Standalone) -> str:
    return f"127.0.0.1:{cluster.port}"


@pytest.fixture
def topic(broker: str, request: pytest.FixtureRequest) -> str:
    name = re.sub("[^a-z0-9]+", "-", request.node.name)
    create(broker, name, 6)
    return name


def test_commits_survive_a_restart_of_the_consumer(broker: str, topic: str) -> None:
    produce(broker, topic, 10, partition=0)
    partition = TopicPartition(topic, 0)
    settings = HASTY | {"group_id": topic, "enable_auto_commit": False}
    with Consumer(broker, **settings) as consumer:
        consumer.subscribe([topic])
        records = consumer.poll(WAIT_S, max_records=4)
        assert [record.offset for record in records] == [0, 1, 2, 3]
        consumer.commit()
    with Consumer(broker, **settings) as consumer:
        consumer.subscribe([topic])
        assert consumer.poll(WAIT_S, max_records=1)[0].offset == 4
        consumer.commit({partition: OffsetAndMetadata(7, "a note", 0)})
        assert consumer.committed([partition]) == {partition: OffsetAndMetadata(7, "a note", 0)}


def test_auto_commit_on_close_covers_exactly_the_iterated_records(broker: str, topic: str) -> None:
    produce(broker, topic, 10, partition=0)
    with Consumer(broker, group_id=topic, **HASTY) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            if record.offset == 5:
                break
        assert consumer.position(TopicPartition(topic, 0)) == 6
    with Consumer(broker, group_id=topic, **HASTY) as consumer:
        assert consumer.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)].offset == 6


def test_poll_and_batches_resume_where_iteration_stopped(broker: str, topic: str) -> None:
    produce(broker, topic, 30, partition=0)
    partition = TopicPartition(topic, 0)
    with Consumer(broker) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        assert next(iter(consumer)).offset == 0
        assert consumer.poll(WAIT_S, 3)[0].offset == 1
        consumer.seek(partition, 20)
        assert next(iter(consumer)).offset == 20
        batch = consumer.poll_batches(WAIT_S)[0]
        assert (batch.start, batch.end, len(batch)) == (21, 30, 9)
        assert batch.values() == [b"%d" % number for number in range(21, 30)]
        assert [record.key for record in batch] == batch.keys() == batch.values()


def test_a_paused_partition_returns_nothing_until_it_is_resumed(broker: str, topic: str) -> None:
    produce(broker, topic, 5, partition=0)
    produce(broker, topic, 5, partition=1)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(broker, auto_offset_reset="earliest") as consumer:
        consumer.assign([zero, one])
        consumer.pause(zero)
        assert consumer.paused() == {zero}
        assert {record.partition for record in consumer.poll(WAIT_S)} == {1}
        assert consumer.poll(0.7) == []
        consumer.resume(zero)
        assert {record.partition for record in consumer.poll(WAIT_S)} == {0}


def test_offsets_are_found_by_time(broker: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker})
    now_ms = int(time.time() * 1000)
    for number in range(10):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=now_ms + number * 1000)
        producer.flush(20)  # each a batch
    partition = TopicPartition(topic, 0)
    with Consumer(broker) as consumer:
        consumer.assign([partition])
        found = consumer.offsets_for_times({partition: now_ms + 3500})
        assert found[partition].offset == 4
        assert found[partition].timestamp == now_ms + 4000
        assert consumer.offsets_for_times({partition: now_ms + 60_000}) == {partition: None}
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 10}
        consumer.seek_to_time(now_ms + 7000)
        assert consumer.poll(WAIT_S)[0].value == b"7"
        consumer.seek_to_end()
        assert consumer.position(partition) == 10


def test_an_offset_out_of_range_is_reset_or_an_error(broker: str, topic: str) -> None:
    produce(broker, topic, 5, partition=0)
    partition = TopicPartition(topic, 0)
    with Consumer(broker, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 1000)
        assert consumer.poll(WAIT_S)[0].offset == 0
    with Consumer(broker, auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 1000)
        with pytest.raises(OffsetOutOfRange, match="has no offset 1000"):
            consumer.poll(WAIT_S)
        consumer.seek(partition, 2)
        assert consumer.poll(WAIT_S)[0].offset == 2


def test_wakeup_ends_a_poll_that_waits(broker: str, topic: str) -> None:
    with Consumer(broker) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        timer = threading.Timer(0.2, consumer.wakeup)
        timer.start()
        with pytest.raises(WakenUp):
            consumer.poll()
        assert consumer.poll(0.1) == []


def test_wakeup_takes_precedence_over_ready_records(broker: str, topic: str) -> None:
    produce(broker, topic, 10, partition=0)
    with Consumer(broker, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for offset in range(10):
            assert consumer.poll(WAIT_S, max_records=1)[0].offset == offset
            consumer.wakeup()
            with pytest.raises(WakenUp):
                consumer.poll(WAIT_S, max_records=1)


def test_a_listener_may_use_the_consumer_and_its_error_ends_the_poll(
    broker: str, topic: str
) -> None:
    produce(broker, topic, 5, partition=0)

    class Seeks(RebalanceListener):
        def on_assigned(self, partitions: Partitions) -> None:
            consumer.seek(TopicPartition(topic, 0), 3)

        def on_revoked(self, partitions: Partitions) -> None:
            consumer.commit()
            raise ValueError("no")

    consumer = Consumer(broker, group_id=topic, enable_auto_commit=False, **HASTY)
    consumer.subscribe([topic], Seeks())
    assert consumer.poll(WAIT_S)[0].offset == 3
    with pytest.raises(ValueError, match="no"):
        consumer.close()
    with pytest.raises(UserError, match="closed"):
        consumer.poll()
    with Consumer(broker, group_id=topic) as reader:
        committed = reader.committed([TopicPartition(topic, 0)])
        assert committed[TopicPartition(topic, 0)] == OffsetAndMetadata(5, "", 0)


def test_the_asyncio_front_reads_commits_and_iterates(broker: str, topic: str) -> None:
    produce(broker, topic, 10, partition=0)
    partition = TopicPartition(topic, 0)
    told: list[int] = []

    class Listener(RebalanceListener):
        async def on_assigned(self, partitions: Partitions) -> None:
            await asyncio.sleep(0)
            told.append(len(partitions))

    async def read() -> list[int]:
        found = []
        async with aio.Consumer(broker, group_id=topic, **HASTY) as consumer:
            consumer.subscribe([topic], Listener())
            async for record in consumer:
                found.append(record.offset)
                if record.offset == 4:
                    break
            await consumer.commit()
            committed = await consumer.committed([partition])
            assert committed[partition] == OffsetAndMetadata(5, "", 0)
            found += [record.offset for record in await consumer.poll(WAIT_S)]
        return found

    assert asyncio.run(read()) == list(range(10))
    assert told == [6]


def test_brokers_are_found_by_zookeeper(cluster: Standalone, broker: str, topic: str) -> None:
    produce(broker, topic, 1, partition=0)
    settings = {"zk_connect": cluster.addresses["zookeeper"], "auto_offset_reset": "earliest"}
    first = TopicPartition(topic, 0)
    with Consumer(**settings) as consumer:
        consumer.assign([first])
        assert len(consumer.poll(WAIT_S)) == 1

    async def awaited() -> int:
        async with aio.Consumer(**settings) as consumer:
            consumer.assign([first])
            return len(await consumer.poll(WAIT_S))

    assert asyncio.run(awaited()) == 1
    with pytest.raises(UserError, match="bootstrap_servers, or zk_connect"):
        Consumer()
    with pytest.raises(UserError, match="give one"):
        Consumer(broker, **settings)


def test_reading_resumes_after_a_broker_restarts(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(standalone(tmp_path))
        address = f"127.0.0.1:{first.port}"
        create(address, "clicks", 1)
        produce(address, "clicks", 5)
        consumer = stack.enter_context(Consumer(address, group_id="readers", **HASTY))
        consumer.subscribe(["clicks"])
        assert len(consumer.poll(WAIT_S)) == 5
        restart(first)
        second = stack.enter_context(standalone(tmp_path, port=first.port))
        produce(f"127.0.0.1:{second.port}", "clicks", 5, start=5)
        found: list[bytes] = []
        until(lambda: (found.extend(r.value for r in consumer.poll(0.1)), len(found) >= 5)[1])
        assert found == [b"5", b"6", b"7", b"8", b"9"]
        consumer.commit()


def restart(run: Standalone) -> None:
    run.stop(signal.SIGINT)
