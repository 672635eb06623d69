"""When a fetch has found enough, and waiting ones are woken, neither earlier nor later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.broker.fast_path.fetch import FetchFastPath
from kdist.metrics.broker import RequestMetrics
from kdist.model import TopicPartition
from kdist.protocol.fetch import API, FetchPartition, FetchRequest, FetchTopic
from kdist.protocol.frame import RequestHeader, decode_response, encode_request
from kdist.records.build import build_batch
from kdist.security.subjects import ANYBODY
from kdist.storage.reading import Slice, read
from tests.unit.broker.broker_fetches import CORRELATION_ID, SCOPE, Asked, Broker, GeneralCall
from tests.unit.broker.test_broker_session_fetch_fast_path import Consumer
from tests.unit.replication.replication_world import (
    BROKER,
    CLICKS,
    VIEWS,
    append,
    append_open,
    values_in,
)

FOLLOWER = 2
RECORD = 1000
SEGMENT_BYTES = 2 * len(build_batch([bytes(RECORD)], timestamp_ms=0)) + 1
MUCH = {"min_bytes": 1 << 19, "max_wait_ms": 500}
Fetching = Callable[..., int | None]
"""Fetches from an offset on: how many records come at once, None if the fetch waits."""


def general(broker: Broker, offset: int, part_bytes: int = 1 << 20, **fields: Any) -> int | None:
    fetch = broker.fetch({CLICKS: offset}, part_bytes=part_bytes, **{**MUCH, **fields})
    return len(fetch.values()[0]) if fetch.answers else None


def follower(broker: Broker, offset: int, **fields: Any) -> int | None:
    return general(broker, offset, replica_id=FOLLOWER, **fields)


def in_session(broker: Broker, offset: int, **fields: Any) -> int | None:
    opened = broker.fetch({CLICKS: 0}, session_epoch=0, max_wait_ms=0)
    opened.send()
    session = {"session_id": opened.response.session_id, "session_epoch": 1}
    return general(broker, offset, **session, **fields)


def fast(broker: Broker, offset: int, part_bytes: int = 1 << 20, **fields: Any) -> int | None:
    taken = Asked(broker, **{**MUCH, **fields}, partition_max_bytes=part_bytes).take(offset)
    assert taken is not None
    return _records_in(taken[0]) if taken else None


def fast_in_session(
    broker: Broker, offset: int, part_bytes: int = 1 << 20, **fields: Any
) -> int | None:
    consumer = Consumer(12, has_fast_path=False, **{**MUCH, **fields})
    consumer.broker = broker
    consumer.path = FetchFastPath(broker.handler, RequestMetrics(), int, broker.crashes)
    consumer.begin()
    consumer.fetch({CLICKS: offset}, partition_max_bytes=part_bytes, max_wait_ms=500)
    broker.settle(600)  # the first of its like takes the general path
    answered = len(consumer.answers)
    consumer.fetch({CLICKS: offset}, partition_max_bytes=part_bytes)
    assert consumer.taken == 1
    return _records_in(consumer.answers[-1]) if len(consumer.answers) > answered else None


def _records_in(answer: bytes) -> int:
    _, response = decode_response(API, 12, answer[4:])
    return len(values_in(bytes(response.responses[0].partitions[0].records)))


on_each_path = pytest.mark.parametrize(
    "fetch", [general, follower, in_session, fast, fast_in_session]
)


def broker_with(records: int, **topic: Any) -> Broker:
    """One with so many records, of which two are in a segment."""
    broker = Broker()
    given = {"segment_bytes": SEGMENT_BYTES, "segment_jitter_ms": 0, **topic}
    partition = broker.lead(replicas=(BROKER, FOLLOWER), **given)
    for _ in range(records):
        append(broker, partition, bytes(RECORD))
    return broker


VERSION = 12
_NS_PER_MS = 1_000_000


class Wait:
    """A fetch from the end of what is exposed, on either path; also its connection."""

    subject = ANYBODY

    def __init__(self, broker: Broker, path: FetchFastPath | None, **fields: int) -> None:
        self.broker = broker
        self.offset = broker.replicas.partitions[CLICKS].high_watermark
        self.asked_ms = self.answered_ms = broker.clock.monotonic_ns() / _NS_PER_MS
        self.size: int | None = None
        self.min_bytes = fields["min_bytes"]
        self.wait_ms = fields["max_wait_ms"]
        partition = FetchPartition(
            partition=0, fetch_offset=self.offset, partition_max_bytes=1 << 20
        )
        topics = [FetchTopic(topic=CLICKS.topic, partitions=[partition])]
        request = FetchRequest(topics=topics, **fields)
        if path is None:
            broker.handler.handle(request, GeneralCall(VERSION, self, 1))
        else:
            header, connection = RequestHeader(1, VERSION, 1, None), self
            frame = memoryview(encode_request(header, request))[4:]
            registered = path.register(frame, header, request, None, SCOPE)
            assert registered is not None
            assert path.try_handle(frame, registered, connection)  # type: ignore[arg-type]

    def reserve(self) -> Wait:
        return self

    def send(self, chunks: Any) -> None:
        assert self.size is None
        data = b"".join(c.read() if isinstance(c, Slice) else bytes(c) for c in chunks)
        for chunk in chunks:
            if isinstance(chunk, Slice):
                chunk.release()
        _, response = decode_response(API, VERSION, data[4:])
        self.size = len(response.responses[0].partitions[0].records)
        self.answered_ms = self.broker.clock.monotonic_ns() / _NS_PER_MS

    def check(self) -> None:
        """It is where it should be by now."""
        partition = self.broker.replicas.partitions[CLICKS]
        log = partition.log
        if self.size is None:
            part = read(log, self.offset, 1 << 20, end_offset=partition.high_watermark)
            assert part is None or part.size < self.min_bytes
            if part is not None:
                part.release()
            now_ms = self.broker.clock.monotonic_ns() / _NS_PER_MS
            assert now_ms <= self.asked_ms + self.wait_ms + 2
        elif self.size < self.min_bytes:
            assert self.wait_ms <= self.answered_ms - self.asked_ms <= self.wait_ms + 2


steps = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("write slowly"), st.booleans()),
    st.tuples(st.just("flush"), st.none()),
    st.tuples(st.just("expose early"), st.booleans()),
    st.tuples(st.just("pass"), st.sampled_from([0.3, 1, 7, 100, 400])),
    st.tuples(st.just("fetch"), st.sampled_from([(1, 50), (1, 500), (600, 500), (3000, 90)])),
)


@on_each_path
def test_a_fetch_that_ends_with_an_older_segment_is_answered_at_once(fetch: Fetching) -> None:
    broker = broker_with(5)
    assert len(broker.directory.logs[CLICKS].segments) == 3
    assert [fetch(broker, offset) for offset in range(4)] == [2, 1, 2, 1]
    assert broker.pins == 0


@on_each_path
def test_a_fetch_that_ends_with_all_there_is_waits(fetch: Fetching) -> None:
    broker = broker_with(5)
    assert fetch(broker, 4) is None
    assert fetch(broker, 5) is None
    whole = broker_with(4)
    whole.directory.logs[CLICKS].roll(whole.clock.now_ms())  # the newest segment is empty
    assert fetch(whole, 2) is None
    assert broker.pins == whole.pins == 0


@on_each_path
def test_a_fetch_that_a_byte_limit_ends_is_answered_at_once(fetch: Fetching) -> None:
    broker = broker_with(4, segment_bytes=1 << 20)
    assert fetch(broker, 0, part_bytes=1) == 1
    assert fetch(broker, 0, part_bytes=SEGMENT_BYTES) == 2
    assert fetch(broker, 3, part_bytes=1) is None


@pytest.mark.parametrize("fetch", [general, in_session, fast, fast_in_session])
def test_what_may_not_be_read_yet_is_not_behind_what_was_found(fetch: Fetching) -> None:
    """Above the high watermark, or the last stable offset, lies nothing for this reader."""
    broker = broker_with(0)
    partition = broker.lead()
    for _ in range(2):
        append(broker, partition, bytes(RECORD))
    append_open(broker, partition, bytes(RECORD))
    append(broker, partition, bytes(RECORD))
    assert len(partition.log.segments) == 2
    assert partition.offset_snapshot == (4, 2)
    assert fetch(broker, 0, isolation_level=1) is None
    assert fetch(broker, 0, isolation_level=0) == 2


@on_each_path
def test_holes_that_compaction_left_make_no_reader_wait(fetch: Fetching) -> None:
    """A segment whose records are gone is read over, to one that is not the newest."""
    broker = broker_with(7)
    log = broker.directory.logs[CLICKS]
    first, hollow, *_ = log.segments
    del log.segments[1]  # as after compaction has joined it, empty, with the first
    assert hollow.base_offset == 2
    assert fetch(broker, first.base_offset + 1) == 1
    assert fetch(broker, hollow.base_offset) == 2
    assert fetch(broker, 6) is None


def test_of_several_partitions_one_that_has_more_is_enough() -> None:
    broker = broker_with(5)
    broker.lead(VIEWS)
    broker.settle()
    tail = {CLICKS: 4, VIEWS: 0}
    assert broker.fetch(tail, **MUCH).answers == []
    for offsets in ({VIEWS: 0, CLICKS: 1}, {CLICKS: 1, VIEWS: 0}):
        fetch = broker.fetch(offsets, **MUCH)
        assert sorted(map(len, fetch.values())) == [0, 1]
    assert broker.pins == 0


def test_a_batch_that_does_not_fit_beside_what_was_found_ends_the_wait() -> None:
    broker = broker_with(1)
    append(broker, broker.lead(VIEWS), bytes(RECORD))
    limits = {"min_bytes": SEGMENT_BYTES - 10, "max_bytes": SEGMENT_BYTES - 10, "max_wait_ms": 500}
    fetch = broker.fetch({CLICKS: 0, VIEWS: 0}, **limits)
    assert [len(values) for values in fetch.values()] == [1, 0]
    assert broker.pins == 0


def test_a_fetch_that_waits_at_the_end_is_answered_once_a_segment_is_full() -> None:
    broker = broker_with(3)
    asked = Asked(broker, **MUCH)
    taken = asked.take(2)
    assert taken == []
    append(broker, broker.lead(), bytes(RECORD))
    broker.settle(1)
    assert taken == []
    append(broker, broker.lead(), bytes(RECORD))
    broker.settle(1)
    assert [_records_in(each) for each in taken] == [2]
    assert int.from_bytes(taken[0][4:8], "big") == CORRELATION_ID


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("is_careful", [False, True])
@given(script=st.lists(steps, min_size=5, max_size=40))
def test_each_waiting_fetch_is_answered_exactly_when_it_can_be(
    is_careful: bool, is_short: bool, script: list[tuple[str, Any]]
) -> None:
    broker = Broker()
    partition = broker.lead(flush_before_expose=is_careful)
    path = (
        FetchFastPath(broker.handler, RequestMetrics(), int, broker.crashes) if is_short else None
    )
    waits: list[Wait] = []
    for name, value in [*script, ("pass", 1000)]:
        if name == "append":
            for _ in range(value):
                append(broker, partition, bytes(500), heard=[])
        elif name == "write slowly":
            writers = partition._context.writers
            writers.thread_until_ns = value * (broker.clock.monotonic_ns() + 10**9)
        elif name == "flush":
            broker.directory.flusher.request(partition.log)
        elif name == "expose early":
            settings = replace(partition.log.settings, flush_before_expose=not value)
            broker.replicas.configure(CLICKS.topic, settings)
        elif name == "fetch":
            min_bytes, wait_ms = value
            waits.append(Wait(broker, path, min_bytes=min_bytes, max_wait_ms=wait_ms))
        broker.settle(value if name == "pass" else 0)
        for wait in waits:
            wait.check()
    assert all(wait.size is not None for wait in waits)
    assert len(broker.replicas.delayed) == 0
    assert broker.pins == 0


def test_a_cold_fetch_waits_no_longer_than_its_max_wait() -> None:
    broker = Broker()
    partition = broker.lead()
    append(broker, partition, bytes(500))
    partition.log.recent.clear()
    partition.log.active.file._content.cold.add(0)  # type: ignore[attr-defined]
    begun_ms = broker.clock.monotonic_ns() / _NS_PER_MS
    fetch = broker.fetch({TopicPartition("clicks", 0): 0}, min_bytes=10**6, max_wait_ms=100)
    assert broker.tasks.run_until(lambda: bool(fetch.answers), 1000)
    assert 100 <= broker.clock.monotonic_ns() / _NS_PER_MS - begun_ms <= 102
    assert [len(values) for values in fetch.values()] == [1]


def test_unexposed_records_are_not_read_from_the_disk() -> None:
    broker = Broker()
    partition = broker.lead(flush_before_expose=True)
    append(broker, partition, bytes(500))
    partition.log.recent.clear()
    partition.log.active.file._content.cold.add(0)  # type: ignore[attr-defined]
    broker.fetch({CLICKS: 0}, max_wait_ms=100)
    broker.settle(200)
    assert broker.metrics.cold_fetches == 0
