"""Fetches that wait, with and without sessions, and fetches of cold records."""

from __future__ import annotations

import pytest

from kdist.errors import DiskFailed, Error
from kdist.model import TopicPartition
from kdist.protocol.fetch import ForgottenTopic
from kdist.records.compression import Codec
from tests.unit.broker.broker_fetches import Broker, large
from tests.unit.replication.replication_world import (
    CLICKS,
    VIEWS,
    append,
)

ALL = range(18)


@pytest.fixture
def broker() -> Broker:
    return Broker()


# --- long polls -----------------------------------------------------------------------------------


def test_a_fetch_above_the_high_watermark_waits(broker: Broker) -> None:
    partition = broker.lead()
    fetch = broker.fetch({CLICKS: 0}, max_wait_ms=500)
    broker.tasks.run_for_ms(300)
    assert fetch.answers == []
    append(broker, partition, b"a")
    broker.tasks.run_for_ms(0)
    assert fetch.values() == [[b"a"]]
    assert len(broker.replicas.delayed) == 0


@pytest.mark.parametrize("version", ALL)
def test_a_fetch_that_times_out_gets_an_empty_answer(broker: Broker, version: int) -> None:
    broker.lead()
    fetch = broker.fetch({CLICKS: 0}, version, max_wait_ms=500)
    broker.tasks.run_for_ms(499)
    assert fetch.answers == []
    broker.tasks.run_for_ms(10)
    assert fetch.send() == [b""]
    assert fetch.errors == [0]


def test_a_fetch_waits_for_min_bytes_of_all_its_partitions(broker: Broker) -> None:
    first, second = broker.lead(), broker.lead(VIEWS)
    fetch = broker.fetch({CLICKS: 0, VIEWS: 0}, max_wait_ms=500, min_bytes=1500)
    append(broker, first, bytes(1000))
    broker.tasks.run_for_ms(1)
    assert fetch.answers == []
    assert broker.pins == 0
    append(broker, second, bytes(1000))
    broker.tasks.run_for_ms(1)
    assert [len(values) for values in fetch.values()] == [1, 1]


def test_min_bytes_above_max_bytes_counts_as_max_bytes(broker: Broker) -> None:
    large(broker, CLICKS)
    fetch = broker.fetch({CLICKS: 0}, min_bytes=10**6, max_bytes=1000, max_wait_ms=500)
    assert [len(values) for values in fetch.values()] == [1]


def test_without_partitions_or_max_wait_no_fetch_waits(broker: Broker) -> None:
    broker.lead()
    assert broker.fetch({}, max_wait_ms=500).results == []
    assert broker.fetch({CLICKS: 0}, max_wait_ms=0).errors == [0]


@pytest.mark.parametrize("delete", [False, True])
def test_a_waiting_fetch_is_answered_when_its_partition_is_gone(
    broker: Broker, delete: bool
) -> None:
    broker.lead()
    fetch = broker.fetch({CLICKS: 0}, max_wait_ms=60_000)
    broker.stop(delete=delete)
    broker.settle()
    expected = Error.UNKNOWN_TOPIC_OR_PARTITION if delete else Error.NOT_LEADER_OR_FOLLOWER
    assert fetch.errors == [expected]


def test_a_disconnected_client_leaves_nothing_behind(broker: Broker) -> None:
    partition = broker.lead()
    fetches = [broker.fetch({CLICKS: 0}, max_wait_ms=500) for _ in range(5)]
    for fetch in fetches:
        broker.replicas.delayed.cancel_all(fetch.connection)
    append(broker, partition, b"a")
    broker.tasks.run_for_ms(1000)
    assert [fetch.answers for fetch in fetches] == [[]] * 5
    assert not partition.watchers
    assert broker.pins == 0


def test_a_fetch_of_unflushed_records_waits_for_the_flush(broker: Broker) -> None:
    partition = broker.lead(flush_before_expose=True)
    early = broker.fetch({CLICKS: 0}, max_wait_ms=60_000)
    append(broker, partition, b"a")
    late = broker.fetch({CLICKS: 0}, max_wait_ms=60_000)
    broker.settle(200)
    assert (early.answers, late.answers) == ([], [])
    broker.directory.flusher.request(partition.log)  # as flush.ms would
    broker.settle(200)
    assert early.values() == late.values() == [[b"a"]]


# --- sessions -------------------------------------------------------------------------------------


def test_a_session_answers_only_partitions_with_something_new(broker: Broker) -> None:
    partition = broker.lead()
    broker.lead(VIEWS)
    first = broker.fetch({CLICKS: 0, VIEWS: 0}, session_epoch=0)
    first.send()
    id_ = first.response.session_id
    assert id_ > 0
    append(broker, partition, b"a")
    second = broker.fetch({}, session_id=id_, session_epoch=1)
    assert [r.partition_index for r in second.results] == [CLICKS.partition]
    assert second.values() == [[b"a"]]
    third = broker.fetch({CLICKS: 1}, session_id=id_, session_epoch=2, max_wait_ms=100)
    broker.settle(200)
    assert third.results == []
    assert third.response.session_id == id_


