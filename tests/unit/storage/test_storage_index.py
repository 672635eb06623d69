"""The sparse indexes in memory and in the file; look-ups by timestamp, in steps."""

from __future__ import annotations

import errno
import os
import random
import struct
import tracemalloc
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_world import World, append, batch_of, numbered, overwrite

from kdist.errors import DiskFailed, DiskFull, Error
from kdist.runtime.disk import Disk
from kdist.runtime.files import File
from kdist.runtime.steps import Steps, run_steps
from kdist.storage.index import OffsetIndex, SparseIndex, TimeIndex
from kdist.storage.log import Log
from kdist.storage.names import Suffix
from kdist.storage.time_lookup import TimestampedOffset, finding_by_timestamp, finding_newest
from kdist.testing.simulated_disk import SimulatedDisk
from tests.examples import examples
from tests.refusals import refused

KINDS = [OffsetIndex, TimeIndex]
NAMES = {OffsetIndex: "/d01/0.index", TimeIndex: "/d01/0.timeindex"}


def disk() -> SimulatedDisk:
    return World().disk


def new(kind: type[SparseIndex], files: SimulatedDisk | None = None) -> SparseIndex:
    return kind(files or disk(), NAMES[kind])


keys = st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=1200).map(sorted)

START_MS = 1_700_000_000_000
Lookup = Steps[TimestampedOffset | None]


def make_cold(world: World, log: Log) -> None:
    """Nothing of the log is in the page cache any more."""
    for segment in log.segments:
        segment.close_idle()
        for path in segment.paths:
            if world.disk.exists(path):
                file = world.disk.open(path)
                file._content.cold.update(range(1000))  # type: ignore[attr-defined]
                file.close()


def run(
    world: World, steps: Lookup, between: Callable[[int], None] = lambda _: None
) -> TimestampedOffset | None:
    """The result; on the loop nothing was read but from the page cache."""
    number = 0
    while True:
        reads = world.disk.calls["read"]
        try:
            work = next(steps)
        except StopIteration as end:
            assert world.disk.calls["read"] == reads
            result: TimestampedOffset | None = end.value
            return result
        assert world.disk.calls["read"] == reads
        if work is not None:
            work()
        number += 1
        between(number)


def run_all(
    steps: Lookup, between: Callable[[int], None] = lambda _: None
) -> TimestampedOffset | None:
    """The result, wherever it was read."""
    number = 0
    while True:
        try:
            work = next(steps)
        except StopIteration as end:
            result: TimestampedOffset | None = end.value
            return result
        if work is not None:
            work()
        number += 1
        between(number)


def filled(world: World, count: int = 60) -> Log:
    """A batch of a record each, a millisecond apart, in several segments."""
    log = world.log(segment_bytes=500, index_interval_bytes=100)
    for number in range(count):
        append(world, log, 1, timestamp=START_MS + number)
    world.flush(log)
    return log


@pytest.mark.parametrize("kind", KINDS)
@given(keys=keys, asked=st.lists(st.integers(-1, 2**31), max_size=20), written=st.integers(0, 2000))
def test_a_lookup_returns_the_entry_with_the_largest_key_not_above(
    kind: type[SparseIndex], keys: list[int], asked: list[int], written: int
) -> None:
    """Wherever the boundary is between the entries in the file and those in memory."""
    index = new(kind)
    for number, key in enumerate(keys):
        index.append(key, number)
        if number == written:
            index.write()
    assert len(index) == len(keys)
    assert list(index) == list(zip(keys, range(len(keys)), strict=True))
    for key in [*asked, *keys[:5], *keys[-5:]]:
        number = bisect_right(keys, key) - 1
        assert index.floor_number(key) == number
        assert index.floor(key) == (None if number < 0 else (keys[number], number))


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_index_finds_nothing(kind: type[SparseIndex]) -> None:
    index = new(kind)
    assert len(index) == index.size() == 0
    assert index.floor(5) is index.last() is None
    assert list(index) == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_whose_key_is_not_larger_is_skipped(kind: type[SparseIndex]) -> None:
    index = new(kind)
    for key in (5, 5, 4, 6):
        index.append(key, 1)
    assert [entry.key for entry in index] == [5, 6]


