"""Fetch: every version and format, limits, errors, isolation, and a model of a partition."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.broker.handlers.fetch import _Fetch
from kdist.broker.handlers.produce import ProduceHandler
from kdist.config.topic import TopicSettings
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.fetch import ReplicaState
from kdist.protocol.offset_for_leader_epoch import DEBUG_CONSUMER
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.batch import read_header
from kdist.records.compression import Codec
from kdist.replication.partition import Partition
from tests.examples import examples
from tests.unit.broker.broker_fetches import Broker, Fetch, large
from tests.unit.replication.replication_world import (
    BROKER,
    CLICKS,
    START_MS,
    VIEWS,
    Client,
    append,
    append_open,
    batch,
    topic_id_of,
    values_in,
)
from tests.written_records import iter_records

MAGIC_0, MAGIC_1 = (0, 1), (2, 3)
ALL, NEWEST = range(18), 17


@pytest.fixture
def broker() -> Broker:
    return Broker()


# --- versions and formats -------------------------------------------------------------------------


@pytest.mark.parametrize("version", ALL)
def test_every_version_gets_the_records(broker: Broker, version: int) -> None:
    partition = broker.lead()
    append(broker, partition, b"a", b"b")
    append(broker, partition, b"c")
    fetch = broker.fetch({CLICKS: 0}, version)
    (result,) = fetch.results
    assert (result.error_code, result.high_watermark, result.log_start_offset) == (0, 3, 0)
    assert fetch.values() == [[b"a", b"b", b"c"]]
    assert broker.pins == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize("version", [*MAGIC_0, *MAGIC_1])
def test_old_versions_get_their_own_format(broker: Broker, version: int, codec: Codec) -> None:
    append(broker, broker.lead(), b"a", b"b", codec=codec)
    fetch = broker.fetch({CLICKS: 0}, version)
    broker.settle()
    (data,) = fetch.send()
    assert data[16] == (0 if version in MAGIC_0 else 1)
    assert [(r.offset, r.value) for r in iter_records(data, 1 << 20)] == [(0, b"a"), (1, b"b")]
    assert broker.metrics.converted_fetches == 1


def test_old_versions_get_no_records_before_the_fetch_offset(broker: Broker) -> None:
    append(broker, broker.lead(), b"a", b"b", b"c")
    assert broker.fetch({CLICKS: 2}, 2).values() == [[b"c"]]


def test_down_conversion_can_be_off(broker: Broker) -> None:
    append(broker, broker.lead(message_downconversion_enable=False), b"a")
    assert broker.fetch({CLICKS: 0}, 3).errors == [Error.UNSUPPORTED_VERSION]
    assert broker.fetch({CLICKS: 0}, 4).values() == [[b"a"]]


@pytest.mark.parametrize("version", ALL)
def test_zstd_topics_need_version_10(broker: Broker, version: int) -> None:
    append(broker, broker.lead(compression_type="zstd"), b"a")
    fetch = broker.fetch({CLICKS: 0}, version)
    assert fetch.errors == [0 if version >= 10 else Error.UNSUPPORTED_COMPRESSION_TYPE]
    fetch.send()
    assert broker.pins == 0


@pytest.mark.parametrize("version", [*MAGIC_0, *MAGIC_1])
def test_records_before_an_inconvertible_batch_are_returned_converted(
    broker: Broker, version: int
) -> None:
    partition = broker.lead()
    append(broker, partition, b"a")
    append(broker, partition, b"b", codec=Codec.ZSTD)
    assert broker.fetch({CLICKS: 0}, version).values() == [[b"a"]]
    assert broker.fetch({CLICKS: 1}, version).errors == [Error.UNSUPPORTED_COMPRESSION_TYPE]
    assert broker.pins == 0


@pytest.mark.parametrize("version", [*MAGIC_0, *MAGIC_1])
def test_decompression_bombs_are_converted_one_per_answer(broker: Broker, version: int) -> None:
    bomb = bytes(17 << 20)
    for key in (CLICKS, VIEWS):
        for _ in range(2):
            append(broker, broker.lead(key), bomb, codec=Codec.LZ4)
    fetch, later = broker.fetch({CLICKS: 0, VIEWS: 0}, version), broker.fetch({CLICKS: 1}, version)
    broker.settle()
    first, second = fetch.send()
    assert [r.offset for r in iter_records(first, 1 << 25)] == [0]
    assert second == b""
    (after,) = later.send()
    assert [r.offset for r in iter_records(after, 1 << 25)] == [1]
    assert broker.pins == 0


def test_a_batch_too_large_to_convert_is_an_error_for_an_old_client(broker: Broker) -> None:
    append(broker, broker.lead(), bytes(65 << 20), codec=Codec.LZ4)
    old = broker.fetch({CLICKS: 0}, 3)
    broker.settle()
    assert old.errors == [Error.CORRUPT_MESSAGE]
    fetch = broker.fetch({CLICKS: 0}, 4)
    assert fetch.errors == [0]
    assert [len(data) for data in fetch.send()] == [broker.replicas.partitions[CLICKS].log.size]


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 18))
def test_the_first_batch_is_returned_whole_whatever_the_limits(
    broker: Broker, version: int
) -> None:
    large(broker, CLICKS)
    fetch = broker.fetch({CLICKS: 0}, version, part_bytes=10, max_bytes=5)
    assert [len(values) for values in fetch.values()] == [1]


def test_up_to_version_2_an_answer_may_end_in_a_partial_message(broker: Broker) -> None:
    large(broker, CLICKS)
    for version in (0, 1, 2):
        (data,) = broker.fetch({CLICKS: 0}, version, part_bytes=100).send()
        assert len(data) == 12
        assert int.from_bytes(data[8:12], "big") >= 1000
        assert list(iter_records(data, 1 << 20, may_end_partial=True)) == []


def test_partitions_are_served_in_order_until_max_bytes(broker: Broker) -> None:
    keys = [TopicPartition("t", number) for number in range(4)]
    large(broker, *keys)
    fetch = broker.fetch({keys[2]: 0, keys[0]: 0, keys[3]: 0, keys[1]: 0}, max_bytes=3 * 1100)
    assert [result.partition_index for result in fetch.results] == [2, 0, 3, 1]
    assert [len(values) for values in fetch.values()] == [2, 1, 0, 0]
    assert broker.pins == 0


def test_a_later_partition_gets_no_partial_batch(broker: Broker) -> None:
    large(broker, CLICKS, VIEWS)
    fetch = broker.fetch({CLICKS: 0, VIEWS: 0}, part_bytes=500)
    assert [len(data) > 0 for data in fetch.send()] == [True, False]
    assert broker.pins == 0


def test_the_brokers_own_limit_holds_too() -> None:
    broker = Broker(fetch_max_bytes=1500)
    large(broker, CLICKS, VIEWS)
    assert [len(v) for v in broker.fetch({CLICKS: 0, VIEWS: 0}).values()] == [1, 0]


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ALL)
def test_each_partition_has_its_own_error(broker: Broker, version: int) -> None:
    append(broker, broker.lead(), b"a")
    broker.known.add(VIEWS)
    nothing = TopicPartition("nothing", 0)
    fetch = broker.fetch({CLICKS: 0, VIEWS: 0, nothing: 0}, version, max_wait_ms=500)
    unknown = Error.UNKNOWN_TOPIC_OR_PARTITION if version < 13 else Error.UNKNOWN_TOPIC_ID
    assert fetch.errors == [0, Error.NOT_LEADER_OR_FOLLOWER, unknown]
    assert [result.high_watermark for result in fetch.results] == [1, -1, -1]
    assert [len(values) for values in fetch.values()] == [1, 0, 0]
    assert broker.metrics.failed_fetches == 2


def following(broker: Broker) -> Partition:
    """A partition of three records that this broker follows, two below its high watermark."""
    broker.tell(CLICKS, replicas=[BROKER, 2], isr=[BROKER, 2])
    partition = broker.replicas.partitions[CLICKS]
    for value in (b"a", b"b", b"c"):
        append(broker, partition, value)
    broker.tell(CLICKS, replicas=[BROKER, 2], isr=[BROKER, 2], leader=2, leader_epoch=1)
    partition.take_leader_offsets(2, 0, lambda *_: None)
    return partition


def as_debugger(version: int) -> dict[str, Any]:
    """The fields of a fetch by a tool that compares replicas."""
    if version < 15:
        return {"replica_id": DEBUG_CONSUMER}
    return {"replica_state": ReplicaState(replica_id=DEBUG_CONSUMER)}


@pytest.mark.parametrize("version", ALL)
def test_a_follower_shows_what_is_committed_to_those_who_compare_replicas(
    broker: Broker, version: int
) -> None:
    partition = following(broker)
    assert broker.fetch({CLICKS: 0}, version).errors == [Error.NOT_LEADER_OR_FOLLOWER]
    fetch = broker.fetch({CLICKS: 0}, version, **as_debugger(version))
    assert (fetch.errors, fetch.values()) == ([0], [[b"a", b"b"]])
    assert fetch.results[0].high_watermark == 2
    waiting = broker.fetch({CLICKS: 2}, version, max_wait_ms=60_000, **as_debugger(version))
    partition.take_leader_offsets(3, 0, lambda *_: None)
    broker.settle()
    assert waiting.values() == [[b"c"]]
    assert broker.pins == 0


@pytest.mark.parametrize(
    ("epoch", "error"), [(0, Error.FENCED_LEADER_EPOCH), (2, Error.UNKNOWN_LEADER_EPOCH)]
)
def test_a_follower_shows_nothing_to_those_of_another_epoch(
    broker: Broker, epoch: int, error: Error
) -> None:
    following(broker)
    asked = {"current_leader_epoch": epoch}
    assert broker.fetch({CLICKS: 0}, partition=asked, **as_debugger(12)).errors == [error]


def test_a_follower_shows_nothing_without_a_leader_or_while_it_cuts_its_log_off(
    broker: Broker,
) -> None:
    partition = following(broker)
    partition.log.is_truncating = True
    refused = [Error.NOT_LEADER_OR_FOLLOWER]
    assert broker.fetch({CLICKS: 0}, **as_debugger(12)).errors == refused
    partition.log.is_truncating = False
    broker.tell(CLICKS, replicas=[BROKER, 2], isr=[2], leader=-1, leader_epoch=2)
    assert broker.fetch({CLICKS: 0}, **as_debugger(12)).errors == refused


@pytest.mark.parametrize("offset", [-1, 0, 4, 99])
def test_an_offset_outside_the_log_is_out_of_range_at_once(broker: Broker, offset: int) -> None:
    partition = broker.lead()
    append(broker, partition, b"a", b"b", b"c")
    broker.directory.trimmer.delete_records(partition.log, 1, lambda _: None)
    fetch = broker.fetch({CLICKS: offset}, max_wait_ms=500)
    assert fetch.errors == [Error.OFFSET_OUT_OF_RANGE]


@pytest.mark.parametrize(
    ("epoch", "error"), [(1, Error.FENCED_LEADER_EPOCH), (3, Error.UNKNOWN_LEADER_EPOCH), (2, 0)]
)
def test_the_clients_leader_epoch_is_checked_and_the_leader_returned(
    broker: Broker, epoch: int, error: int
) -> None:
    broker.tell(leader_epoch=2)
    for version in (9, 12):
        fetch = broker.fetch({CLICKS: 0}, version, partition={"current_leader_epoch": epoch})
        fetch.send()
        assert fetch.errors == [error]
        hint = fetch.results[0].current_leader
        assert (hint is not None) == (version == 12 and error == Error.FENCED_LEADER_EPOCH)
        if hint is not None:
            assert (hint.leader_id, hint.leader_epoch) == (1, 2)


@pytest.mark.parametrize("version", [12, 14, 15, 17])
def test_only_an_assigned_replica_may_fetch_as_one(broker: Broker, version: int) -> None:
    broker.tell(replicas=[1, 2])
    assert as_follower(broker, 3, version).errors == [Error.UNKNOWN_LEADER_EPOCH]
    assert as_follower(broker, 2, version).errors == [0]


def test_a_follower_that_has_what_its_new_leader_still_writes_is_not_out_of_range() -> None:
    """Else it would cut that off, and fetch it again."""
    broker = Broker()
    broker.lead(CLICKS, replicas=[1, 2])
    log = broker.replicas.partitions[CLICKS].log
    log.reserved_offset += 3
    request = {"replica_id": 2, "max_wait_ms": 0}
    assert broker.fetch({CLICKS: log.reserved_offset}, **request).errors == [0]
    assert broker.fetch({CLICKS: log.reserved_offset + 1}, **request).errors == [
        Error.OFFSET_OUT_OF_RANGE
    ]
    in_sync = broker.replicas.partitions[CLICKS].in_sync
    assert in_sync is not None
    assert in_sync.remotes[2].end_offset == -1


def test_a_follower_at_the_end_is_not_read_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.tell(replicas=[1, 2], isr=[1, 2])
    append(broker, broker.replicas.partitions[CLICKS], b"0")
    read = []
    monkeypatch.setattr(_Fetch, "_read", lambda self, cached: read.append(cached) or (None, None))
    as_follower(broker, 2, NEWEST, offset=1, partition={"last_fetched_epoch": 0})
    assert broker.replicas.partitions[CLICKS].high_watermark == 1
    assert read == []


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"last_fetched_epoch": 1}, Error.OFFSET_OUT_OF_RANGE),
        ({"current_leader_epoch": 1}, Error.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_a_follower_at_the_end_of_another_epoch_is_refused(
    broker: Broker, asked: dict[str, int], error: Error
) -> None:
    broker.tell(replicas=[1, 2], isr=[1, 2])
    append(broker, broker.replicas.partitions[CLICKS], b"0")
    assert as_follower(broker, 2, NEWEST, offset=1, partition=asked).errors == [error]
    assert broker.replicas.partitions[CLICKS].high_watermark == 0


def as_follower(
    broker: Broker, broker_id: int, version: int, offset: int = 0, **fields: Any
) -> Fetch:
    if version < 15:
        return broker.fetch({CLICKS: 0}, version, replica_id=broker_id)
    state = ReplicaState(replica_id=broker_id)
    return broker.fetch({CLICKS: offset}, version, replica_state=state, **fields)


# --- topic ids ------------------------------------------------------------------------------------


def test_a_partition_is_answered_under_the_id_that_named_it(broker: Broker) -> None:
    append(broker, broker.lead(), b"a")
    append(broker, broker.lead(VIEWS), b"b")
    fetch = broker.fetch({CLICKS: 0, VIEWS: 0}, 13)
    assert [each.topic_id for each in fetch.response.responses] == [
        topic_id_of(CLICKS.topic),
        topic_id_of(VIEWS.topic),
    ]
    assert fetch.values() == [[b"a"], [b"b"]]


def test_a_session_goes_on_with_an_id_once_the_broker_knows_its_topic(broker: Broker) -> None:
    append(broker, broker.lead(), b"a")
    broker.lead(VIEWS)
    names = dict(broker.names)
    broker.names.clear()
    first = broker.fetch({CLICKS: 0, VIEWS: 0}, 13, session_epoch=0)
    assert first.errors == [Error.UNKNOWN_TOPIC_ID] * 2
    session = {"session_id": first.response.session_id}
    again = broker.fetch({}, 13, **session, session_epoch=1, max_wait_ms=500)
    assert again.errors == [Error.UNKNOWN_TOPIC_ID] * 2
    broker.names.update(names)
    found = broker.fetch({}, 13, **session, session_epoch=2)
    assert found.errors == [0, 0]
    assert found.values() == [[b"a"], []]


def test_an_id_is_not_taken_for_a_topic_of_the_same_name_made_anew(broker: Broker) -> None:
    broker.lead()
    first = broker.fetch({CLICKS: 0}, 13, session_epoch=0)
    session = {"session_id": first.response.session_id}
    waiting = broker.fetch({}, 13, **session, session_epoch=1, max_wait_ms=60_000)
    assert waiting.answers == []
    broker.tell(topic_id=uuid.UUID(int=99))
    append(broker, broker.replicas.partitions[CLICKS], b"another topic's")
    broker.settle()
    assert waiting.errors == [Error.UNKNOWN_TOPIC_OR_PARTITION]  # as it was replaced
    assert broker.fetch({CLICKS: 0}, 13).errors == [Error.INCONSISTENT_TOPIC_ID]
    again = broker.fetch({}, 13, **session, session_epoch=2)
    assert again.errors == [Error.INCONSISTENT_TOPIC_ID]
    assert broker.fetch({CLICKS: 0}, 12).values() == [[b"another topic's"]]


def test_a_session_by_id_is_not_gone_on_with_by_name(broker: Broker) -> None:
    broker.lead()
    first = broker.fetch({CLICKS: 0}, 13, session_epoch=0)
    wrong = broker.fetch({}, 12, session_id=first.response.session_id, session_epoch=1)
    assert wrong.response.error_code == Error.FETCH_SESSION_TOPIC_ID_ERROR


@pytest.mark.parametrize(
    ("offset", "epoch", "diverging"), [(2, 0, None), (3, 0, (0, 2)), (4, 1, (0, 2)), (4, 3, None)]
)
def test_a_diverging_log_is_told_where_it_diverges(
    broker: Broker, offset: int, epoch: int, diverging: tuple[int, int] | None
) -> None:
    partition = broker.lead()
    append(broker, partition, b"a", b"b")
    broker.tell(leader_epoch=3, partition_epoch=1)
    append(broker, partition, b"c", b"d")
    fetch = broker.fetch({CLICKS: offset}, partition={"last_fetched_epoch": epoch}, max_wait_ms=0)
    found = fetch.results[0].diverging_epoch
    assert (found and (found.epoch, found.end_offset)) == diverging
    fetch.send()
    assert broker.pins == 0


def test_an_unknown_last_fetched_epoch_is_out_of_range(broker: Broker) -> None:
    append(broker, broker.lead(), b"a")
    fetch = broker.fetch({CLICKS: 1}, partition={"last_fetched_epoch": 9}, max_wait_ms=500)
    assert fetch.errors == [Error.OFFSET_OUT_OF_RANGE]


# --- isolation ------------------------------------------------------------------------------------


def test_read_committed_stops_before_an_open_transaction(broker: Broker) -> None:
    partition = broker.lead()
    append(broker, partition, b"a")
    append_open(broker, partition, b"open")
    committed = broker.fetch({CLICKS: 0}, isolation_level=1)
    (result,) = committed.results
    assert (result.last_stable_offset, result.high_watermark) == (1, 2)
    assert result.aborted_transactions == []
    assert committed.values() == [[b"a"]]
    everything = broker.fetch({CLICKS: 0}, isolation_level=0)
    assert everything.results[0].aborted_transactions is None
    assert everything.values() == [[b"a", b"open"]]


# --- a model --------------------------------------------------------------------------------------


class Produced:
    """A Produce, and its answers."""

    version, listener = 9, "PLAINTEXT"

    def __init__(self) -> None:
        self.connection = Client()
        self.answers: list[Any] = []
        self.answer = self.answers.append

    def crash(self, error: BaseException) -> None:
        raise error


def produce(broker: Broker, values: Sequence[bytes]) -> None:
    parts = [ProducePartition(index=0, records=batch(values))]
    request = ProduceRequest(
        acks=1, timeout_ms=100, topic_data=[ProduceTopic(name="clicks", partition_data=parts)]
    )
    call = Produced()
    ProduceHandler(broker.replicas, broker.handler.hints, broker.clock).handle(request, call)
    (answer,) = call.answers
    assert answer.responses[0].partition_responses[0].error_code == 0


@examples(60, deadline=None)
@given(st.data())
def test_every_fetch_agrees_with_a_list_of_records(data: st.DataObject) -> None:
    broker = Broker()
    broker.lead(segment_bytes=data.draw(st.sampled_from([200, 1 << 20])))
    model: list[bytes] = []
    waiting: list[tuple[Fetch, int]] = []
    expected = 0
    for _ in range(data.draw(st.integers(1, 25))):
        if data.draw(st.booleans()):
            values = data.draw(st.lists(st.binary(max_size=60), min_size=1, max_size=4))
            produce(broker, values)
            model += values
        else:
            offset = data.draw(st.integers(0, len(model)))
            fetch = broker.fetch(
                {CLICKS: offset},
                data.draw(st.sampled_from([4, 7, 12, 2])),
                part_bytes=data.draw(st.integers(80, 400)),
                max_wait_ms=data.draw(st.sampled_from([0, 5, 50])),
                min_bytes=data.draw(st.sampled_from([0, 1, 150])),
            )
            waiting.append((fetch, offset))
            expected += 1
        broker.tasks.run_for_ms(data.draw(st.sampled_from([0, 1, 20])))
    broker.settle(200)
    for fetch, offset in waiting:
        (sent,) = fetch.send()
        if fetch.version > 3:
            found = [(at, value) for at, value in values_in(sent) if at >= offset]
        else:
            read = iter_records(sent, 1 << 20, may_end_partial=True)
            found = [(record.offset, record.value) for record in read]
        assert found == list(enumerate(model))[offset : offset + len(found)]
    assert len(waiting) == expected
    assert broker.pins == 0
    assert len(broker.replicas.delayed) == 0


def test_every_version_reads_every_codec_but_zstd(broker: Broker) -> None:
    partition = broker.lead()
    for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
        append(broker, partition, b"x%d" % codec, codec=codec, timestamp=START_MS)
    for version in ALL:
        fetch = broker.fetch({CLICKS: 0}, version)
        broker.settle()
        assert fetch.values() == [[b"x0", b"x1", b"x2", b"x3"]]


THROTTLED = {"leader_replication_throttled_replicas": (f"0:{BROKER}",)}


@pytest.mark.parametrize(
    ("isr", "throttled", "is_sent"),
    [([BROKER], THROTTLED, False), ([BROKER, 2], THROTTLED, True), ([BROKER], {}, True)],
)
def test_a_follower_out_of_the_isr_is_sent_what_the_throttle_allows(
    isr: list[int], throttled: dict[str, Any], is_sent: bool
) -> None:
    broker = Broker(topic=TopicSettings(**throttled))
    broker.tell(replicas=[BROKER, 2], isr=isr)
    append(broker, broker.replicas.partitions[CLICKS], b"x" * 1_000)
    broker.replicas.throttles.leader.limit(1_000)
    request = {"max_wait_ms": 200, "replica_id": 2}
    fetch = broker.fetch({CLICKS: 0}, 12, **request)
    assert bool(fetch.answers) is is_sent
    if is_sent:
        fetch.send()
        return
    broker.settle(300)  # the wait ends, and by then it has
    assert len(fetch.values()[0]) == 1
    late = broker.fetch({CLICKS: 0}, 12, **request)
    broker.settle(300)
    assert late.values() == [[]]
    assert len(broker.fetch({CLICKS: 0}, 12).values()[0]) == 1  # a consumer is not throttled


def test_a_follower_that_caught_up_is_not_throttled_as_producers_wait_for_it() -> None:
    broker = Broker(topic=TopicSettings(**THROTTLED))
    broker.tell(replicas=[BROKER, 2], isr=[BROKER])
    partition = broker.replicas.partitions[CLICKS]
    assert partition.in_sync is not None
    partition.in_sync._alive = {2}.__contains__
    append(broker, partition, b"x")
    broker.fetch({CLICKS: 0}, 12, replica_id=2).send()
    append(broker, partition, b"y")  # committed, so that it may not join without
    broker.replicas.throttles.leader.limit(1)
    assert broker.fetch({CLICKS: 1}, 12, max_wait_ms=200, replica_id=2).values() == [[b"y"]]


@pytest.mark.parametrize("is_in_sync", [False, True])
def test_a_throttle_counts_the_whole_batches_sent_to_who_is_not_in_sync(is_in_sync: bool) -> None:
    broker = Broker(topic=TopicSettings(**THROTTLED))
    broker.tell(replicas=[BROKER, 2], isr=[BROKER, 2] if is_in_sync else [BROKER])
    for _ in range(3):
        append(broker, broker.replicas.partitions[CLICKS], b"x" * 1_000)
    throttle = broker.replicas.throttles.leader
    throttle.limit(10_000)
    broker.settle(100)
    assert not throttle.is_exceeded
    fetch = broker.fetch({CLICKS: 0}, 12, part_bytes=1_500, replica_id=2)
    (records,) = fetch.send()
    assert len(records) == (1_500 if is_in_sync else read_header(records).size)
    assert throttle.is_exceeded is not is_in_sync
    assert throttle.pause_ms < 20  # not for the rest of the limit too, or it would be 50
