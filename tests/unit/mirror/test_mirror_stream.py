"""A stream in virtual time: whatever fails, and whoever dies, each batch arrives once, in order."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping
from typing import Any

import pytest
from mirror_world import (
    PARTITION,
    Mirror,
    Scene,
    play,
    source_batches,
    values_of,
)

from kdist.client.cluster import Cluster, parse_addresses
from kdist.client.consumer.batch import Batch
from kdist.client.fetch_once import FetchedBatches, fetch_at
from kdist.client.offsets import OffsetAndMetadata
from kdist.config.mirror import Flow, FlowSettings
from kdist.errors import ApiError, Error, KdistError
from kdist.mirror.lag import NO_LAG, Lag, LagMeter
from kdist.mirror.origins import TOPIC, read_origins, write_origins
from kdist.mirror.position_lookup import SOUGHT, why_stopped
from kdist.mirror.selection import UNREADABLE, Origin, select
from kdist.mirror.stream import IN_FLIGHT_MAX, State
from kdist.model import NO_PRODUCER_ID, OffsetRange, TopicPartition
from kdist.network.client import ClientSettings
from kdist.records.batch import HEADER, BatchHeader, read_header
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from kdist.records.record import Record
from tests.unit.client.producer_world import FINE, PORT, Fault
from tests.written_records import write_message_set

pytestmark = pytest.mark.played(by=play)

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


FLIGHTS, OPS = Origin("flights", ("A",)), Origin("ops", ("A", "B"))


def cluster_of(scene: Scene) -> Cluster:
    network = scene.network.host("asks")
    return Cluster(network, parse_addresses(f"b0:{PORT}"), ClientSettings("t"), retry_ms=0)


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


async def test_the_first_batch_behind_a_gap_is_in_flight_alone(scene: Scene, /) -> None:
    scene.source = source_batches(scene.rng, 20, 1.0)
    slow(scene)
    mirror = scene.mirror()
    while len(scene.arrived) < len(values_of(scene.source)):
        assert len(mirror.stream._in_flight) <= 1
        await asyncio.sleep(0.01)
    await mirror.die()
    ids = {read_header(each).producer_id for each in scene.brokers.log().data}
    assert len(ids) == 20


async def test_beside_other_writers_the_last_batch_is_searched_for_after_the_commit(
    scene: Scene, /
) -> None:
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


@pytest.mark.parametrize("gaps", [0.0, 1.0])
async def test_a_frozen_mirror_sends_nothing_twice_after_its_producer_id_was_forgotten(
    scene: Scene, /, gaps: float
) -> None:
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


async def test_after_a_long_pause_a_stream_resumes_if_no_other_mirror_has_written(
    scene: Scene, /
) -> None:
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


async def test_a_target_that_was_recreated_stops_the_stream_with_a_sentence(
    scene: Scene, /
) -> None:
    scene.committed = OffsetAndMetadata(500, "target=400")
    mirror = scene.mirror()
    await scene.until(lambda: mirror.stream.state is State.STOPPED)
    assert "ends at offset 0, but was mirrored into up to 400" in str(mirror.stream.failure)
    await mirror.stream.stop()


@pytest.mark.parametrize("others", [1, 2_000])
@pytest.mark.parametrize("lost", [1, 3])
async def test_what_the_target_lost_is_sent_again_though_others_have_written_beyond_it(
    scene: Scene, /, lost: int, others: int
) -> None:
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


async def test_what_compaction_removed_from_the_target_is_not_sent_again(scene: Scene, /) -> None:
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


async def test_after_retention_emptied_the_target_the_stream_resumes_at_the_commit(
    scene: Scene, /
) -> None:
    scene.source = source_batches(scene.rng, 20, 0.0)
    tenth = scene.source[10]
    scene.committed = OffsetAndMetadata(tenth.start, "target=0")
    mirror = scene.mirror()
    expected = values_of(scene.source[10:])
    await scene.until(lambda: scene.arrived == expected)
    await mirror.die()


async def test_a_seek_overrides_the_targets_position_but_never_backwards(scene: Scene, /) -> None:
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


async def test_a_seek_outlives_mirrors_that_have_sent_nothing_from_there(scene: Scene, /) -> None:
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


async def test_a_position_reached_by_markers_alone_is_where_the_next_mirror_begins(
    scene: Scene, /
) -> None:
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


async def test_a_seek_holds_however_late_the_first_batch_comes(scene: Scene, /) -> None:
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


async def test_the_first_commit_says_where_to_look_before_anything_is_sent(scene: Scene, /) -> None:
    scene.brokers.log().append(bytes(build_batch([b"other"] * 3, timestamp_ms=0)))
    mirror = scene.mirror()
    await scene.until(lambda: mirror.stream.state is State.FLOWING)
    assert scene.committed == OffsetAndMetadata(0, "target=3")
    await mirror.die()


async def test_an_unreadable_source_stops_the_stream_once_everything_read_has_arrived(
    scene: Scene, /
) -> None:
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


async def test_a_batch_that_compaction_left_without_records_to_send_is_skipped(
    scene: Scene, /
) -> None:
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


async def test_a_batch_accepted_by_a_recreated_target_stops_the_stream_for_good(
    scene: Scene, /
) -> None:
    scene.source = source_batches(scene.rng, 20, 0.0)
    mirror = scene.mirror()
    await scene.until(lambda: scene.arrived == values_of(scene.source))
    mirror.commit_position()
    scene.brokers.log().make_anew()
    for value in (b"next", b"last"):
        end = scene.source[-1].end
        data = build_batch([value], timestamp_ms=0, base_offset=end, leader_epoch=0)
        scene.source.append(Batch(PARTITION, read_header(data), bytes(data), 0, 0))
        mirror.stream.put(scene.source[-1:])
        await scene.until(lambda m=mirror: m.stream.state is State.STOPPED)
    assert scene.arrived == [b"next"]
    mirror.commit_position()
    await mirror.die()
    mirror = scene.mirror()
    await scene.until(lambda: mirror.stream.state is State.STOPPED)
    assert "delete it once more" in str(mirror.stream.failure)
    assert scene.arrived == [b"next"]
    await mirror.stream.stop()


async def test_a_target_that_lost_its_end_before_a_commit_is_filled_again(scene: Scene, /) -> None:
    scene.source = source_batches(scene.rng, 20, 0.0)
    mirror = scene.mirror()
    await scene.until(lambda: scene.arrived == values_of(scene.source))
    mirror.commit_position()
    await mirror.die()
    scene.brokers.log().lose_last()
    mirror = scene.mirror()
    await scene.until(lambda: scene.arrived == values_of(scene.source))
    await mirror.die()


@pytest.mark.parametrize(
    "error",
    [
        Error.REBALANCE_IN_PROGRESS,
        Error.SASL_AUTHENTICATION_FAILED,
        Error.GROUP_AUTHORIZATION_FAILED,
    ],
)
def test_a_commit_that_is_refused_between_two_generations_logins_or_acls_is_retried(
    error: Error, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, refused = Mirror.commit, [ApiError(error, "group g")]

    async def refuse_once(
        self: Mirror, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        if refused:
            raise refused.pop()
        await commit(self, offsets)

    monkeypatch.setattr(Mirror, "commit", refuse_once)

    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 5, 0.0)
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived == values_of(scene.source), 30)
        await mirror.die()

    play(work)
    assert not refused


def test_a_target_whose_retention_outruns_the_look_up_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = [ApiError(Error.OFFSET_OUT_OF_RANGE, "t-0")]

    async def look(*asked: Any) -> FetchedBatches:
        if gone:
            raise gone.pop()
        return await fetch_at(*asked)

    monkeypatch.setattr("kdist.mirror.position_lookup.fetch_at", look)

    async def work(scene: Scene) -> None:
        scene.source = source_batches(scene.rng, 5, 0.0)
        scene.brokers.log().append(bytes(build_batch([b"another's"], timestamp_ms=0)))
        mirror = scene.mirror()
        await scene.until(lambda: scene.arrived[1:] == values_of(scene.source), 30)
        await mirror.die()

    play(work)
    assert not gone


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (Error.MESSAGE_TOO_LARGE, "max.message.bytes"),
        (Error.RECORD_LIST_TOO_LARGE, "segment.bytes"),
    ],
)
@pytest.mark.played(by=play)
async def test_a_batch_too_large_for_the_target_stops_the_stream_and_names_the_setting(
    scene: Scene, /, error: Error, limit: str
) -> None:
    scene.source = source_batches(scene.rng, 5, 0.0)
    scene.brokers.fault = lambda *_: Fault(is_written=False, error=error)
    mirror = scene.mirror()
    await scene.until(lambda: mirror.stream.state is State.STOPPED)
    end, size = scene.source[0].end, scene.source[0].header.size
    sentence = (
        f"{error.name}: t-0 of the target refuses the batch that ends at source offset {end}:"
        f" raise {limit} of topic t in the target to the source's value, at least {size},"
        " and restart the mirror"
    )
    assert str(mirror.stream.failure) == sentence
    assert mirror.stream.held_bytes == 0
    mirror.commit_position()
    await mirror.stream.stop()
    assert scene.committed is not None
    assert why_stopped(scene.committed.metadata) == sentence
    scene.brokers.fault = lambda *_: FINE
    mirror = scene.mirror()
    await scene.until(lambda: scene.arrived == values_of(scene.source))
    mirror.commit_position()
    assert scene.committed.metadata == f"target={len(scene.arrived)}"
    await mirror.die()


async def test_the_last_record_of_a_topics_origin_counts(scene: Scene, /) -> None:
    cluster = cluster_of(scene)
    assert await read_origins(cluster) == {}
    await write_origins(cluster, {"dc1.flights": Origin("x", ("C",)), "dc1.ops": OPS}, 1)
    await write_origins(cluster, {"dc1.flights": FLIGHTS}, 2)
    assert await read_origins(cluster) == {"dc1.flights": FLIGHTS, "dc1.ops": OPS}
    await write_origins(cluster, {"dc1.ops": None, "never": None}, 3)
    assert await read_origins(cluster) == {"dc1.flights": FLIGHTS}
    cluster.close()


async def test_the_origins_of_thousands_of_topics_take_several_requests(scene: Scene, /) -> None:
    cluster = cluster_of(scene)
    origins = {f"t{n:05}".ljust(249, "-"): Origin("x" * 249, ("C" * 22,)) for n in range(3_000)}
    await write_origins(cluster, origins, 1)
    assert await read_origins(cluster) == origins
    batches = scene.brokers.log(TopicPartition(TOPIC, 0)).data
    assert max(map(len, batches)) < 1_000_000
    cluster.close()


def test_messages_of_an_old_log_are_handled_as_batches() -> None:
    records = [Record(offset, 1_000 + offset, None, b"x") for offset in (5, 6, 8)]
    found = list(FetchedBatches(write_message_set(records, 1, Codec.GZIP)).headers())
    assert [(each.base_offset, each.record_count) for each in found] == [(5, 2), (8, 1)]
    assert found[0].base_timestamp == 1_005


async def test_lag_is_measured_by_the_first_record_that_is_behind(scene: Scene, /) -> None:
    log = scene.brokers.log()
    batches = source_batches(random.Random(1), 10, 0.0)
    for batch in batches:
        log.append(bytes(build_batch(batch.raw_values(), timestamp_ms=5_000)))
    cluster, end = cluster_of(scene), len(log.records)
    meter, ranges = LagMeter(cluster), {PARTITION: OffsetRange(0, end)}
    assert await meter.measure({PARTITION: end}, ranges, 9_000) == ({PARTITION: NO_LAG}, {})
    found = await meter.measure({PARTITION: 0}, ranges, 9_000)
    size = len(log.data[0]) / len(batches[0].raw_values())
    assert found == ({PARTITION: Lag(end, end * size, 4.0)}, {})
    cluster.close()


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"topic": "x"}', b'{"through": []}'])
async def test_a_record_that_is_not_an_origin_holds_back_its_topic_alone_until_it_is_mended(
    scene: Scene, /, value: bytes
) -> None:
    log = scene.brokers.log(TopicPartition(TOPIC, 0))
    log.append(bytes(build_batch([value], [b"t"], timestamp_ms=0)))
    cluster = cluster_of(scene)
    await write_origins(cluster, {"flights": FLIGHTS}, 1)
    origins = await read_origins(cluster)
    assert origins == {"t": UNREADABLE, "flights": FLIGHTS}
    flow = Flow("f", FlowSettings(source="a:1", target="b:1"))
    found = select(flow, ["t", "flights"], origins, "B")
    assert ([*found.mirrored], found.refused) == (["flights"], {"t"})
    released = origins["t"]._replace(is_released=True)
    await write_origins(cluster, {"t": released}, 2)
    assert await read_origins(cluster) == {"flights": FLIGHTS}
    cluster.close()
