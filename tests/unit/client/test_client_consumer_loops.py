"""Every loop over a consumer, slow, busy, fast or interrupted: it polls, commits, skips nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from kdist.client.consumer.aio import Consumer
from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.consumer.consumer import Consumer as BlockingConsumer
from kdist.client.consumer.metadata import Metadata
from kdist.client.consumer.opening import Opening, open_fetched
from kdist.model import TopicPartition
from kdist.records.build import build_batch
from tests.simulator.cluster import Cluster, produce
from tests.unit.client.client_group_world import HASTY, TOPIC, Group, consumer_on, with_topic
from tests.unit.client.test_client_consumer_reading import truncated

pytestmark = pytest.mark.played(by=with_topic)

ZERO = TopicPartition(TOPIC, 0)
IMPATIENT = HASTY | {"max_poll_interval_ms": 5_000}

Loop = Callable[[Consumer], AsyncIterator[ConsumedRecord]]


async def iterated(consumer: Consumer) -> AsyncIterator[ConsumedRecord]:
    async for record in consumer:
        yield record


async def iterated_anew(consumer: Consumer) -> AsyncIterator[ConsumedRecord]:
    """A loop that is left and begun again."""
    while True:
        async for record in consumer:
            found = record
            break
        yield found


async def polled_one_by_one(consumer: Consumer) -> AsyncIterator[ConsumedRecord]:
    while True:
        for record in await consumer.poll(10, max_records=1):
            yield record


async def iterated_and_polled(consumer: Consumer) -> AsyncIterator[ConsumedRecord]:
    while True:
        async for record in consumer:
            found = record
            break
        yield found
        for record in await consumer.poll(10, max_records=1):
            yield record


LOOPS = [iterated, iterated_anew, polled_one_by_one, iterated_and_polled]


async def polled(consumer: Consumer) -> AsyncIterator[ConsumedRecord]:
    while True:
        for record in await consumer.poll(10):
            yield record


async def polled_in_batches(consumer: Consumer) -> AsyncIterator[ConsumedRecord]:
    while True:
        for batch in await consumer.poll_batches(10, max_batches=1):
            for record in batch:
                yield record


ALL_LOOPS = [*LOOPS, polled, polled_in_batches]


async def committed(consumer: Consumer) -> int:
    found = (await consumer.committed([ZERO]))[ZERO]
    return found.offset if found else 0


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_slow_loop_keeps_its_membership_and_commits_what_it_has_handled(
    cluster: Cluster, group: Group, /, loop: Loop
) -> None:
    """A loop polled once for each 500 records: it was thrown out, and began again for ever."""
    await produce(group._client, TOPIC, *[b"x"] * 40)
    consumer = consumer_on(cluster, "slow", **IMPATIENT)
    consumer.subscribe([TOPIC])
    found: list[int] = []
    async for record in loop(consumer):
        found.append(record.offset)
        await asyncio.sleep(0.6)
        assert record.offset - 4 <= await committed(consumer) <= record.offset
        if record.offset == 39:
            break
    assert found == list(range(40))
    assert consumer._core.membership is not None
    assert consumer._core.membership.generation == 1
    await consumer.close()


@pytest.mark.parametrize("loop", ALL_LOOPS)
@pytest.mark.parametrize("busy_ms", [0.05, 3, 30])
async def test_a_loop_that_never_waits_lets_other_tasks_run(
    cluster: Cluster, group: Group, /, loop: Loop, busy_ms: float
) -> None:
    """While records were ready nothing else ran, heartbeats neither."""
    for _ in range(30):
        await produce(group._client, TOPIC, *[b"x"] * 10)
    consumer = consumer_on(cluster, "busy", **HASTY, max_poll_records=10)
    consumer.subscribe([TOPIC])
    await consumer.poll(10)
    consumer.seek(ZERO, 0)
    await cluster.until(lambda: consumer._core.partitions[ZERO].ready_bytes)
    stalls = [0.0]

    async def tick() -> None:
        while True:
            before_s = cluster.loop.time()
            await asyncio.sleep(0)
            stalls.append(cluster.loop.time() - before_s)

    ticking = asyncio.ensure_future(tick())
    await asyncio.sleep(0)
    found: list[int] = []
    async for record in loop(consumer):
        found.append(record.offset)
        cluster.clock.advance_ms(busy_ms)
        if record.offset == 299:
            break
    await asyncio.sleep(0)
    ticking.cancel()
    assert found == list(range(300))
    assert max(stalls) < (0.2 if loop in LOOPS else 0.4)  # a poll returns ten
    await consumer.close()


async def test_a_log_truncated_under_a_loop_moves_no_position_past_what_it_has_yielded(
    cluster: Cluster, group: Group, /
) -> None:
    """A commit in the loop was of the truncated log's end, before the loop had come so far."""
    await produce(group._client, TOPIC, *[b"x"] * 6)
    consumer = consumer_on(cluster, "reader", **HASTY)
    consumer.assign([ZERO])
    found: list[int] = []
    async for record in consumer:
        found.append(record.offset)
        if record.offset == 1:
            truncated(consumer, 4)
        await consumer.commit()
        assert await committed(consumer) == record.offset + 1
        if record.offset == 5:
            break
    assert found == list(range(6))
    await consumer.close()


@pytest.fixture
def blocking(monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockingConsumer]:
    """A blocking consumer with forty records, that fetches nothing and has no group to join."""
    for name in ("start", "refresh"):
        monkeypatch.setattr(Metadata, name, lambda _: None)
    with BlockingConsumer("127.0.0.1:1") as consumer:
        consumer.assign([ZERO])
        consumer.seek(ZERO, 0)
        data = build_batch([b"x"] * 40, timestamp_ms=0, base_offset=0)
        opened = open_fetched(data, Opening(ZERO, 0, decoders=(None, None)))
        consumer._completed.put(consumer._core.partitions[ZERO], opened)
        yield consumer


