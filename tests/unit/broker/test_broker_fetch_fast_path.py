"""The fast path of fetches: the general path's answer, byte for byte, of damage too; or none."""

from __future__ import annotations

import errno
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.fetch import API
from kdist.protocol.frame import RequestHeader, decode_response
from kdist.storage.trimming import truncate
from tests.unit.broker.broker_fetches import CORRELATION_ID, SCOPE, Asked, Broker, Connection, large
from tests.unit.replication.replication_world import CLICKS, VIEWS, append

USUAL = range(4, 18)


@pytest.fixture
def broker() -> Broker:
    return Broker()


MAGIC_AT = 16  # in a batch


# --- the same bytes -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", USUAL)
@given(
    isolation_level=st.sampled_from([0, 1]),
    partition_max_bytes=st.sampled_from([0, 1, 70, 1100, 3000, 1 << 20]),
    max_bytes=st.sampled_from([0, 1000, 3000, 1 << 30]),
    min_bytes=st.sampled_from([0, 1, 2000, 1 << 20]),
    max_wait_ms=st.sampled_from([0, 500]),
    offset=st.integers(-1, 7),
    flushed=st.integers(0, 6),
    start=st.integers(0, 6),
)
def test_every_answer_equals_the_general_paths(
    version: int, offset: int, flushed: int, start: int, **fields: int
) -> None:
    """For any fetch and any high watermark, at once or when its time is up."""
    broker = Broker(fetch_max_bytes=2500)
    broker.lead()
    large(broker, CLICKS, batches=flushed)
    log = broker.directory.logs[CLICKS]
    if flushed:
        broker.directory.flusher.request(log)
        broker.settle()
    large(broker, CLICKS, batches=6 - flushed)
    broker.replicas.configure(
        CLICKS.topic, replace(log.settings, flush_before_expose=bool(offset % 2))
    )
    log.start_offset = start
    asked = Asked(broker, version, **fields)
    usual, expected = asked.take(offset), asked.general_path(offset)
    if usual is None:
        (answer,) = expected
        _, response = decode_response(API, version, answer[4:])
        assert response.responses[0].partitions[0].error_code == Error.OFFSET_OUT_OF_RANGE
    else:
        assert usual == expected
        broker.settle(600)
        assert usual == expected
        assert len(usual) == 1
    assert broker.pins == 0
    assert len(broker.replicas.delayed) == 0


@pytest.mark.parametrize("version", USUAL)
def test_answers_of_many_sizes_have_the_right_lengths(broker: Broker, version: int) -> None:
    broker.lead()
    for size in (1, 60, 200, 20_000, 1_000_000):
        offset = append(broker, broker.lead(), bytes(size))
        asked = Asked(broker, version, partition_max_bytes=1 << 30)
        assert asked.take(offset) == asked.general_path(offset)


def test_earlier_produces_are_flushed_before_a_fetch(broker: Broker) -> None:
    large(broker, CLICKS)
    asked = Asked(broker)
    assert asked.take(0)
    assert asked.flushed == 1


def test_a_request_whose_offset_stands_elsewhere_is_not_taken(
    broker: Broker,
) -> None:
    """A connection knows where the offset stood in its last request, and others may be asked."""
    broker.lead()
    asked = Asked(broker)
    registered = asked.register()
    assert registered is not None
    path, end, templates = registered
    frame = asked.frame(0)
    without = bytes(frame[:end]) + bytes(frame[end + 8 :])
    connection: Any = Connection()
    for place in range(9, len(without) + 20):
        moved = without[:place] + bytes(8) + without[place:]
        for other in (without, without[:place], moved):
            if other != frame:
                assert not path.try_handle(memoryview(other), (path, place, templates), connection)
    assert connection.answers == []


# --- waiting --------------------------------------------------------------------------------------


def test_a_fetch_at_the_tail_waits_and_is_woken(broker: Broker) -> None:
    partition = broker.lead()
    asked = Asked(broker)
    answers = asked.take(0)
    broker.tasks.run_for_ms(300)
    assert answers == []
    append(broker, partition, b"a")
    broker.tasks.run_for_ms(0)
    assert answers == asked.general_path(0)
    assert asked.metrics.answered == 1
    assert len(broker.replicas.delayed) == 0