@pytest.mark.parametrize("version", range(7, 18))
def test_a_wrong_session_is_an_error_of_the_whole_request(broker: Broker, version: int) -> None:
    broker.lead()
    unknown = broker.fetch({}, version, session_id=5, session_epoch=1)
    assert unknown.response.error_code == Error.FETCH_SESSION_ID_NOT_FOUND
    id_ = broker.fetch({CLICKS: 0}, version, session_epoch=0).response.session_id
    wrong = broker.fetch({}, version, session_id=id_, session_epoch=7)
    assert wrong.response.error_code == Error.INVALID_FETCH_SESSION_EPOCH
    assert wrong.send() == []


def test_an_answer_that_its_session_has_overtaken_releases_its_records(broker: Broker) -> None:
    partition = broker.lead()
    id_ = broker.fetch({CLICKS: 0}, session_epoch=0).response.session_id
    slow = broker.fetch({}, session_id=id_, session_epoch=1, max_wait_ms=500)
    quick = broker.fetch({}, session_id=id_, session_epoch=2)
    append(broker, partition, b"a")
    broker.settle()
    assert slow.response.error_code == Error.INVALID_FETCH_SESSION_EPOCH
    assert quick.results == []
    assert broker.pins == 0


def test_a_partition_that_its_session_forgets_meanwhile_does_no_harm(broker: Broker) -> None:
    partition = broker.lead()
    broker.lead(VIEWS)
    opened = broker.fetch({CLICKS: 0, VIEWS: 0}, session_epoch=0)
    id_ = opened.response.session_id
    slow = broker.fetch({}, session_id=id_, session_epoch=1, max_wait_ms=500)
    forgotten = [ForgottenTopic(topic=VIEWS.topic, partitions=[VIEWS.partition])]
    broker.fetch({}, session_id=id_, session_epoch=2, forgotten_topics_data=forgotten)
    append(broker, partition, b"a")
    broker.settle()
    assert slow.response.error_code == Error.INVALID_FETCH_SESSION_EPOCH


def test_a_session_that_is_emptied_while_a_fetch_waits_ends_that_fetch(broker: Broker) -> None:
    broker.lead()
    session_id = broker.fetch({CLICKS: 0}, session_epoch=0).response.session_id
    slow = broker.fetch({}, session_id=session_id, session_epoch=1, max_wait_ms=50)
    forgotten = [ForgottenTopic(topic=CLICKS.topic, partitions=[CLICKS.partition])]
    last = broker.fetch({}, session_id=session_id, session_epoch=2, forgotten_topics_data=forgotten)
    broker.settle(100)
    assert slow.response.error_code == Error.INVALID_FETCH_SESSION_EPOCH
    assert (last.response.error_code, last.results, len(broker.sessions)) == (0, [], 0)


# --- cold records ---------------------------------------------------------------------------------


def make_cold(broker: Broker, key: TopicPartition = CLICKS) -> None:
    """Evict the partition's records from the page cache."""
    log = broker.directory.logs[key]
    log.recent.clear()
    for segment in log.segments:
        segment.file._content.cold.update(range(1000))  # type: ignore[attr-defined]


def test_a_thread_reads_cold_records_before_they_are_answered(broker: Broker) -> None:
    large(broker, CLICKS, size=300_000)
    make_cold(broker)
    fetch = broker.fetch({CLICKS: 0})
    assert fetch.answers == []
    broker.settle()
    assert [len(values) for values in fetch.values()] == [2]
    assert broker.metrics.cold_fetches == broker.metrics.cold_seconds.count == 1
    assert broker.pins == 0


def test_the_time_that_the_disk_takes_for_a_fetch_is_measured_without_its_wait(
    broker: Broker,
) -> None:
    large(broker, CLICKS)
    make_cold(broker)
    fetch = broker.fetch({CLICKS: 0}, min_bytes=1 << 20, max_wait_ms=100)
    broker.settle(100)
    assert len(fetch.answers) == 1
    assert broker.metrics.cold_seconds.count > 0
    assert broker.metrics.cold_seconds.sum < 0.1


def test_a_cold_fetch_does_not_delay_others(broker: Broker) -> None:
    large(broker, CLICKS, VIEWS)
    make_cold(broker)
    slow, quick = broker.fetch({CLICKS: 0}), broker.fetch({VIEWS: 0})
    assert slow.answers == []
    assert [len(values) for values in quick.values()] == [2]


