"""A stream in virtual time: whatever fails, and whoever dies, each batch arrives once, in order."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from mirror_world import (
    PARTITION,
    Scene,
    play,
    source_batches,
    values_of,
)

from kdist.client.consumer.batch import Batch
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import Error, KdistError
from kdist.mirror.position_lookup import SOUGHT
from kdist.mirror.stream import IN_FLIGHT_MAX, State
from kdist.model import NO_PRODUCER_ID, TopicPartition
from kdist.records.batch import HEADER, BatchHeader, read_header
from kdist.records.build import build_batch
from tests.unit.client.producer_world import FINE, Fault

BATCHES = 150


def unlucky(scene: Scene, rate: float) -> None:
    """Have produce requests fail in every possible way."""
    ways = (
        Fault(is_cut=True),
        Fault(is_written=False, is_cut=True),
        Fault(is_written=False, error=Error.NOT_LEADER_OR_FOLLOWER),
        Fault(error=Error.REQUEST_TIMED_OUT),
        Fault(delay_s=0.4),
        Fault(delay_s=1.5),
    )

    def fault(partition: TopicPartition, header: BatchHeader) -> Fault:
        return scene.rng.choice(ways) if scene.rng.random() < rate else FINE

    scene.brokers.fault = fault


def slow(scene: Scene) -> None:
    """Delay each answer a little more than the one before."""
    delays = itertools.count(200_000)
    scene.brokers.fault = lambda *_: Fault(delay_s=next(delays) / 1e6)


@pytest.mark.parametrize("gaps", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_mirrors_that_die_and_overlap_send_each_batch_once(seed: int, gaps: float) -> None:
    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, BATCHES, gaps)
        expected = values_of(scene.source)
        unlucky(scene, 0.08)
        alive = [scene.mirror()]
        for _ in range(8):
            await asyncio.sleep(scene.rng.random())
            if scene.rng.random() < 0.5:
                alive[-1].commit_position()
            if scene.rng.random() < 0.7:
                await alive.pop(scene.rng.randrange(len(alive))).die()
            alive.append(scene.mirror())  # concurrently with the previous one, if that is alive
        await scene.until(lambda: len(scene.arrived) >= len(expected))
        await asyncio.sleep(30)  # until nothing is in flight any more
        assert scene.arrived == expected
        for each in alive:
            await each.die()

    play(work, seed=seed)


def test_five_batches_without_gaps_are_in_flight_at_once_but_for_the_first() -> None:
    flying: list[int] = []

    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 60, 0.0)
        slow(scene)
        mirror = scene.mirror()

        async def watch() -> None:
            while True:
                flying.append(len(mirror.stream._in_flight))
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        await scene.until(lambda: scene.arrived == values_of(scene.source))
        watching.cancel()
        await mirror.stream.drain(1.0)
        assert mirror.stream.is_idle
        assert mirror.stream.position == scene.source[-1].end
        assert mirror.stream.target_end == len(scene.arrived)
        assert mirror.metrics.passed_batches == 60
        await mirror.die()

    play(work)
    assert max(flying) == IN_FLIGHT_MAX
    assert next(each for each in flying if each) == 1


def test_the_first_batch_behind_a_gap_is_in_flight_alone() -> None:
    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 20, 1.0)
        slow(scene)
        mirror = scene.mirror()
        while len(scene.arrived) < len(values_of(scene.source)):
            assert len(mirror.stream._in_flight) <= 1
            await asyncio.sleep(0.01)
        await mirror.die()
        ids = {read_header(each).producer_id for each in scene.brokers.log().data}
        assert len(ids) == 20

    play(work)


def test_beside_other_writers_the_last_batch_is_searched_for_after_the_commit() -> None:
    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 40, 0.1)
        ours = set(values_of(scene.source))
        first = scene.mirror()
        for number in range(30):
            other = build_batch([b"other %d" % number], timestamp_ms=0)
            assert read_header(other).producer_id == NO_PRODUCER_ID
            scene.brokers.log().append(bytes(other))
            await asyncio.sleep(0.03)
            if number == 5:
                first.commit_position()
            if number % 10 == 9:
                await first.die()
                first = scene.mirror()
        await scene.until(lambda: ours <= set(scene.arrived))
        await asyncio.sleep(5)
        assert [each for each in scene.arrived if each in ours] == values_of(scene.source)
        await first.die()

    play(work)


@pytest.mark.parametrize("gaps", [0.0, 1.0])
def test_a_frozen_mirror_sends_nothing_twice_after_its_producer_id_was_forgotten(
    gaps: float,
) -> None:
    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 30, gaps)
        expected = values_of(scene.source)
        slow(scene)
        frozen = scene.mirror()
        await scene.until(lambda: bool(frozen.stream._in_flight and frozen.stream._waiting))
        woken, frozen.stream._news = frozen.stream._news, asyncio.Event()
        other = scene.mirror()
        await scene.until(lambda: scene.arrived == expected)
        scene.brokers.log().forget_producers()
        await asyncio.sleep(90)
        woken.set()
        await scene.until(lambda: frozen.stream.position == scene.source[-1].end)
        await asyncio.sleep(30)
        assert scene.arrived == expected
        await frozen.die()
        await other.die()

    play(work)


def test_after_a_long_pause_a_stream_resumes_if_no_other_mirror_has_written() -> None:
    async def work(scene: Scene) -> None:
        *before, late, last = source_batches(scene.rng, 12, 0.0)
        scene.source = before
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived == values_of(before))
        await asyncio.sleep(3600)
        mirror.stream.put([late])
        await scene.until(lambda: scene.arrived == values_of([*before, late]))
        scene.brokers.log().append(bytes(build_batch([b"other"] * 3, timestamp_ms=0)))
        await asyncio.sleep(3600)
        mirror.stream.put([last])
        await scene.until(lambda: mirror.stream.is_idle)
        assert scene.arrived == [*values_of([*before, late]), *[b"other"] * 3, *values_of([last])]
        assert mirror.sought == [0]
        assert mirror.metrics.doubts == 0
        await mirror.die()

    play(work)


def test_a_target_that_was_recreated_stops_the_stream_with_a_sentence() -> None:
    async def work(scene: Scene) -> None:
        scene.committed = OffsetAndMetadata(500, "target=400")
        mirror = scene.mirror()
        await scene.until(lambda: mirror.stream.state is State.STOPPED)
        assert "ends at offset 0, but was mirrored into up to 400" in str(mirror.stream.failure)
        await mirror.stream.stop()

    play(work)


@pytest.mark.parametrize("others", [1, 2_000])
@pytest.mark.parametrize("lost", [1, 3])
def test_what_the_target_lost_is_sent_again_though_others_have_written_beyond_it(
    lost: int, others: int
) -> None:
    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 20, 0.0)
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived == values_of(scene.source))
        mirror.commit_position()
        await mirror.die()
        log = scene.brokers.log()
        for _ in range(lost):
            log.lose_last()
        kept = values_of(scene.source[: len(scene.source) - lost])
        assert scene.arrived == kept
        written: list[bytes | None] = [b"other"] * others
        for at in range(0, others, 500):
            log.append(bytes(build_batch(written[at : at + 500], timestamp_ms=0)))
        mirror = scene.mirror()
        expected = kept + written + values_of(scene.source[len(scene.source) - lost :])
        await scene.until(lambda: scene.arrived == expected)
        await mirror.die()

    play(work)


def test_what_compaction_removed_from_the_target_is_not_sent_again() -> None:
    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 20, 0.0)
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived == values_of(scene.source))
        mirror.commit_position()
        await mirror.die()
        log = scene.brokers.log()
        log.append(bytes(build_batch([b"other"] * 3, timestamp_ms=0)))
        del log.data[-3:-1]  # batches of ours, whose keys came again
        mirror = scene.mirror()
        await scene.until(lambda: mirror.stream.is_idle)
        assert mirror.sought == [scene.source[-1].end]
        await mirror.die()

    play(work)


def test_after_retention_emptied_the_target_the_stream_resumes_at_the_commit() -> None:
    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 20, 0.0)
        tenth = scene.source[10]
        scene.committed = OffsetAndMetadata(tenth.start, "target=0")
        mirror = scene.mirror()
        expected = values_of(scene.source[10:])
        await scene.until(lambda: scene.arrived == expected)
        await mirror.die()

    play(work)


def test_a_seek_overrides_the_targets_position_but_never_backwards() -> None:
    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 30, 0.0)
        whole, scene.source = scene.source, scene.source[:10]
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived == values_of(whole[:10]))
        await mirror.die()
        scene.source = whole
        scene.committed = OffsetAndMetadata(whole[20].start, SOUGHT)
        mirror = scene.mirror()
        await scene.until(lambda: len(scene.arrived) == len(values_of(whole[:10] + whole[20:])))
        assert scene.arrived == values_of(whole[:10] + whole[20:])
        await mirror.die()
        scene.committed = OffsetAndMetadata(whole[0].start, SOUGHT)
        mirror = scene.mirror()
        await scene.until(lambda: mirror.stream.is_idle)
        assert mirror.stream.position == whole[-1].end
        await mirror.die()

    play(work)


def test_a_seek_outlives_mirrors_that_have_sent_nothing_from_there() -> None:
    async def work(scene: Scene) -> None:
        whole = source_batches(scene.rng, 30, 0.0)
        scene.source = whole[:10]
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived == values_of(whole[:10]))
        await mirror.die()
        scene.source, scene.committed = [], OffsetAndMetadata(whole[20].start, SOUGHT)
        for _ in range(2):
            mirror = scene.mirror()
            await scene.until(lambda m=mirror: m.stream.state is State.FLOWING)
            mirror.commit_position()
            await mirror.die()
        scene.source = whole
        mirror = scene.mirror()
        expected = values_of(whole[:10] + whole[20:])
        await scene.until(lambda: len(scene.arrived) == len(expected))
        assert scene.arrived == expected
        mirror.commit_position()
        assert scene.committed.metadata == f"target={len(expected)}"
        await mirror.die()

    play(work)


def test_a_position_reached_by_markers_alone_is_where_the_next_mirror_begins() -> None:
    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 10, 0.0)
        mirror = scene.mirror()
        await scene.until(lambda: mirror.stream.is_idle and mirror.stream.position is not None)
        await scene.until(lambda: mirror.stream.position == scene.source[-1].end)
        mirror.stream.note_position(scene.source[-1].end + 2)
        mirror.commit_position()
        await mirror.die()
        mirror = scene.mirror()
        await scene.until(lambda: mirror.stream.is_idle)
        assert mirror.sought == [scene.source[-1].end + 2]
        mirror.commit_position()
        await mirror.die()
        scene.brokers.log().lose_last()
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived == values_of(scene.source))
        await mirror.die()

    play(work)


def test_a_seek_holds_however_late_the_first_batch_comes() -> None:
    async def work(scene: Scene) -> None:
        *before, sought = source_batches(scene.rng, 11, 0.0)
        scene.source = before
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived == values_of(before))
        await mirror.die()
        scene.committed = OffsetAndMetadata(sought.start + 5, SOUGHT)
        mirror = scene.mirror()
        await scene.until(lambda: mirror.stream.is_idle)
        mirror.commit_position()
        await asyncio.sleep(3600)
        data = build_batch([b"late"], timestamp_ms=0, base_offset=sought.start + 5)
        mirror.stream.put([Batch(PARTITION, read_header(data), bytes(data), 0, 0)])
        await scene.until(lambda: scene.arrived == [*values_of(before), b"late"])
        assert mirror.sought == [sought.start + 5]
        await mirror.die()

    play(work)


def test_the_first_commit_says_where_to_look_before_anything_is_sent() -> None:
    async def work(scene: Scene) -> None:
        scene.brokers.log().append(bytes(build_batch([b"other"] * 3, timestamp_ms=0)))
        mirror = scene.mirror()
        await scene.until(lambda: mirror.stream.state is State.FLOWING)
        assert scene.committed == OffsetAndMetadata(0, "target=3")
        await mirror.die()

    play(work)


def test_an_unreadable_source_stops_the_stream_once_everything_read_has_arrived() -> None:
    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 20, 0.0)
        slow(scene)
        mirror = scene.mirror()
        held = sum(each.header.size for each in scene.source)
        await scene.until(lambda: mirror.stream.held_bytes > held / 2)
        read = mirror.stream._read_to
        mirror.stream.fail(KdistError("gone"))
        assert mirror.stream.state is State.FLOWING
        await scene.until(lambda: mirror.stream.state is State.STOPPED)
        assert str(mirror.stream.failure) == "gone"
        assert mirror.stream.position == read
        assert scene.arrived == values_of([each for each in scene.source if each.end <= read])
        await mirror.die()

    play(work)


def test_a_batch_that_compaction_left_without_records_to_send_is_skipped() -> None:
    async def work(scene: Scene) -> None:
        data = build_batch([b"before"], timestamp_ms=0)
        HEADER.pack_into(data, 0, *read_header(data)._replace(last_offset_delta=9))
        behind = build_batch([b"after"], timestamp_ms=0, base_offset=10)
        scene.source = [
            Batch(PARTITION, read_header(each), bytes(each), 0, 5) for each in (data, behind)
        ]
        scene.committed = OffsetAndMetadata(5, "target=0")
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived == [b"after"])
        await mirror.die()

    play(work)


def test_a_bug_in_a_stream_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 5, 0.0)
        scene.mirror()
        await scene.until(lambda: False)

    def break_down(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kdist.mirror.rewritten_batch.RewrittenBatch.stamp", break_down)
    with pytest.raises(ZeroDivisionError):
        play(work)
