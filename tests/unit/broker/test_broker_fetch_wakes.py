"""Waiting fetches are woken when there is enough, neither earlier nor later, on either path.

A log is appended to by the loop or a thread, flushed for any reason, and exposes flushed records
only or all. After each step no fetch waits that could be answered, and those answered with less
than their `min_bytes` had waited for their whole `max_wait_ms`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.broker.fast_path.fetch import FetchFastPath
from kdist.metrics.broker import RequestMetrics
from kdist.model import TopicPartition
from kdist.protocol.envelope import decode_response, encode_request
from kdist.protocol.fetch import API, FetchPartition, FetchRequest, FetchTopic
from kdist.protocol.headers import RequestHeader
from kdist.storage.reading import Slice, read
from tests.unit.broker.broker_fetches import SCOPE, Broker, GeneralCall
from tests.unit.replication.replication_world import CLICKS, append

VERSION = 12
_NS_PER_MS = 1_000_000


class Wait:
    """A fetch from the end of what is exposed, on either path; also its connection."""

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