def test_immediate_answers_are_counted_when_the_tick_ends(broker: Broker) -> None:
    large(broker, CLICKS)
    asked = Asked(broker)
    assert asked.take(0)
    broker.tasks.run_for_ms(3)
    assert asked.take(0)
    asked.path.end_tick()
    asked.path.end_tick()
    assert (asked.metrics.answered, asked.metrics.seconds.count) == (2, 2)
    assert asked.metrics.seconds.sum == pytest.approx(2 * 0.003)


def test_a_waiting_fetch_is_answered_when_its_partition_is_gone(broker: Broker) -> None:
    broker.lead()
    asked = Asked(broker)
    answers = asked.take(0)
    broker.stop()
    broker.settle()
    assert answers == asked.general_path(0)


def test_a_disconnected_client_leaves_nothing_behind(broker: Broker) -> None:
    partition = broker.lead()
    asked = Asked(broker)
    registered = asked.register()
    assert registered is not None
    connection: Any = Connection()
    assert asked.path.try_handle(asked.frame(0), registered, connection)
    broker.replicas.delayed.cancel_all(connection)
    append(broker, partition, b"a")
    broker.settle(1000)
    assert connection.answers == []
    assert not partition.watchers
    assert broker.pins == 0


def test_a_thread_reads_records_that_went_cold_while_a_fetch_waited(broker: Broker) -> None:
    partition = broker.lead()
    asked = Asked(broker, min_bytes=1500)
    answers = asked.take(0)
    append(broker, partition, bytes(1000))
    partition.log.recent.clear()
    partition.log.active.file._content.cold.update(range(100))  # type: ignore[attr-defined]
    append(broker, partition, bytes(1000))
    assert answers == []
    broker.settle()
    assert answers == asked.general_path(0)


# --- answers that are known -----------------------------------------------------------------------


def test_consumers_with_equal_requests_get_copies_of_one_answer(broker: Broker) -> None:
    partition = broker.lead()
    large(broker, CLICKS)
    asked = Asked(broker)
    registered = asked.register()
    assert registered is not None
    waiting: list[Any] = [Connection() for _ in range(3)]
    for number, connection in enumerate(waiting):
        assert asked.path.try_handle(asked.frame(2, number), registered, connection)
    append(broker, partition, b"a")
    broker.settle()
    reads = broker.disk.calls["read"]
    late: Any = Connection()
    assert asked.path.try_handle(asked.frame(2, 3), registered, late)
    assert broker.disk.calls["read"] == reads
    (expected,) = asked.general_path(2)
    answers = [connection.answers for connection in (*waiting, late)]
    assert answers == [
        [expected[:4] + number.to_bytes(4, "big") + expected[8:]] for number in range(4)
    ]
    assert broker.pins == 0


def test_a_recreated_topic_is_not_answered_with_the_old_ones_records(broker: Broker) -> None:
    append(broker, broker.lead(), b"old")
    asked = Asked(broker)
    old = asked.take(0)
    broker.stop()
    broker.tell(topic_id=uuid.UUID(int=99))
    append(broker, broker.lead(), b"new")
    assert asked.take(0) == asked.general_path(0) != old


def test_the_answer_is_not_reused_after_a_new_leader_truncated_the_log(broker: Broker) -> None:
    partition = broker.lead()
    append(broker, partition, b"old")
    asked = Asked(broker)
    old = asked.take(0)
    broker.tell(leader=9, leader_epoch=1)
    truncate(partition.log, 0, broker.clock.now_ms())
    broker.tell(leader_epoch=2)
    append(broker, partition, b"new")
    assert asked.take(0) == asked.general_path(0) != old


def test_the_answer_is_not_reused_after_records_were_appended_or_deleted(broker: Broker) -> None:
    large(broker, CLICKS)
    log = broker.directory.logs[CLICKS]
    asked = Asked(broker)
    first = asked.take(1)
    assert asked.take(1) == asked.general_path(1) == first
    large(broker, CLICKS, batches=1)
    second = asked.take(1)
    log.start_offset = 1
    third = asked.take(1)
    assert third == asked.general_path(1)
    assert first != second != third


# --- what is left to the general path ------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (3, {}),
        (12, {"session_epoch": 0}),
        (12, {"session_id": 5, "session_epoch": 3}),
        (12, {"replica_id": 2}),
        (12, {"isolation_level": 2}),
        (12, {"last_fetched_epoch": 0}),
        (12, {"topics": []}),
        (12, {"rack_id": "r" * 1000}),
    ],
)
def test_unusual_requests_are_not_registered(
    broker: Broker, version: int, fields: dict[str, Any]
) -> None:
    broker.lead()
    assert Asked(broker, version, **fields).register() is None


