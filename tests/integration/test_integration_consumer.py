"""kdist's consumers on a real broker: positions, commits, groups, fronts, what goes wrong.

Members run in threads of this process; librdkafka's are beside them in mixed groups.
"""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer as ForeignConsumer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from kdist.client.consumer import aio
from kdist.client.consumer.commits import CommitFailed
from kdist.client.consumer.consumer import Consumer
from kdist.client.consumer.context import WakenUp
from kdist.client.consumer.fetcher import OffsetOutOfRange
from kdist.client.consumer.rebalancing import Partitions, RebalanceListener
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import UserError
from kdist.model import TopicPartition
from tests.integration.consumer_members import HASTY, WAIT_S, Member, create, produce, until
from tests.integration.standalone_process import Standalone, standalone


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


def test_three_members_share_a_topic_and_every_record_comes(broker: str, topic: str) -> None:
    found: Counter[bytes] = Counter()
    with ExitStack() as stack:
        members = [Member(broker, topic, found) for _ in range(3)]
        for member in members:
            stack.callback(member.stop)
        until(lambda: [member.share for member in members] == [2, 2, 2])
        values = produce(broker, topic, 3000)
        until(lambda: len(found) == len(values))
        members[0].stop()
        until(lambda: sorted(member.share for member in members[1:]) == [3, 3])
        values += produce(broker, topic, 3000, start=3000)
        until(lambda: len(found) == len(values))
    assert set(found) == set(values)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_is_shared_with_librdkafka(broker: str, topic: str, strategy: str) -> None:
    found: Counter[bytes] = Counter()
    foreign = ForeignConsumer(
        {
            "bootstrap.servers": broker,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": strategy,
            "heartbeat.interval.ms": 200,
            "session.timeout.ms": 6000,
        }
    )
    foreign.subscribe([topic])

    def look() -> None:
        for message in foreign.consume(100, 0.05):
            if message.error() is None:
                found[message.value()] += 1

    with ExitStack() as stack:
        stack.callback(foreign.close)
        member = Member(broker, topic, found, partition_assignment_strategy=[strategy])
        stack.callback(member.stop)
        until(lambda: (look(), len(foreign.assignment()) == 3 == member.share)[1])
        values = produce(broker, topic, 2000)
        until(lambda: (look(), len(found) == len(values))[1])
        another = Member(broker, topic, found, partition_assignment_strategy=[strategy])
        stack.callback(another.stop)
        until(lambda: (look(), len(foreign.assignment()) == member.share == another.share == 2)[1])
        values += produce(broker, topic, 2000, start=2000)
        until(lambda: (look(), len(found) == len(values))[1])
    assert set(found) == set(values)


def test_cooperative_members_keep_what_they_have(broker: str, topic: str) -> None:
    events: list[tuple[str, int]] = []

    class Listener(RebalanceListener):
        def on_assigned(self, partitions: Partitions) -> None:
            events.append(("assigned", len(partitions)))

        def on_revoked(self, partitions: Partitions) -> None:
            events.append(("revoked", len(partitions)))

    strategy = ["cooperative-sticky"]
    first = Consumer(broker, group_id=topic, partition_assignment_strategy=strategy, **HASTY)
    with first:
        first.subscribe([topic], Listener())
        until(lambda: (first.poll(0.1), len(first.assignment()) == 6)[1])
        member = Member(broker, topic, Counter(), partition_assignment_strategy=strategy)
        until(lambda: (first.poll(0.1), len(first.assignment()) == 3 == member.share)[1])
        member.stop()
        until(lambda: (first.poll(0.1), len(first.assignment()) == 6)[1])
    gone = [count for event, count in events if event == "revoked"]
    assert gone == [3, 6], events  # half to the other, all at the end


def test_a_pattern_finds_topics_created_later(broker: str, topic: str) -> None:
    produce(broker, topic, 3)
    found: set[bytes] = set()
    with Consumer(broker, group_id=topic, **HASTY) as consumer:
        consumer.subscribe(re.compile(re.escape(topic) + "(-later)?"))
        until(lambda: (found.update(r.value for r in consumer.poll(0.1)), len(found) == 3)[1])
        create(broker, f"{topic}-later", 1)
        produce(broker, f"{topic}-later", 3, start=3)
        until(lambda: (found.update(r.value for r in consumer.poll(0.1)), len(found) == 6)[1])
        assert consumer.subscription() == {topic, f"{topic}-later"}


def test_new_partitions_are_read_too(broker: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    with Consumer(broker, group_id=topic, **HASTY) as consumer:
        consumer.subscribe([topic])
        until(lambda: (consumer.poll(0.1), len(consumer.assignment()) == 6)[1])
        admin.create_partitions([NewPartitions(topic, 8)])[topic].result(20)
        until(lambda: (consumer.poll(0.1), len(consumer.assignment()) == 8)[1])


def test_a_member_that_does_not_poll_loses_its_partitions(broker: str, topic: str) -> None:
    produce(broker, topic, 5, partition=0)
    settings = HASTY | {"group_id": topic, "enable_auto_commit": False}
    lost: list[Partitions] = []

    class Listener(RebalanceListener):
        def on_lost(self, partitions: Partitions) -> None:
            lost.append(partitions)

    with Consumer(broker, max_poll_interval_ms=1_000, **settings) as slow:
        slow.subscribe([topic], Listener())
        assert slow.poll(WAIT_S)
        other = Member(broker, topic, Counter())
        until(lambda: other.share == 6)
        with pytest.raises(CommitFailed):
            slow.commit()
        until(lambda: (slow.poll(0.1), len(slow.assignment()) == 3)[1])
        assert [len(each) for each in lost] == [6]
        other.stop()


def test_a_static_member_comes_back_without_a_rebalance(broker: str, topic: str) -> None:
    other = Member(broker, topic, Counter(), group_instance_id="other")
    settings = HASTY | {"group_id": topic, "group_instance_id": "one"}
    with Consumer(broker, **settings) as consumer:
        consumer.subscribe([topic])
        until(lambda: (consumer.poll(0.1), len(consumer.assignment()) == 3 == other.share)[1])
        mine = consumer.assignment()
        generation = other.consumer._core.membership.generation
    with Consumer(broker, **settings) as consumer:
        consumer.subscribe([topic])
        until(lambda: (consumer.poll(0.1), consumer.assignment() == mine)[1])
    assert other.consumer._core.membership.generation == generation
    other.stop()