def test_records_that_cannot_be_read_end_the_broker(broker: Broker) -> None:
    large(broker, CLICKS)
    make_cold(broker)
    fetch = broker.fetch({CLICKS: 0})
    broker.disk.fail(when=lambda call: call.name == "read")
    broker.settle()
    assert fetch.answers == []
    assert [type(failure) for failure in broker.failures] == [DiskFailed]
    assert broker.pins == 0


def test_a_partition_deleted_during_a_cold_read_is_an_error_in_the_answer(broker: Broker) -> None:
    large(broker, CLICKS)
    make_cold(broker)
    fetch = broker.fetch({CLICKS: 0})
    broker.stop()
    broker.settle()
    assert fetch.errors == [Error.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_client_that_disconnects_during_a_cold_read_leaves_nothing_behind(
    broker: Broker,
) -> None:
    large(broker, CLICKS)
    make_cold(broker)
    fetch = broker.fetch({CLICKS: 0}, min_bytes=10**6, max_wait_ms=100)
    broker.replicas.delayed.cancel_all(fetch.connection)
    broker.settle(500)
    fetch.send()  # to nobody: the network lets go of what it cannot send
    assert broker.pins == 0
    assert len(broker.replicas.delayed) == 0


def test_a_fetch_at_the_tail_does_not_ask_the_page_cache(broker: Broker) -> None:
    large(broker, CLICKS)
    before = broker.disk.calls["read_cached"]
    broker.fetch({CLICKS: 1}).send()
    assert broker.disk.calls["read_cached"] == before


# --- long conversions for old consumers -----------------------------------------------------------

LONG = b"a" * 100_000  # takes a thread to unpack


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.SNAPPY])
def test_what_takes_long_for_an_old_consumer_does_not_delay_others(
    broker: Broker, version: int, codec: Codec
) -> None:
    append(broker, broker.lead(), LONG, b"b", codec=codec)
    append(broker, broker.lead(VIEWS), b"c", codec=Codec.LZ4)
    slow, new = broker.fetch({CLICKS: 0, VIEWS: 0}, version), broker.fetch({VIEWS: 0}, 4)
    old = broker.fetch({VIEWS: 0}, version)
    assert slow.answers == old.answers == []  # one conversion at a time is under way
    assert new.values() == [[b"c"]]
    broker.settle()
    assert slow.values() == [[LONG, b"b"], [b"c"]]
    assert old.values() == [[b"c"]]
    assert broker.metrics.converted_fetches == 3
    assert broker.pins == 0


def test_many_records_for_an_old_consumer_are_converted_in_steps(broker: Broker) -> None:
    values = [b"%d" % number for number in range(2500)]
    append(broker, broker.lead(), *values)
    fetch = broker.fetch({CLICKS: 0}, 3)
    assert fetch.answers == []
    broker.settle()
    assert fetch.values() == [values]
    assert broker.pins == 0


def test_many_small_batches_for_an_old_consumer_are_converted_in_steps(broker: Broker) -> None:
    partition = broker.lead()
    for number in range(800):
        append(broker, partition, b"%d" % number)
    fetch = broker.fetch({CLICKS: 0}, 3)
    assert fetch.answers == []
    broker.settle()
    assert len(fetch.values()[0]) == 800


def test_gzip_among_other_batches_is_converted_with_them_and_once(broker: Broker) -> None:
    partition = broker.lead()
    append(broker, partition, b"a")
    append(broker, partition, LONG, codec=Codec.GZIP)
    append(broker, broker.lead(VIEWS), b"c", codec=Codec.ZSTD)
    fetch = broker.fetch({VIEWS: 0, CLICKS: 0}, 2)
    broker.settle()
    assert fetch.errors == [Error.UNSUPPORTED_COMPRESSION_TYPE, 0]
    assert fetch.values() == [[], [b"a", LONG]]
    assert broker.pins == 0


@pytest.mark.parametrize("is_large", [False, True])
def test_a_batch_that_cannot_be_read_to_be_converted_ends_the_broker(
    broker: Broker, is_large: bool
) -> None:
    """A small one is read on the loop, a large one in a thread."""
    partition = broker.lead(max_message_bytes=8 << 20)
    append(broker, partition, bytes(5 << 20) if is_large else b"a")
    if is_large:
        fetch = broker.fetch({CLICKS: 0}, 3)
        broker.disk.fail(when=lambda call: call.name == "read")
        broker.settle()
    else:
        broker.disk.fail(when=lambda call: call.name == "read")
        fetch = broker.fetch({CLICKS: 0}, 3)
    assert fetch.answers == []
    assert [type(failure) for failure in broker.failures] == [DiskFailed]
    assert broker.pins == 0


def test_a_partition_deleted_while_its_gzip_is_converted_is_answered_all_the_same(
    broker: Broker,
) -> None:
    append(broker, broker.lead(), LONG, codec=Codec.GZIP)
    fetch = broker.fetch({CLICKS: 0}, 2)
    broker.stop()
    broker.settle()
    assert fetch.values() == [[LONG]]