def test_a_frame_with_bytes_behind_the_request_is_not_registered(broker: Broker) -> None:
    asked = Asked(broker)
    frame = memoryview(bytes(asked.frame(0)) + b"\0")
    header = RequestHeader(1, 12, CORRELATION_ID, "a client")
    assert asked.path.register(frame, header, asked.request(0), None, SCOPE) is None


def test_a_request_of_another_kind_is_declined(broker: Broker) -> None:
    large(broker, CLICKS)
    asked = Asked(broker)
    registered = asked.register()
    assert registered is not None
    others = [Asked(broker, 11), Asked(broker, min_bytes=2), Asked(broker, partition=1)]
    frames = [other.frame(0) for other in others]
    connection: Any = Connection()
    for frame in [*frames, asked.frame(0)[:-1], asked.frame(0)[:9], memoryview(b"")]:
        assert not asked.path.try_handle(frame, registered, connection)
    large_one: Any = range(1 << 20)  # a produce, say: it has a length, and nothing is copied of it
    assert not asked.path.try_handle(large_one, registered, connection)
    assert connection.answers == []


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_wrong_leader_epoch_is_left_to_the_general_path(broker: Broker, epoch: int) -> None:
    large(broker, CLICKS)
    broker.tell(leader_epoch=3)
    assert Asked(broker, current_leader_epoch=epoch).take(0) is None
    assert Asked(broker, current_leader_epoch=3).take(0)


def test_zstd_for_an_old_version_is_left_to_the_general_path(broker: Broker) -> None:
    log = broker.lead().log
    broker.replicas.configure(CLICKS.topic, replace(log.settings, compression_type="zstd"))
    assert Asked(broker, 9).take(0) is None
    assert Asked(broker, 10).take(0) == []


def test_a_partition_led_elsewhere_is_left_to_the_general_path(broker: Broker) -> None:
    broker.lead(VIEWS)
    assert Asked(broker).take(0) is None
    assert TopicPartition("clicks", 0) not in broker.replicas.partitions


def test_cold_records_are_left_to_the_general_path(broker: Broker) -> None:
    large(broker, CLICKS)
    log = broker.directory.logs[CLICKS]
    log.recent.clear()
    log.active.file._content.cold.update(range(100))  # type: ignore[attr-defined]
    assert Asked(broker).take(0) is None
    assert broker.pins == 0


def test_at_most_a_thousand_kinds_of_request_are_remembered(broker: Broker) -> None:
    asked = Asked(broker)
    for number in range(2500):
        asked.fields["max_wait_ms"] = number
        assert asked.register() is not None
    assert len(asked.path._templates[SCOPE]) <= 1000


def test_a_damaged_batch_is_left_to_the_general_path(broker: Broker) -> None:
    """A consumer that reached one used to end the broker, after each restart again."""
    large(broker, CLICKS, batches=3)
    asked, log = Asked(broker), broker.directory.logs[CLICKS]
    log.active.file.write([b"\x12"], log.recent[1] + MAGIC_AT)
    log.recent.clear()
    assert asked.take(0)
    assert asked.take(1) is None
    fetch = broker.fetch({CLICKS: 1})
    assert fetch.errors == [Error.CORRUPT_MESSAGE]
    assert broker.pins == 0


def test_a_waiting_fetch_gets_the_general_paths_error_for_a_damaged_batch(broker: Broker) -> None:
    asked = Asked(broker, min_bytes=1500)
    large(broker, CLICKS, batches=1)
    answers, log = asked.take(0), broker.directory.logs[CLICKS]
    assert answers == []
    log.active.file.write([b"\x12"], MAGIC_AT)
    log.recent.clear()
    broker.settle(600)
    assert answers == asked.general_path(0)
    assert broker.pins == 0


def test_without_a_descriptor_the_general_path_refuses_and_nothing_stays_pinned(
    broker: Broker,
) -> None:
    large(broker, CLICKS, batches=3)
    asked, log = Asked(broker), broker.directory.logs[CLICKS]
    log.close_idle()
    broker.disk.fail(errno.EMFILE, when=lambda call: call.name == "open")
    assert asked.take(1) is None
    assert broker.fetch({CLICKS: 1}).errors == [Error.KAFKA_STORAGE_ERROR]
    broker.disk.heal()
    assert broker.pins == 0
    assert asked.take(1)