def watch(consumer: BlockingConsumer) -> None:
    """Look twice at what is iterated, as the loop does a tenth of a second later."""
    for _ in range(2):
        consumer._background.call(consumer._core.watch_runs)


def test_a_blocking_loop_that_is_slow_polls_before_each_record(
    blocking: BlockingConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[int] = []
    note_poll = blocking._core.note_poll

    def note() -> None:
        polls.append(blocking.position(ZERO))
        note_poll()

    monkeypatch.setattr(blocking._core, "note_poll", note)
    found: list[int] = []
    for record in blocking:
        found.append(record.offset)
        watch(blocking)
        assert blocking.position(ZERO) == record.offset + 1
        if record.offset == 39:
            break
    assert found == list(range(40))
    assert polls == list(range(40))


@pytest.mark.parametrize("cut", ["poll", "batches", "left", "pause", "seek", "revoked"])
def test_what_was_held_of_a_blocking_loop_is_neither_skipped_nor_given_twice(
    blocking: BlockingConsumer, cut: str
) -> None:
    found = [record.offset for _, record in zip(range(5), blocking, strict=False)]
    watch(blocking)
    match cut:
        case "poll":
            found += [each.offset for each in blocking.poll(0, 3)]
        case "batches":
            (batch,) = blocking.poll_batches(0)
            blocking.seek(ZERO, 0)
            found += batch.offsets()
            assert found == [*range(5), *range(5, 40)]
            return
        case "left":
            found.append(next(iter(blocking)).offset)
        case "pause":
            blocking.pause(ZERO)
            assert blocking.poll(0) == []
            blocking.resume(ZERO)
        case "seek":
            blocking.seek(ZERO, 7)
            assert blocking.poll(0) == []
            assert blocking.position(ZERO) == 7
            return
        case "revoked":
            blocking._core.partitions[ZERO].is_revoked = True
            assert not blocking._core.take_run()
            return
    found += [record.offset for _, record in zip(range(40 - len(found)), blocking, strict=False)]
    assert found == list(range(40))


async def frozen(cluster: Cluster, group: Group, consumer: Consumer) -> None:
    cluster.processes[1].pause()
    await asyncio.sleep(4)
    cluster.processes[1].resume()


async def frozen_for_long(cluster: Cluster, group: Group, consumer: Consumer) -> None:
    cluster.processes[1].pause()
    await asyncio.sleep(40)  # longer than a request may take
    cluster.processes[1].resume()


async def dead(cluster: Cluster, group: Group, consumer: Consumer) -> None:
    cluster.kill(cluster.brokers[1])
    await asyncio.sleep(10)
    await cluster.started()
    await group.begin_again()


async def leaderless(cluster: Cluster, group: Group, consumer: Consumer) -> None:
    """Another partition that it reads has no leader."""
    consumer.assign([ZERO, TopicPartition(TOPIC, 7)])
    await asyncio.sleep(4)


async def paused(cluster: Cluster, group: Group, consumer: Consumer) -> None:
    consumer.pause(ZERO)
    await asyncio.sleep(4)
    consumer.resume(ZERO)


@pytest.mark.parametrize("loop", ALL_LOOPS)
@pytest.mark.parametrize("fault", [frozen, frozen_for_long, dead, leaderless, paused])
async def test_whatever_befalls_its_broker_a_loop_yields_each_record_once(
    cluster: Cluster, group: Group, /, loop: Loop, fault: Callable[..., Any]
) -> None:
    await produce(group._client, TOPIC, *[b"x"] * 20)
    consumer = consumer_on(cluster, "reader", **HASTY)
    consumer.assign([ZERO])
    found: list[int] = []

    async def read() -> None:
        async for record in loop(consumer):
            found.append(record.offset)
            await asyncio.sleep(0.1)

    reading = asyncio.ensure_future(read())
    await cluster.until(lambda: len(found) == 5)
    await fault(cluster, group, consumer)
    await produce(group._client, TOPIC, *[b"x"] * 20)
    await cluster.until(lambda: len(found) >= 40 or reading.done())
    reading.cancel()
    await asyncio.wait([reading])
    assert found == list(range(40))
    await consumer.close()


@pytest.mark.parametrize("loop", ALL_LOOPS)
async def test_a_loop_that_is_cancelled_again_and_again_yields_each_record_once(
    cluster: Cluster, group: Group, /, loop: Loop
) -> None:
    consumer = consumer_on(cluster, "cut", **HASTY)
    consumer.subscribe([TOPIC])
    found: list[int] = []

    async def read() -> None:
        async for record in loop(consumer):
            found.append(record.offset)
            await asyncio.sleep(0)

    for _ in range(200):
        await produce(group._client, TOPIC, b"x")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(cluster.rng.uniform(0, 0.05)):
                await read()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            await read()
    assert found == list(range(200))
    await consumer.close()


async def test_a_fast_loop_that_becomes_slow_polls_within_a_fifth_of_a_second(
    cluster: Cluster, group: Group, /
) -> None:
    """While it is fast, it does not look at the clock for each record."""
    await produce(group._client, TOPIC, *[b"x"] * 100)
    consumer = consumer_on(cluster, "sudden", **IMPATIENT)
    consumer.subscribe([TOPIC])
    core = consumer._core
    assert core.membership is not None
    async for record in consumer:
        if record.offset < 50:
            continue  # no time passes
        await asyncio.sleep(3)
        if record.offset > 50:
            assert cluster.loop.time() - core.membership.polled_at_s <= 3.2
        if record.offset == 60:
            break
    assert core.membership.generation == 1
    await consumer.close()
