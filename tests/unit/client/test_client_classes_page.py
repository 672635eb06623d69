"""docs/reference/classes.md, tried sentence by sentence: producers and consumers."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import kdist
from kdist import (
    Admin,
    ApiError,
    Consumer,
    ConsumerClosed,
    NewTopic,
    NoBroker,
    NoOffset,
    NotDecoded,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetOutOfRange,
    Producer,
    ProducerClosed,
    RebalanceListener,
    RecordTooLarge,
    Sent,
    TopicPartition,
    UserError,
    WakenUp,
    WrongType,
    aio,
)
from kdist.errors import Error
from tests.refusals import refused
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster
from tests.unit.client.classes_page import (
    PATIENCE_S,
    place,
    says,
    taken,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with cli_cluster(tmp_path_factory.mktemp("classes")) as running:
        yield running


@pytest.fixture
def admin(cluster: CliCluster) -> Iterator[Admin]:
    with Admin(cluster.address) as client:
        yield client


def test_a_producer_sends(cluster: CliCluster, admin: Admin) -> None:
    admin.create_topic("sent", 3)
    says("Sends records to topics.", "Threads may share one; `close` it, or use it in a `with`")
    with Producer(cluster.address) as producer:
        threads = [
            threading.Thread(target=producer.send, args=("sent", b"%d" % number, b"k"))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    says("A setting that is unknown or invalid raises")
    for wrong in ({"lingr_ms": 5}, {"acks": 2}):
        with pytest.raises(UserError):
            Producer(cluster.address, **wrong)  # type: ignore[arg-type]


def test_a_producer_takes_what_a_record_has_and_refuses_the_rest(
    cluster: CliCluster, admin: Admin
) -> None:
    admin.create_topic("taken", 3)
    producer = Producer(cluster.address)
    says("Queue a record for sending, and return its future.", "The future of one record.")
    first = producer.send("taken", b"v", b"k")
    assert isinstance(first, Sent)
    says("The key determines the partition unless")
    same = producer.send("taken", b"v", b"k").result(PATIENCE_S)
    assert same.partition == first.result(PATIENCE_S).partition
    other = (same.partition + 1) % 3
    assert producer.send("taken", b"v", b"k", partition=other).result(PATIENCE_S).partition == other
    says("Where a record was written.")
    assert producer.send("taken", b"v", timestamp=5).result(PATIENCE_S).timestamp == 5
    says("The producer was closed: it accepts", "The record is larger than `max_request_size`")
    says("An argument of a call is of the wrong type", "A flag, file or setting a person gave")
    says("It also raises `ApiError` for a partition that does not exist")
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION):
        producer.send("taken", b"v", partition=3)
    with pytest.raises(RecordTooLarge):
        producer.send("taken", bytes(2 << 20))
    with pytest.raises(WrongType):
        producer.send("taken", "a str")
    says("Wait until each record sent so far is acknowledged or has failed.")
    unknown = producer.send("taken", b"v")
    producer.flush()
    assert unknown.done()
    says("A second call does nothing.")
    producer.close()
    producer.close()
    with pytest.raises(ProducerClosed):
        producer.send("taken", b"v")
    says("`offset` is -1 with acks=0")
    with Producer(cluster.address, acks=0) as careless:
        assert careless.send("taken", b"v").result(PATIENCE_S).offset == -1


def test_a_producer_waits_no_longer_than_it_says(cluster: CliCluster, admin: Admin) -> None:
    admin.create_topic("slow", 1)
    settings: dict[str, Any] = {"max_block_ms": 50}
    says("No broker answers: neither the known ones")
    with pytest.raises(NoBroker), Producer("127.0.0.1:1", **settings) as producer:
        producer.send("slow", b"v")
    with pytest.raises(ApiError), Producer(cluster.address, **settings) as producer:
        producer.send("not/a topic", b"v")
    says("Raises `TimeoutError` after `timeout_s`")
    with Producer(cluster.address) as producer:
        producer.send("slow", b"v")
        with pytest.raises(TimeoutError):
            producer.flush(timeout_s=-1)


def test_a_topic_may_have_the_broker_set_times(cluster: CliCluster, admin: Admin) -> None:
    settings = {"message.timestamp.type": "LogAppendTime"}
    admin.create_topic("stamped", settings=settings)
    says("`timestamp` is in ms: the broker", "Milliseconds since the epoch, set by the producer")
    says("Whether the timestamp is the producer's", "The epoch of the leader that appended it")
    with Producer(cluster.address) as producer:
        sent = producer.send("stamped", b"v", timestamp=5).result(PATIENCE_S)
    assert sent.timestamp > 1_700_000_000_000
    with Consumer(cluster.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([place("stamped")])
        (record,) = taken(consumer, 1)
    assert (record.timestamp, record.leader_epoch) == (sent.timestamp, 0)
    assert record.timestamp_type.name == "LOG_APPEND_TIME"


def test_futures_tell_outcomes(cluster: CliCluster, admin: Admin) -> None:
    admin.create_topic("futures", 2)
    with Producer(cluster.address, max_request_size=2_000) as producer:
        sent = producer.send("futures", b"v", partition=0)
        says("The outcome, waiting for it for up to `timeout` seconds", "Whether the outcome is")
        assert sent.result(timeout=PATIENCE_S).offset == 0
        assert sent.done()
        says("The delivery error, or None if there was none")
        assert sent.exception() is None
        says("Call `callback` with this future once the outcome is known", "It runs on the prod")
        told: list[Any] = []
        sent.add_done_callback(lambda each: told.append((each, threading.current_thread())))
        assert told[0] == (sent, threading.current_thread())  # it was known already
        heard = threading.Event()
        late = producer.send("futures", b"v", partition=0)
        late.add_done_callback(lambda each: (told.append(threading.current_thread()), heard.set()))
        assert heard.wait(PATIENCE_S)

        says("Queue many records for sending", "The future's result is, by partition, the ranges")
        says("The future of all records of one call", "Within a partition, records keep the order")
        many = producer.send_many("futures", [b"a", b"b", b"c"], [b"k"] * 3)
        ((number, (written,)),) = many.result(PATIENCE_S).items()
        assert written.end - written.start == 3
        says("Raises what `send` raises, except that a record", "If any record fails, the future")
        says("For each batch that has failed so far", "Raises the delivery error if the send fai")
        some = producer.send_many("futures", [b"d", bytes(3_000), b"e"], [b"k"] * 3)
        with pytest.raises(RecordTooLarge):
            some.result(PATIENCE_S)
        assert isinstance(some.exception(), RecordTooLarge)
        assert [(each, count) for each, count, _ in some.failures()] == [(number, 1)]
        with pytest.raises(WrongType):
            producer.send_many("futures", ["a str"])
    with Consumer(cluster.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([place("futures", number)])
        consumer.seek(place("futures", number), written.start)
        values = [record.value for record in taken(consumer, 5)]
        assert values == [b"a", b"b", b"c", b"d", b"e"]


@pytest.fixture(scope="module")
def filled(cluster: CliCluster) -> str:
    """A topic of two partitions, with ten records in the first: value and time n at offset n."""
    with Admin(cluster.address) as admin, Producer(cluster.address) as producer:
        keeps = {"retention.ms": "-1"}  # its records are of 1970
        admin.create_topics([NewTopic("filled", 2, settings=keeps), "filled-dlq"])
        for number in range(10):
            headers = [("h", b"1"), ("h", None)]
            producer.send("filled", b"%d" % number, b"k", headers, 0, 1_000 + number)
    return "filled"


def test_a_consumer_reads_what_it_is_assigned(cluster: CliCluster, filled: str) -> None:
    one, two = place(filled), place(filled, 1)
    says("Reads topics, alone or as a member of a group.", "`close` it, or use it in a `with` bl")
    with Consumer(cluster.address, auto_offset_reset="earliest", max_poll_records=4) as consumer:
        says("Read exactly these partitions, without group management.")
        says("A topic's partitions, in order; `UserError`", "They may be given to `assign`.")
        assert consumer.partitions_for(filled) == [one, two]
        with pytest.raises(UserError, match="did you mean filled"):
            consumer.partitions_for("filed")
        consumer.assign(consumer.partitions_for(filled))
        says("The partitions assigned to this consumer.", "The subscribed topics.")
        assert (consumer.assignment(), consumer.subscription()) == ({one, two}, frozenset())
        says("Where the records end that may be read", "How far the position is behind")
        assert (consumer.high_watermark(one), consumer.lag(one)) == (None, None)
        says("The next records; an empty list if", "At most `max_records`, by default")
        assert [each.offset for each in taken(consumer, 4)] == [0, 1, 2, 3]
        assert len(consumer.poll(PATIENCE_S, max_records=1)) == 1
        assert (consumer.high_watermark(one), consumer.lag(one)) == (10, 5)
        says("The offset of the next record to be returned.")
        assert consumer.position(one) == 5
        says("Those that stay keep their positions.")
        consumer.assign([one])
        assert consumer.position(one) == 5
        says("Return no records of these until `resume`", "Return records of these again.")
        says("The partitions that are paused.")
        consumer.pause(one)
        assert (consumer.poll(0.2), consumer.paused()) == ([], {one})
        consumer.resume(one)
        assert (taken(consumer, 1)[0].offset, consumer.paused()) == (5, frozenset())
        says("It may have to be looked up")
        says("Raises `UserError` without a `group_id`")
        with pytest.raises(UserError):
            consumer.subscribe([filled])
        says("Drop all topics and partitions, and leave the group.")
        consumer.unsubscribe()
        assert consumer.assignment() == frozenset()
    with pytest.raises(ConsumerClosed):
        consumer.poll(0)


def test_a_consumer_goes_where_it_is_sent(cluster: CliCluster, filled: str) -> None:
    one, two = place(filled), place(filled, 1)
    with Consumer(cluster.address) as consumer:
        consumer.assign([one])
        says("Continue from `offset`; the `leader_epoch` beside it")
        consumer.seek(one, 8)
        assert taken(consumer, 1)[0].offset == 8
        says("Continue from the first record of these partitions", "Continue from the end of")
        consumer.seek_to_beginning()
        assert consumer.position(one) == 0
        consumer.seek_to_end(one)
        assert consumer.position(one) == 10
        says("Continue from the first record at or after a time", "In these partitions; in all a")
        consumer.seek_to_time(1_007)
        assert consumer.position(one) == 7
        consumer.seek_to_time(5_000, one)
        assert consumer.position(one) == 10
        says("The first record at or after each time (ms)", "The first offset of each partition")
        says("The end offset of each partition")
        found = consumer.offsets_for_times({one: 1_003, two: 0})
        assert found == {one: OffsetAndTimestamp(3, 1_003, 0), two: None}
        assert consumer.beginning_offsets([one, two]) == {one: 0, two: 0}
        assert consumer.end_offsets([one, two]) == {one: 10, two: 0}


def test_a_position_that_cannot_be_found_times_out(cluster: CliCluster, filled: str) -> None:
    with Consumer("127.0.0.1:1", auto_offset_reset="earliest") as consumer:
        consumer.assign([place(filled)])
        with pytest.raises((ApiError, NoBroker)):
            consumer.position(place(filled), timeout_s=0.2)


def test_polls_raise_what_the_page_says(cluster: CliCluster, filled: str) -> None:
    one = place(filled)
    says("Raises `WakenUp` after `wakeup`", "Make the current or next `poll` raise `WakenUp`")
    says("Any thread may call.", "`key_decoder` and `value_decoder` turn bytes into any object")
    says("One that needs a second argument is given a `CodingContext`.")
    says("What a key or value belongs to")
    says("The group has no committed offset for the", "The position is outside the partition's")
    says("The application's decoder failed on", "`wakeup` was called, which interrupted this poll")
    says("The consumer was closed: it no longer reads or commits.")
    contexts: list[Any] = []

    def decode(data: bytes, context: kdist.CodingContext) -> int:
        contexts.append(context)
        return 1 // (int(data) - 3)

    with Consumer(cluster.address, auto_offset_reset="none", value_decoder=decode) as consumer:
        consumer.assign([one])
        with pytest.raises(NoOffset):
            consumer.poll(PATIENCE_S)
        consumer.seek(one, 1_000)
        with pytest.raises(OffsetOutOfRange):
            consumer.poll(PATIENCE_S)
        consumer.seek(one, 2)
        with pytest.raises(NotDecoded) as failed:
            taken(consumer, 8)
        context = contexts[0]
        assert (context.topic, context.role, len(context.headers)) == (filled, "value", 2)
        consumer.seek(one, failed.value.offset + 1)
        assert taken(consumer, 1)[0].value == 1
        waker = threading.Thread(target=consumer.wakeup)
        waker.start()
        waker.join()
        with pytest.raises(WakenUp):
            consumer.poll(PATIENCE_S)


def test_batches_and_records_are_what_was_sent(cluster: CliCluster, filled: str) -> None:
    one = place(filled)
    with Consumer(cluster.address) as consumer:
        consumer.assign([one])
        consumer.seek(one, 3)
        says("As `poll`, but whole batches", "Records of one partition with offsets from")
        batch = consumer.poll_batches(PATIENCE_S)[0]
        says("`len(batch)` and iteration cover those records.", "`header` and `encoded` are the")
        assert (batch.start, len(batch)) == (3, batch.end - 3)
        assert len(batch.encoded) == batch.header.size
        says("The topic's name.", "The values alone", "The keys alone.", "The records' offsets; a")
        says("The records' timestamps, ms", "The headers alone", "The records; iteration gives")
        count = len(batch)
        assert (batch.topic, batch.values()[0], batch.keys()) == (filled, b"3", [b"k"] * count)
        assert batch.offsets() == range(3, 3 + count)
        assert batch.timestamps()[0] == 1_003
        assert [*batch.headers()[0]] == [("h", b"1"), ("h", None)]
        assert batch.records() == [*batch]
        says("One record: `topic`, `partition`, `offset`", "`timestamp` is ms since the epoch.")
        says("`key` and `value` are bytes, or what the", "`headers` are pairs of name and value.")
        says("The topic it was read from.", "The partition's number.", "The record's offset in")
        says("The key, or None.", "Pairs of name and value; a name may be repeated.")
        record = batch.records()[0]
        where = (record.topic, record.partition, record.offset, record.timestamp)
        assert where == (filled, 0, 3, 1_003)
        assert (record.key, record.value) == (b"k", b"3")
        assert [*record.headers] == [("h", b"1"), ("h", None)]


class Watching(RebalanceListener):
    def __init__(self) -> None:
        self.told: list[tuple[str, frozenset[TopicPartition]]] = []

    def on_assigned(self, partitions: Any) -> None:
        self.told.append(("assigned", frozenset(partitions)))

    def on_revoked(self, partitions: Any) -> None:
        self.told.append(("revoked", frozenset(partitions)))


def test_a_member_reads_and_commits(cluster: CliCluster, filled: str) -> None:
    one, two = place(filled), place(filled, 1)
    says("Read these topics, or all whose whole names match", "A new call replaces the last.")
    says("`listener` is called on rebalances, within `poll`.", "Called on a group's rebalances")
    says("Override the methods you need.", "They may use the consumer: commit, seek, pause.")
    says("These were added; partitions assigned", "These are being revoked: the last moment")
    listener = Watching()
    settings: dict[str, Any] = {"group_id": "page", "auto_offset_reset": "earliest"}
    settings |= {"max_poll_records": 3, "enable_auto_commit": False}
    with Consumer(cluster.address, **settings) as consumer:
        consumer.subscribe(re.compile("filled"), listener)
        assert [each.offset for each in taken(consumer, 3)] == [0, 1, 2]
        assert (consumer.subscription(), consumer.assignment()) == ({filled}, {one, two})
        assert listener.told == [("assigned", frozenset((one, two)))]
        says("`UserError` while topics are subscribed.")
        with pytest.raises(UserError):
            consumer.assign([one])
        says("The offsets that the group has committed; None where", "Commit offsets, by default")
        says("An offset is a number, or an `OffsetAndMetadata`.", "A committed offset, that of")
        says("`leader_epoch` is that of the last record read.")
        assert consumer.committed([one]) == {one: None}
        consumer.commit()
        assert consumer.committed([one]) == {one: OffsetAndMetadata(3, "", 0)}
        consumer.commit({one: 5, two: OffsetAndMetadata(0, "why")})
        found = consumer.committed([one, two])
        assert (found[one], found[two]) == (OffsetAndMetadata(5), OffsetAndMetadata(0, "why"))


def test_a_member_commits_in_the_background_and_moves(
    cluster: CliCluster, filled: str, admin: Admin
) -> None:
    one, two, dlq = place(filled), place(filled, 1), place("filled-dlq")
    listener = Watching()
    with Consumer(cluster.address, group_id="moving", enable_auto_commit=False) as consumer:
        consumer.subscribe([filled], listener)
        while consumer.assignment() != {one, two}:
            consumer.poll(0.1)
        says("Commit in the background; calls `on_committed")
        told: list[Any] = []
        heard = threading.Event()
        consumer.commit_async({one: 6}, lambda *each: (told.append(each), heard.set()))
        assert heard.wait(PATIENCE_S)
        assert told == [({one: OffsetAndMetadata(6)}, None)]
        consumer.subscribe(["filled-dlq"], listener)
        while consumer.assignment() != {dlq}:
            consumer.poll(0.1)
        assert ("revoked", frozenset((one, two))) in listener.told
        says("Groups by name, with members and lag.")
        (group,) = admin.describe_groups(["moving"]).values()
        assert [member.partitions for member in group.members] == [(dlq,)]
        says("Delete groups and their committed offsets", "GROUP_SUBSCRIBED_TO_TOPIC for a topic")
        with refused(Error.NON_EMPTY_GROUP):
            admin.delete_groups(["moving"])
        with refused(Error.GROUP_SUBSCRIBED_TO_TOPIC):
            admin.delete_group_offsets("moving", [dlq])


def test_a_poll_implies_that_the_records_before_it_are_done(
    cluster: CliCluster, filled: str
) -> None:
    one = place(filled)
    says("With `enable_auto_commit`, a poll implies")
    settings: dict[str, Any] = {"group_id": "auto", "auto_offset_reset": "earliest"}
    settings |= {"max_poll_records": 3, "auto_commit_interval_ms": 0}
    with Consumer(cluster.address, **settings) as consumer:
        consumer.subscribe([filled])
        taken(consumer, 3)
        consumer.poll(PATIENCE_S)
        while (found := consumer.committed([one])[one]) is None or found.offset < 3:
            pass
        assert found.offset == 3


def test_asyncio_clients_do_the_same(cluster: CliCluster, filled: str) -> None:
    async def main() -> list[int]:
        async with aio.Producer(cluster.address) as producer:
            sent = await producer.send_and_wait("filled-dlq", b"v")
            assert (await (await producer.send("filled-dlq", b"w"))).offset == sent.offset + 1
        async with aio.Admin(cluster.address) as admin:
            assert filled in [topic.name for topic in await admin.list_topics()]
        async with aio.Consumer(cluster.address, auto_offset_reset="earliest") as consumer:
            consumer.assign([place(filled)])
            return [record.offset for record in await consumer.poll(PATIENCE_S)]

    assert asyncio.run(main())[:3] == [0, 1, 2]
