"""Reads for fetches: whole batches up to a limit, from one segment; and lookups by timestamp."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_world import (
    START_MS,
    World,
    append,
    batch_of,
    expected_lines,
    find_by_timestamp,
    lines,
    numbered,
)

from kdist.errors import Error
from kdist.records import build
from kdist.records.batch import iter_headers, read_header
from kdist.records.build import read_batch
from kdist.runtime.steps import run_steps
from kdist.storage.log import Log
from kdist.storage.names import Suffix
from kdist.storage.reading import read, trim
from kdist.storage.scan import DamagedSegment
from kdist.storage.time_lookup import finding_newest
from kdist.storage.trimming import truncate
from tests.refusals import refused


def grown(world: World, batches: int = 40, count: int = 3, **topic: Any) -> Log:
    """A log of equal batches, ten records or so to a segment."""
    log = world.log(segment_bytes=400, index_interval_bytes=100, **topic)
    for _ in range(batches):
        world.clock.advance_ms(10)
        append(world, log, count)
    return log


def fetch(log: Log, offset: int, bytes_max: int = 1 << 20, **arguments: int | bool) -> bytes:
    piece = read(log, offset, bytes_max, **arguments)  # type: ignore[arg-type]
    if piece is None:
        return b""
    data = piece.read()
    assert len(data) == len(piece)
    piece.release()
    return data


def offsets(data: bytes) -> list[int]:
    """The first offset of each whole batch."""
    return [header.base_offset for _, header in iter_headers(data, may_end_partial=True)]


# Where a read begins and ends


@pytest.mark.parametrize("flush", [False, True])
def test_a_read_begins_with_the_batch_that_holds_the_offset(flush: bool) -> None:
    world = World()
    log = grown(world)
    if flush:
        world.restart()
        log = world.log()
    for offset in range(log.end_offset):
        assert offsets(fetch(log, offset))[0] == offset - offset % 3


def test_reads_one_after_the_other_give_the_whole_log() -> None:
    world = World()
    log, offset, found = grown(world), 0, []
    while data := fetch(log, offset, 500):
        for position, header in iter_headers(data, may_end_partial=True):
            found += [(record.offset, record.value) for record in read_batch(data, position)]
            offset = header.next_offset
    assert found == lines(log) == expected_lines(120)


def test_a_read_stays_within_one_segment() -> None:
    world = World()
    log = grown(world)
    first, second = log.segments[:2]
    assert offsets(fetch(log, 0))[-1] < second.base_offset
    assert fetch(log, second.base_offset)[:61] != fetch(log, first.base_offset)[:61]
    assert offsets(fetch(log, second.base_offset))[0] == second.base_offset


def test_a_first_batch_larger_than_the_limit_is_read_whole() -> None:
    world = World()
    log = grown(world)
    for bytes_max in (0, 1, 60, 61):
        data = fetch(log, 0, bytes_max)
        assert len(data) == read_header(data).size
    assert fetch(log, 0, 0, whole=False) == b""
    assert len(fetch(log, 0, 30, whole=False)) == 30


def test_after_its_first_batch_a_read_is_cut_at_the_limit_to_the_byte() -> None:
    world = World()
    log = grown(world)
    size = read_header(fetch(log, 0, 1)).size
    for bytes_max in range(size, 2 * size + 10):
        assert len(fetch(log, 0, bytes_max)) == bytes_max


def test_a_trimmed_slice_ends_with_a_whole_batch_unless_it_has_none() -> None:
    world = World()
    log = grown(world)
    sizes = [header.size for _, header in iter_headers(fetch(log, 0), may_end_partial=True)]
    for bytes_max in range(1, sum(sizes) + 1):
        piece = read(log, 0, bytes_max, whole=False)
        assert piece is not None
        trim(piece)
        whole = next(sum(sizes[:n]) for n in range(9, -1, -1) if sum(sizes[:n]) <= bytes_max)
        assert piece.size == (whole or bytes_max)
        piece.release()


@pytest.mark.parametrize("restarted", [False, True])
def test_nothing_at_or_above_the_end_offset_is_read(restarted: bool) -> None:
    """The end offset, a high watermark say, may be where a batch starts, inside it, or far away."""
    world = World()
    log = grown(world)
    if restarted:
        world.restart()
        log = world.log()
    for limit in range(log.end_offset + 1):
        for offset in (0, max(0, limit - 7), max(0, limit - 1), limit):
            data = fetch(log, offset, end_offset=limit)
            headers = [header for _, header in iter_headers(data)]
            assert all(header.next_offset <= limit for header in headers)
            whole_below = offset - offset % 3 + 3 <= limit
            assert bool(headers) == (whole_below and offset < limit)


def test_a_second_reader_needs_no_search() -> None:
    world = World()
    log = grown(world, 100)
    log.recent.clear()
    first = [fetch(log, offset, 200) for offset in range(0, 300, 7)]
    before = world.disk.calls["read"]
    assert [fetch(log, offset, 200) for offset in range(0, 300, 7)] == first
    assert world.disk.calls["read"] - before == len(first)  # the records themselves


def test_a_truncation_forgets_the_remembered_positions_behind_it() -> None:
    world = World()
    log = grown(world, 3)
    log.recent.clear()
    for offset in range(9):
        fetch(log, offset)
    truncate(log, 3, START_MS)
    append(world, log, 1, size=50)
    append(world, log, 5)
    log.recent.clear()
    for offset in range(3, log.end_offset):
        data = fetch(log, offset)
        header = read_header(data)
        assert header.base_offset <= offset <= header.last_offset


def test_a_segment_remembers_few_positions_and_none_at_rest() -> None:
    world = World()
    log = world.log()
    append(world, log, 2000)
    log.recent.clear()
    for offset in range(2000):
        fetch(log, offset, 1)
        assert len(log.active.places) <= 512
    log.close_idle()
    assert not log.active.places


def test_an_end_offset_above_the_log_means_its_end() -> None:
    world = World()
    log = grown(world, 2)
    assert offsets(fetch(log, 0, end_offset=999)) == [0, 3]


def test_a_read_at_the_log_end_returns_nothing() -> None:
    world = World()
    log = grown(world)
    assert fetch(log, log.end_offset) == b""
    assert fetch(World().log(), 0) == b""


@pytest.mark.parametrize("offset", [-1, 7, 121, 1 << 40])
def test_a_read_outside_the_log_is_out_of_range(offset: int) -> None:
    world = World()
    log = grown(world)
    world.delete_records(log, 8)
    with refused(Error.OFFSET_OUT_OF_RANGE):
        read(log, offset, 1000)


def compacted(world: World) -> Log:
    """Batches 0-2, 3-5 and so on, of which compaction has removed all but three."""
    log = grown(world, cleanup_policy=("compact", "delete"))
    world.stop()
    keep = {3, 60, 117}
    for segment in log.segments:
        path = world.path_of(segment.base_offset, Suffix.LOG)
        data = world.disk.read(path)
        kept = b"".join(
            data[position : position + header.size]
            for position, header in iter_headers(data)
            if header.base_offset in keep
        )
        file = world.disk.open(path)
        file.truncate(0)
        file.write([kept], 0)
        for suffix in (Suffix.INDEX, Suffix.TIME_INDEX):
            world.disk.remove(world.path_of(segment.base_offset, suffix))
    world.open()
    return world.log()


def test_reads_continue_across_the_gaps_that_compaction_leaves() -> None:
    log = compacted(World())
    assert log.end_offset == 120
    for offset, found in ((0, 3), (5, 3), (6, 60), (59, 60), (62, 60), (63, 117), (119, 117)):
        assert offsets(fetch(log, offset))[0] == found
    assert fetch(log, 6, end_offset=50) == b""
    assert offsets(fetch(log, 6, end_offset=63)) == [60]


def test_a_slice_stays_readable_while_retention_deletes_its_segment() -> None:
    world = World()
    log = grown(world, retention_bytes=0)
    world.flush(log)
    pieces = [read(log, offset, 1 << 20) for offset in (0, 30, 119)]
    before = [piece.read() for piece in pieces if piece]
    world.directory.trimmer.retain(lambda log: log.end_offset)
    world.tasks.run_for_ms(120_000)
    assert log.start_offset == 120
    assert [piece.read() for piece in pieces if piece] == before
    for piece in pieces:
        assert piece is not None
        piece.release()
    assert all(segment._file is None for segment in (piece.segment for piece in pieces if piece))


def test_a_slice_of_a_resting_segment_stays_readable_too() -> None:
    world = World()
    log = world.log(retention_bytes=0)
    append(world, log, 3)
    world.flush(log)
    log.close_idle()
    piece = read(log, 0, 1 << 20)
    assert piece is not None
    world.directory.trimmer.retain(lambda log: log.end_offset)
    world.settle()
    assert log.start_offset == 3
    assert offsets(piece.read()) == [0]
    piece.release()


def test_a_slice_of_a_resting_segment_stays_readable_when_its_partition_is_deleted() -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    log.close_idle()
    piece = read(log, 0, 1 << 20)
    assert piece is not None
    world.delete()
    world.tasks.run_for_ms(120_000)
    assert offsets(piece.read()) == [0]
    piece.release()


def test_reading_keeps_no_file_of_a_resting_log_open() -> None:
    world = World()
    log = grown(world)
    log.close_idle()
    piece = read(log, 0, 10)
    assert piece is not None
    log.close_idle()
    assert offsets(piece.read()) == [0]
    piece.release()
    log.close_idle()
    assert all(segment._file is None for segment in log.segments)


def test_pages_read_by_a_reader_far_behind_are_dropped_from_the_page_cache() -> None:
    world = World(cold_read_bytes=1000)
    log = grown(world)
    fetch(log, 0)
    assert world.disk.calls["drop_cached"] == 1
    assert world.disk.open(log.segments[0].path).read_cached(0, 10) is None
    near = log.segments[-2].base_offset
    fetch(log, near)
    fetch(log, log.end_offset - 1)
    assert world.disk.calls["drop_cached"] == 1


def test_the_active_segment_is_never_dropped_from_the_page_cache() -> None:
    world = World(cold_read_bytes=0)
    log = world.log()
    for _ in range(50):
        append(world, log, 3)
    fetch(log, 0)
    assert world.disk.calls["drop_cached"] == 0


def test_a_batch_whose_header_is_damaged_answers_corrupt_message() -> None:
    world = World()
    log = grown(world)
    segment = log.segments[1]
    segment.file.write([b"\xff"], 16)  # its first batch's magic
    with pytest.raises(DamagedSegment) as caught:
        read(log, segment.base_offset + 1, 1)
    assert caught.value.error is Error.CORRUPT_MESSAGE
    assert caught.value.path == segment.path
    assert offsets(fetch(log, 0))[0] == 0
    following = log.segments[2].base_offset
    assert offsets(fetch(log, following))[0] == following


# By timestamp


def first_at_or_after(log: Log, timestamp: int, records: list[tuple[int, int]]) -> int | None:
    return next((o for o, t in records if t >= timestamp and o >= log.start_offset), None)


@given(
    stamps=st.lists(st.lists(st.integers(-3, 30), min_size=1, max_size=4), min_size=1, max_size=25),
    interval=st.sampled_from([0, 100, 4096]),
    start=st.integers(0, 60),
    restarts=st.sampled_from(["no", "clean", "kill"]),
)
def test_a_lookup_by_timestamp_finds_what_a_full_scan_finds(
    stamps: list[list[int]], interval: int, start: int, restarts: str
) -> None:
    world = World()
    log = world.log(segment_bytes=500, index_interval_bytes=interval)
    records = []
    for times in stamps:
        at = [START_MS + time for time in times]
        records += list(enumerate(at, log.end_offset))
        values = numbered(log.end_offset, len(at))
        log.append_as_leader([batch_of(values, timestamps=at)], 0, START_MS)
    world.flush(log)
    start = min(start, log.end_offset)
    world.delete_records(log, start)
    if restarts == "clean":
        world.restart()
    elif restarts == "kill":
        world.kill()
        world.open()
    log = world.log()
    for timestamp in range(START_MS - 4, START_MS + 32):
        found = find_by_timestamp(log, timestamp)
        wanted = first_at_or_after(log, timestamp, records)
        assert (found and found.offset) == wanted
        if found is not None:
            assert found.timestamp == dict(records)[found.offset]


def test_a_lookup_by_timestamp_returns_the_leader_epoch_too() -> None:
    world = World()
    log = world.log()
    append(world, log, 3, epoch=4, timestamp=100)
    append(world, log, 3, epoch=6, timestamp=200)
    found = find_by_timestamp(log, 150)
    assert found == (3, 200, 6)


def test_a_max_timestamp_lookup_finds_the_first_record_with_the_largest_timestamp() -> None:
    world = World()
    log = world.log(segment_bytes=300)
    for timestamp in (5, 9, 7, 9, 3):
        append(world, log, 4, timestamp=START_MS + timestamp)
    newest = run_steps(finding_newest(log))
    assert newest is not None
    assert (newest.offset, newest.timestamp) == (4, START_MS + 9)


def test_a_lookup_by_timestamp_creates_no_record_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup in a thousand partitions examines a thousand batches."""
    world = World()
    log = world.log()
    append(world, log, 4, timestamp=START_MS)
    monkeypatch.delattr(build, "decode_records")
    for found in (find_by_timestamp(log, START_MS), run_steps(finding_newest(log))):
        assert found is not None
        assert (found.offset, found.timestamp) == (0, START_MS)


@pytest.mark.parametrize("segment_bytes", [300, 5000])
def test_a_max_timestamp_lookup_ignores_deleted_records(segment_bytes: int) -> None:
    world = World()
    log = world.log(segment_bytes=segment_bytes)
    times = [[9, 8, 1], [5, 7, 2], [3, 3, 6], [4, 1, 6], [0, 2, 1]]
    for each in times:
        values = numbered(log.end_offset, len(each))
        log.append_as_leader(
            [batch_of(values, timestamps=[START_MS + at for at in each])], 0, START_MS
        )
    flat = [at for each in times for at in each]
    for start in range(len(flat)):
        log.delete_records(start)
        newest = run_steps(finding_newest(log))
        assert newest is not None
        assert newest.timestamp == START_MS + max(flat[start:])
        assert newest.offset == flat.index(max(flat[start:]), start)
    log.delete_records(log.end_offset)
    assert run_steps(finding_newest(log)) is None


def test_a_max_timestamp_lookup_finds_nothing_without_records_or_timestamps() -> None:
    world = World()
    log = world.log()
    assert run_steps(finding_newest(log)) is None
    append(world, log, 3, timestamp=-1)
    assert run_steps(finding_newest(log)) is None
    assert find_by_timestamp(log, 0) is None
