"""A segment: when it is closed, its indexes as it grows, lookups, truncation, retirement."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_world import START_MS, World, batch_of, flip, numbered, overwrite

from kdist.errors import CorruptFile
from kdist.records.batch import read_header
from kdist.runtime.files import Buffer
from kdist.storage.append import RollReason, choose_roll, waited_ms
from kdist.storage.names import Suffix
from kdist.storage.scan import DamagedSegment
from kdist.storage.segment import Segment
from kdist.testing.simulated_disk import SimulatedDisk

BASE = 1000


class Bench:
    """A segment on a bare disk, grown without a log."""

    def __init__(self, interval: int = 100) -> None:
        self.disk: SimulatedDisk = World().disk
        self.interval = interval
        self.segment = Segment.create(self.disk, "/d01", BASE, START_MS)
        self.end = BASE

    def grow(self, count: int = 3, gap: int = 0, timestamp: int | None = None) -> None:
        self.end += gap
        values = numbered(self.end, count)
        at = START_MS + self.end if timestamp is None else timestamp
        data = batch_of(values, base_offset=self.end, timestamp=at).data
        position = self.segment.size
        self.segment.file.write([data], position)
        note(self.segment, position, data, self.interval)
        self.end += count

    def loaded(self) -> Segment:
        self.segment.close_idle()
        return Segment.load(self.disk, "/d01", BASE)

    def path(self, suffix: Suffix) -> str:
        return f"/d01/{BASE:020d}{suffix}"


def note(segment: Segment, position: int, data: Buffer, interval: int) -> None:
    header = read_header(data)
    segment.note(position, header.size, header.last_offset, header.max_timestamp, interval)


def grown(batches: int = 30, interval: int = 100) -> Bench:
    bench = Bench(interval)
    for _ in range(batches):
        bench.grow()
    return bench


growths = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), max_size=30)


def roll(
    size_bytes: int = 1000,
    incoming_bytes: int = 100,
    is_expired: bool = False,
    is_index_full: bool = False,
    relative_offset: int = 5,
) -> RollReason | None:
    return choose_roll(size_bytes, incoming_bytes, 1100, is_expired, is_index_full, relative_offset)


@given(growths=growths, interval=st.sampled_from([0, 60, 100, 300, 4096]), reload=st.booleans())
def test_find_returns_the_first_batch_that_ends_at_or_behind_the_offset(
    growths: list[tuple[int, int]], interval: int, reload: bool
) -> None:
    bench = Bench(interval)
    for count, gap in growths:
        bench.grow(count, gap)
    segment = bench.loaded() if reload else bench.segment
    headers = list(segment.walk_headers())
    for offset in range(BASE, bench.end + 2):
        wanted = next((place for place in headers if place[1].last_offset >= offset), None)
        assert segment.find(offset) == wanted


def test_an_index_entry_stands_for_more_than_the_interval_in_bytes() -> None:
    bench = grown(60, 500)
    positions = [0, *(entry.value for entry in bench.segment.offset_index)]
    steps = [after - before for before, after in pairwise(positions)]
    assert all(500 < step < 500 + 2 * 120 for step in steps)
    last_offsets = {p: h.last_offset for p, h in bench.segment.walk_headers()}
    for key, position in bench.segment.offset_index:
        assert BASE + key == last_offsets[position]


def test_a_time_index_entry_holds_the_offset_of_the_largest_timestamp_so_far() -> None:
    bench = Bench(0)
    for timestamp in (5, 9, 7, 9, 12, 1):
        bench.grow(timestamp=timestamp)
    assert list(bench.segment.time_index) == [(9, 5), (12, 14)]
    assert bench.segment.largest_timestamp == (12, BASE + 14)


def test_sealing_completes_the_time_index_and_writes_both_files() -> None:
    bench = Bench(4096)
    bench.grow(timestamp=77)
    bench.segment.seal()
    assert bench.disk.read(bench.path(Suffix.TIME_INDEX)) == struct.pack(">qi", 77, 2)
    assert bench.disk.read(bench.path(Suffix.INDEX)) == b""
    assert bench.loaded().largest_timestamp == (77, BASE + 2)


def test_a_segment_without_timestamps_has_no_largest_one() -> None:
    bench = Bench(0)
    for _ in range(5):
        bench.grow(timestamp=-1)
    bench.segment.seal()
    assert bench.segment.largest_timestamp == (-1, BASE)
    assert bench.loaded().index_fault() is None


def test_the_first_timestamp_is_read_when_it_is_not_known() -> None:
    bench = Bench()
    assert bench.segment.first_timestamp is None
    bench.grow(timestamp=5)
    bench.grow(timestamp=9)
    assert bench.loaded().first_timestamp == bench.segment.first_timestamp == 5


def test_the_end_offset_is_read_behind_the_last_index_entry() -> None:
    bench = grown()
    bench.segment.seal()
    segment = bench.loaded()
    before = bench.disk.calls["read"]
    assert segment.read_end_offset() == bench.end
    assert bench.disk.calls["read"] - before <= 4
    assert Segment.create(bench.disk, "/d01", 5, START_MS).read_end_offset() == 5


def test_an_index_entry_that_points_nowhere_is_reported_with_its_file() -> None:
    bench = grown()
    bench.segment.seal()
    overwrite(bench.disk, bench.path(Suffix.INDEX), struct.pack(">iiii", 2, 7, 88, 5))
    with pytest.raises(CorruptFile) as caught:
        bench.loaded().find(BASE + 20)
    assert caught.value.path == bench.path(Suffix.INDEX)


def test_rebuilt_indexes_equal_those_that_grew() -> None:
    bench = grown(60)
    before = list(bench.segment.offset_index), list(bench.segment.time_index)
    bench.segment.rebuild_indexes(bench.interval)
    assert (list(bench.segment.offset_index), list(bench.segment.time_index)) == before


def test_rebuilt_indexes_of_a_damaged_segment_reach_the_damage_and_its_size_stays() -> None:
    bench = grown(60)
    size = bench.segment.size
    position = [place for place, _ in bench.segment.walk_headers()][40]
    flip(bench.disk, bench.segment.path, position + 16, 4)
    segment = bench.loaded()
    with pytest.raises(DamagedSegment):
        segment.rebuild_indexes(bench.interval)
    assert segment.size == size
    assert segment.find(BASE + 60) is not None
    assert all(entry.value < position for entry in segment.offset_index)


@given(kept=st.integers(0, 30), interval=st.sampled_from([0, 100, 4096]))
def test_a_truncated_segment_ends_and_grows_from_the_cut(kept: int, interval: int) -> None:
    bench = grown(30, interval)
    positions = [place for place, _ in bench.segment.walk_headers()] + [bench.segment.size]
    bench.segment.cut(positions[kept])
    bench.end = BASE + 3 * kept
    start = bench.segment.restart_indexes(bench.end)
    for position, span, _ in bench.segment.walk_spans(start, interval):
        bench.segment.note_span(position, span, interval)
    assert bench.segment.file.size() == bench.segment.size == positions[kept]
    for _ in range(5):
        bench.grow()
    fresh = Bench(interval)
    for _ in range(kept + 5):
        fresh.grow()
    assert bench.disk.read(bench.segment.path) == fresh.disk.read(fresh.segment.path)
    for offset in range(BASE, bench.end + 1):
        assert bench.segment.find(offset) == fresh.segment.find(offset)
    assert bench.segment.largest_timestamp == fresh.segment.largest_timestamp


def test_a_resting_segment_holds_no_descriptor_and_can_still_be_read() -> None:
    bench = grown()
    bench.segment.close_idle()
    assert bench.segment._file is bench.segment.offset_index._file is None
    assert bench.segment.find(BASE + 10) is not None
    bench.grow()
    assert bench.segment.find(bench.end - 1) is not None


def test_a_pinned_segment_keeps_its_file_open_until_the_last_user_is_done() -> None:
    bench = grown()
    segment, file = bench.segment, bench.segment.file
    segment.pin()
    segment.pin()
    segment.close_idle()
    retired = segment.retire()
    segment.close()
    assert retired
    assert all(name.endswith(".deleted") for name in retired)
    assert len(file.read(0, 10)) == 10
    segment.unpin()
    assert len(file.read(0, 10)) == 10
    segment.unpin()
    with pytest.raises(OSError, match="descriptor"):
        file.read(0, 10)


def test_a_retired_segment_writes_no_index() -> None:
    bench = grown()
    assert len(bench.segment.offset_index) > 5
    writes = bench.disk.calls["write"]
    retired = bench.segment.retire()
    assert bench.disk.calls["write"] == writes
    assert bench.disk.list("/d01") == sorted(name.removeprefix("/d01/") for name in retired)


# Lookups that skip batches


sizes = st.lists(st.sampled_from([10, 900, 4500, 9000, 20_000]), min_size=1, max_size=25)


@given(sizes=sizes, gap=st.integers(0, 2), interval=st.sampled_from([0, 4096, 8192]))
def test_batches_of_all_sizes_are_found_where_a_scan_finds_them(
    sizes: list[int], gap: int, interval: int
) -> None:
    """The next index entry may be the wanted batch or one behind it."""
    bench = Bench(interval)
    for size in sizes:
        bench.end += gap
        data = batch_of([bytes(size), b""], base_offset=bench.end).data
        position = bench.segment.size
        bench.segment.file.write([data], position)
        note(bench.segment, position, data, interval)
        bench.end += 2
    headers = list(bench.segment.walk_headers())
    for offset in range(BASE, bench.end + 1):
        wanted = next((place for place in headers if place[1].last_offset >= offset), None)
        assert bench.segment.find(offset) == wanted


def test_a_large_batch_is_found_with_one_read_of_its_header() -> None:
    bench = Bench(4096)
    for _ in range(20):
        bench.grow(count=1000)
    before = bench.disk.calls["read"]
    for offset in range(BASE + 5000, BASE + 15_000, 1000):
        found = bench.segment.find(offset)
        assert found is not None
        assert found[1].base_offset == offset
    assert bench.disk.calls["read"] - before == 10


@given(
    number=st.integers(0, 29), place=st.integers(0, 60), change=st.integers(1, 255), find=st.data()
)
def test_a_damaged_header_never_leads_into_the_middle_of_a_batch(
    number: int, place: int, change: int, find: st.DataObject
) -> None:
    bench = grown(30, 4096)
    starts = [position for position, _ in bench.segment.walk_headers()]
    damaged = starts[number] + place
    (was,) = bench.segment.file.read(damaged, 1)
    bench.segment.file.write([bytes((was ^ change,))], damaged)
    offset = find.draw(st.integers(BASE, bench.end - 1))
    try:
        found = bench.segment.find(offset)
    except (DamagedSegment, CorruptFile):
        assert starts[number] <= starts[(offset - BASE) // 3]
    else:
        assert found is not None
        assert found[0] in starts


def test_a_segment_is_filled_to_the_byte():
    assert roll(size_bytes=1000, incoming_bytes=100) is None
    assert roll(size_bytes=1000, incoming_bytes=101) == RollReason.SIZE


def test_an_expired_segment_rolls_unless_it_is_empty():
    assert roll(is_expired=True) == RollReason.TIME
    assert roll(size_bytes=0, is_expired=True) is None


def test_a_full_index_rolls():
    assert roll(is_index_full=True) == RollReason.INDEX


def test_an_offset_too_large_for_an_index_entry_rolls_even_an_empty_segment():
    assert roll(relative_offset=2**31 - 1) is None
    assert roll(relative_offset=2**31) == RollReason.OFFSET
    assert roll(size_bytes=0, relative_offset=2**31) == RollReason.OFFSET
    assert roll(size_bytes=0, relative_offset=-1) == RollReason.OFFSET


def test_an_empty_segment_takes_a_batch_larger_than_segment_bytes():
    assert roll(size_bytes=0, incoming_bytes=5000) is None


def test_a_segment_ages_by_the_timestamps_of_its_batches():
    assert waited_ms(first_timestamp_ms=500, created_ms=0, incoming_timestamp_ms=700, now_ms=9) == (
        200
    )


@pytest.mark.parametrize("first", [None, -1])
def test_a_segment_without_timestamps_ages_by_the_clock(first):
    assert waited_ms(first, created_ms=100, incoming_timestamp_ms=700, now_ms=150) == 50