def test_entries_are_big_endian_as_in_kafka() -> None:
    files = disk()
    offsets, times = new(OffsetIndex, files), new(TimeIndex, files)
    offsets.append(7, 4711)
    times.append(1_700_000_000_000, 7)
    offsets.write_all()
    times.write_all()
    assert files.read(offsets.path) == struct.pack(">ii", 7, 4711)
    assert files.read(times.path) == struct.pack(">qi", 1_700_000_000_000, 7)


@pytest.mark.parametrize("kind", KINDS)
def test_entries_are_written_by_the_page(kind: type[SparseIndex]) -> None:
    files = disk()
    index = new(kind, files)
    for key in range(2000):
        index.append(key, key)
    assert files.calls["write"] == 2000 * kind.ENTRY.size // 4096
    index.close()
    assert [tuple(entry) for entry in kind.load(files, index.path)] == [(n, n) for n in range(2000)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_is_created_before_there_is_an_entry_to_write(kind: type[SparseIndex]) -> None:
    files = disk()
    index = new(kind, files)
    index.append(1, 1)
    index.write()
    assert files.exists(index.path)
    empty = kind(files, "/d01/1.index")
    empty.close()
    assert not files.exists(empty.path)
    empty.write_all()
    assert files.exists(empty.path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_index_reopens_its_file_when_used(kind: type[SparseIndex]) -> None:
    index = new(kind)
    index.append(1, 10)
    index.close()
    assert index.floor(3) == (1, 10)
    index.append(4, 40)
    index.close()
    assert list(index) == [(1, 10), (4, 40)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("written", [0, 3, 10])
@pytest.mark.parametrize("count", [0, 2, 5, 10])
def test_keeping_the_first_entries_drops_the_others_from_the_file_too(
    kind: type[SparseIndex], written: int, count: int
) -> None:
    files = disk()
    index = new(kind, files)
    for key in range(10):
        if key == written:
            index.write()
        index.append(key, key)
    index.keep(count)
    assert [entry.key for entry in index] == list(range(count))
    last = index.last()
    assert (last.key if last else -1) == count - 1
    index.append(100, 100)
    index.close()
    assert [entry.key for entry in kind.load(files, index.path)] == [*range(count), 100]


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_keeps_entries_in_memory_until_there_is_room(kind: type[SparseIndex]) -> None:
    files = disk()
    index = new(kind, files)
    files.fail(errno.ENOSPC, when=lambda call: call.name in ("write", "create"))
    for key in range(2000):
        index.append(key, key)
    index.close()
    assert index.floor(1500) == (1500, 1500)
    files.heal()
    index.append(2000, 2000)
    index.write_all()
    index.close()
    assert [entry.key for entry in kind.load(files, index.path)] == list(range(2001))


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_file_is_an_empty_index_that_knows_it_is_missing(kind: type[SparseIndex]) -> None:
    index = kind.load(disk(), NAMES[kind])
    assert (len(index), index.is_missing) == (0, True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_ends_inside_an_entry_or_points_beyond_the_log_is_faulty(
    kind: type[SparseIndex],
) -> None:
    files, path = disk(), NAMES[kind]
    sound = kind.ENTRY.pack(1, 10) + kind.ENTRY.pack(2, 50)
    for content, value_max, fault in (
        (sound, 50, None),
        (b"", 50, None),
        (sound, 49, "beyond the log"),
        (sound[:-1], 50, "ends inside an entry"),
        (sound + kind.ENTRY.pack(-1, 3), 50, "beyond the log"),
        (sound + kind.ENTRY.pack(3, -1), 50, "beyond the log"),
    ):
        overwrite(files, path, content)
        found = kind.load(files, path).fault(value_max)
        assert (found is None) == (fault is None)
        assert fault is None or (found is not None and fault in found and path in found)


@given(entries=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6))
def test_an_index_counts_as_sorted_as_far_as_keys_grow_and_values_do_not_shrink(
    entries: list[tuple[int, int]],
) -> None:
    files, path = disk(), NAMES[OffsetIndex]
    overwrite(files, path, b"".join(OffsetIndex.ENTRY.pack(*entry) for entry in entries))
    wanted = 0
    previous = (-1, -1)
    for entry in entries:
        if not (entry[0] > previous[0] and entry[1] >= previous[1] and any(entry)):
            break
        previous, wanted = entry, wanted + 1
    assert OffsetIndex.load(files, path).sorted_count() == wanted


def test_a_large_index_is_loaded_block_by_block_as_far_as_it_is_sorted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "0.index"
    path.write_bytes(OffsetIndex.ENTRY.pack(1, 100))
    os.truncate(path, 2**40)
    index = OffsetIndex.load(Disk(), str(path))
    tracemalloc.start()
    try:
        assert index.sorted_count() == 1
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
        index.close()


def test_the_same_entries_come_back_from_the_real_disk(tmp_path: Path) -> None:
    files = Disk()
    index = TimeIndex(files, f"{tmp_path}/0.timeindex")
    for key in range(1000):
        index.append(key, key)
    index.close()
    again = TimeIndex.load(files, index.path)
    assert again.floor(777) == (777, 777)
    assert len(again) == 1000
    again.close()


# --- cached blocks --------------------------------------------------------------------------------

LARGE = 5000  # entries: several blocks


def large(kind: type[SparseIndex], files: SimulatedDisk) -> SparseIndex:
    index = new(kind, files)
    for number in range(LARGE):
        index.append(2 * number, number)
    index.write()
    return index


@pytest.mark.parametrize("kind", KINDS)
def test_a_lookup_does_not_depend_on_earlier_ones(
    kind: type[SparseIndex],
) -> None:
    index, rng = large(kind, disk()), random.Random(1)
    for _ in range(3000):
        number = rng.choice([rng.randrange(-1, LARGE + 1), 1023, 1024, 2047, LARGE - 1])
        key = 2 * number + rng.randrange(2)
        assert index.floor_number(key) == max(-1, min(number, LARGE - 1))


@pytest.mark.parametrize("kind", KINDS)
def test_sequential_lookups_need_few_reads(kind: type[SparseIndex]) -> None:
    files = disk()
    index = large(kind, files)
    before = files.calls["read"]
    for key in range(2 * LARGE):
        index.floor(key)
    assert files.calls["read"] - before <= 60


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_readers_at_different_places_keep_their_blocks(kind: type[SparseIndex]) -> None:
    files = disk()
    index, places = large(kind, files), (3000, 0, 7000, 5000)
    for place in places:
        index.floor(place)
    before = files.calls["read"]
    for step in range(0, 100, 2):
        assert [index.around(place + step) for place in places] == [
            ((place + step, place // 2 + step // 2), (place + step + 2, place // 2 + step // 2 + 1))
            for place in places
        ]
    assert files.calls["read"] == before
    for place in range(0, 2 * LARGE, 100):
        index.floor(place)
    assert len(index._blocks) <= 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_cached_block_does_not_hide_later_writes_or_cuts(
    kind: type[SparseIndex],
) -> None:
    index = large(kind, disk())
    assert index.floor_number(2 * LARGE) == LARGE - 1
    index.append(2 * LARGE, 1)
    index.write()
    assert index.floor_number(2 * LARGE) == LARGE
    index.keep(10)
    assert index.floor_number(2 * LARGE) == 9
    index.append(100, 1)
    index.write()
    assert index.floor(150) == (100, 1)


@examples(60)
@given(
    stamps=st.lists(st.lists(st.integers(-3, 30), min_size=1, max_size=4), min_size=1, max_size=25),
    interval=st.sampled_from([0, 100, 4096]),
    start=st.integers(0, 60),
    evicted=st.sets(st.integers(0, 30)),
)
def test_a_cold_log_is_looked_up_as_a_cached_one_and_read_by_threads_alone(
    stamps: list[list[int]], interval: int, start: int, evicted: set[int]
) -> None:
    """Whatever is evicted again between the steps, but then it is read on the loop."""
    world = World()
    log = world.log(segment_bytes=500, index_interval_bytes=interval)
    times: list[int] = []
    for own in stamps:
        at = [START_MS + time for time in own]
        times += at
        values = numbered(log.end_offset, len(at))
        log.append_as_leader([batch_of(values, timestamps=at)], 0, START_MS)
    world.flush(log)
    world.delete_records(log, min(start, log.end_offset))
    world.restart()
    log = world.log()
    assert [segment.largest_timestamp for segment in log.segments]  # known since the start
    left = list(enumerate(times))[log.start_offset :]
    for timestamp in (START_MS, START_MS + 13, START_MS + 31):
        make_cold(world, log)
        found = run(world, finding_by_timestamp(log, timestamp))
        assert (found and found[:2]) == next((each for each in left if each[1] >= timestamp), None)
    make_cold(world, log)
    found = run(world, finding_newest(log))
    newest = max((at for _, at in left), default=-1)
    assert (found and found[:2]) == next((each for each in left if each[1] == newest), None)
    found = run_all(
        finding_by_timestamp(log, START_MS + 13),
        lambda number: make_cold(world, log) if number in evicted else None,
    )
    assert (found and found[:2]) == next((o for o in left if o[1] >= START_MS + 13), None)


def test_a_page_that_is_evicted_again_and_again_is_read_in_the_end() -> None:
    world = World()
    log = filled(world)
    make_cold(world, log)
    steps = finding_by_timestamp(log, START_MS + 33)
    assert run_all(steps, lambda _: make_cold(world, log)) == (33, START_MS + 33, 0)


def test_a_segment_that_retention_deletes_between_two_steps_is_done_without() -> None:
    world = World()
    log = filled(world)
    make_cold(world, log)

    def delete(number: int) -> None:
        if number == 1:
            world.delete_records(log, log.segments[3].base_offset)
            world.settle(120_000)

    found = run(world, finding_by_timestamp(log, START_MS), delete)
    assert found == (log.start_offset, START_MS + log.start_offset, 0)


def test_a_log_that_is_cut_between_two_steps_is_looked_up_anew() -> None:
    world = World()
    log = filled(world)
    for cut in (20, 21):
        make_cold(world, log)
        found = run(
            world,
            finding_by_timestamp(log, START_MS + 40 - cut),
            lambda number, cut=cut: world.truncate(log, cut) if number == 1 else None,  # type: ignore[misc]
        )
        assert found is None or found.offset == 40 - cut


def test_a_look_up_while_the_log_is_being_cut_is_refused() -> None:
    world = World()
    log = filled(world)
    make_cold(world, log)
    steps = finding_by_timestamp(log, START_MS + 55)
    work = next(steps)
    assert work is not None
    work()
    world.directory.trimmer.truncate(log, 20, lambda _error: None)
    world.tasks.run_until(lambda: log.is_truncating, 100)
    for segment in log.segments:
        world.disk.open(segment.path).truncate(10)
    with refused(Error.NOT_LEADER_OR_FOLLOWER):
        run(world, steps)


def opened_by(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The files that are opened to be read from now on."""
    files: list[Any] = []
    open_readonly = disk.open_readonly

    def opening(path: str) -> File:
        files.append(open_readonly(path))
        return cast(File, files[-1])

    monkeypatch.setattr(disk, "open_readonly", opening)
    return files


def test_a_disk_that_fails_under_the_thread_is_told_of_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    log = filled(world)
    make_cold(world, log)
    files = opened_by(world.disk, monkeypatch)
    steps = finding_by_timestamp(log, START_MS + 33)
    assert next(steps) is not None
    with pytest.raises(DiskFailed):
        steps.throw(DiskFailed("/d01", OSError()))
    assert files
    assert not any(each._is_open for each in files)


@pytest.mark.parametrize("opens", [1, 2])
def test_a_look_up_without_a_descriptor_for_all_of_a_segments_files_leaves_none_open(
    monkeypatch: pytest.MonkeyPatch, opens: int
) -> None:
    world = World()
    log = filled(world)
    files = opened_by(world.disk, monkeypatch)
    world.disk.fail(errno.EMFILE, after_calls=opens, when=lambda call: call.name == "open_readonly")
    with pytest.raises(DiskFull):
        run_steps(finding_by_timestamp(log, START_MS + 33))
    assert len(files) == opens
    assert not any(each._is_open for each in files)


def test_an_index_that_misleads_is_rebuilt_once() -> None:
    world = World()
    log = filled(world)
    world.restart()
    log = world.log()
    segment = log.segments[1]
    path = world.path_of(segment.base_offset, Suffix.TIME_INDEX)
    content = bytearray(world.disk.read(path))
    entry = content[:12]
    content[:12] = entry[:8] + (int.from_bytes(entry[8:], "big") + 1).to_bytes(4, "big")
    world.disk.replace(path, bytes(content))
    timestamp = START_MS + segment.base_offset + 1
    found = run_all(finding_by_timestamp(log, timestamp))
    assert found == (segment.base_offset + 1, timestamp, 0)
