"""Recovery of a damaged `.log`: it is cut above the recovery point; below, nothing is lost."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from storage_damaged import (
    COUNT,
    END,
    SEGMENT,
    check_all_found,
    check_goes_on,
    fill,
    killed,
    last_log,
    opened,
    stopped,
)
from storage_world import CLICKS, World, append, batch_of, flip, numbered, overwrite

from kdist.records.batch import HEADER_SIZE, iter_headers, read_header
from kdist.storage.log import Log
from kdist.storage.names import Suffix
from kdist.storage.reading import read
from kdist.storage.scan import DamagedSegment

PAGE = Path(__file__).parents[3] / "docs/formats/recovery.md"
FIELDS = {  # of a batch header: position and size in bytes
    "base offset": (0, 8),
    "length": (8, 4),
    "leader epoch": (12, 4),
    "magic": (16, 1),
    "CRC": (17, 4),
    "attributes": (21, 2),
    "last offset delta": (23, 4),
    "base timestamp": (27, 8),
    "max timestamp": (35, 8),
    "producer id": (43, 8),
    "producer epoch": (51, 2),
    "base sequence": (53, 4),
    "record count": (57, 4),
}


# A torn or damaged tail, behind the recovery point


def test_a_tail_torn_at_any_byte_is_cut_back_to_whole_batches() -> None:
    world = killed()
    content = world.disk.read(last_log(world))
    size = read_header(content).size
    for kept in range(len(content) - size, len(content)):
        world = killed()
        overwrite(world.disk, last_log(world), content[:kept])
        log = opened(world)
        check_all_found(log, END - COUNT)
        assert world.metrics.truncated_bytes == kept - (len(content) - size)
    check_goes_on(world, log)


@pytest.mark.parametrize("zeros", [1, 11, 12, 60, 61, 62, 4096, 100_000])
def test_zeros_at_the_tail_are_cut(zeros: int) -> None:
    world = killed()
    content = world.disk.read(last_log(world))
    overwrite(world.disk, last_log(world), content + bytes(zeros))
    log = opened(world)
    check_all_found(log)
    assert world.disk.size(last_log(world)) == len(content)
    check_goes_on(world, log)


@pytest.mark.parametrize("size", [1, 12, 61, 200, 5000])
@pytest.mark.parametrize("seed", range(5))
def test_garbage_at_the_tail_is_cut(seed: int, size: int) -> None:
    world = killed()
    content = world.disk.read(last_log(world))
    overwrite(world.disk, last_log(world), content + random.Random(seed).randbytes(size))
    check_all_found(opened(world))


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_a_batch_of_another_magic_is_cut(magic: int) -> None:
    world = killed()
    batch = bytearray(batch_of(numbered(END, 2), base_offset=END).data)
    batch[16] = magic
    overwrite(world.disk, last_log(world), world.disk.read(last_log(world)) + batch)
    check_all_found(opened(world))


def test_an_old_batch_that_reappears_behind_the_end_is_cut() -> None:
    """A block that the filesystem reuses may hold a valid batch of an earlier log."""
    world = killed()
    content = world.disk.read(last_log(world))
    size = read_header(content).size
    overwrite(world.disk, last_log(world), content + content[:size])
    check_all_found(opened(world))


def flipped(field: str, bit: int) -> tuple[World, Log]:
    """The log found after a bit of the header of the last segment's fifth batch was flipped."""
    world = killed()
    start, _ = FIELDS[field]
    positions = [position for position, _ in iter_headers(world.disk.read(last_log(world)))]
    flip(world.disk, last_log(world), positions[4] + start + bit // 8, 1 << bit % 8)
    return world, opened(world)


def bits_of(*fields: str) -> list[tuple[str, int]]:
    return [(field, bit) for field in fields for bit in range(8 * FIELDS[field][1])]


@pytest.mark.parametrize(
    "field",
    [  # each bit is a start of its own, so wide fields take long
        pytest.param(field, marks=pytest.mark.slow) if width > 4 else field
        for field, (_, width) in FIELDS.items()
        if field not in ("base offset", "leader epoch")
    ],
)
def test_any_flipped_bit_of_a_batch_cuts_the_log_in_front_of_it(field: str) -> None:
    for _, bit in bits_of(field):
        world, log = flipped(field, bit)
        check_all_found(log, 3 * SEGMENT + 4 * COUNT)
    check_goes_on(world, log)


def test_a_base_offset_that_does_not_follow_cuts_the_log_in_front_of_its_batch() -> None:
    """It is outside the CRC, but a log that is never compacted has no gaps."""
    for _, bit in bits_of("base offset"):
        world, log = flipped("base offset", bit)
        check_all_found(log, 3 * SEGMENT + 4 * COUNT)
    check_goes_on(world, log)


def test_a_flipped_leader_epoch_loses_no_record() -> None:
    """It is outside the CRC: an epoch that is not the one before goes undetected."""
    for _, bit in bits_of("leader epoch"):
        _, log = flipped("leader epoch", bit)
        check_all_found(log)


def test_a_flipped_bit_of_a_record_cuts_the_log_in_front_of_its_batch() -> None:
    for place in range(HEADER_SIZE, HEADER_SIZE + 20):
        world = killed()
        flip(world.disk, last_log(world), place, 1 << place % 8)
        check_all_found(opened(world), 3 * SEGMENT)


def test_segments_behind_a_damaged_batch_are_removed() -> None:
    world = World()
    log = world.log(index_interval_bytes=150)
    fill(world, log, END)
    world.kill()  # nothing was ever flushed: the recovery point is 0
    flip(world.disk, world.path_of(SEGMENT, Suffix.LOG), 100)
    log = opened(world)
    check_all_found(log, SEGMENT)
    assert [segment.base_offset for segment in log.segments] == [0, SEGMENT]
    check_goes_on(world, log)


def test_segments_behind_a_missing_one_are_removed() -> None:
    world = World()
    log = world.log(index_interval_bytes=150)
    fill(world, log, END)
    world.kill()
    world.disk.remove(world.path_of(SEGMENT, Suffix.LOG))
    check_all_found(opened(world), SEGMENT)


# Damage below the recovery point


@pytest.mark.parametrize("make", [killed, stopped])
@pytest.mark.parametrize("place", [8, 16, 70])
def test_damage_to_flushed_records_prevents_neither_the_start_nor_other_reads(
    make: Callable[[], World], place: int
) -> None:
    world = make()
    path = world.path_of(SEGMENT, Suffix.LOG)
    flip(world.disk, path, place, 0x40)
    log = opened(world)
    assert (log.start_offset, log.end_offset) == (0, END)
    assert world.disk.size(path) == log.segments[1].size
    for offset in (0, SEGMENT - 1, 2 * SEGMENT, END - 1):
        piece = read(log, offset, 1)
        assert piece is not None
        piece.release()
    if place < HEADER_SIZE:
        with pytest.raises(DamagedSegment) as caught:
            read(log, SEGMENT + 1, 1)
        assert (caught.value.path, caught.value.position) == (path, 0)
    else:  # the records' own bytes are for their reader to check
        piece = read(log, SEGMENT + 1, 1)
        assert piece is not None
        piece.release()


@pytest.mark.parametrize("make", [killed, stopped])
@pytest.mark.parametrize(
    "lost", ["leader-epoch-checkpoint", "snapshot", "index", "timeindex", "all"]
)
def test_damage_to_flushed_records_prevents_no_start_even_where_more_is_lost(
    make: Callable[[], World], lost: str
) -> None:
    world = make()
    path = world.path_of(SEGMENT, Suffix.LOG)
    size = world.disk.size(path)
    flip(world.disk, path, 300, 0xFF)
    for position in range(8, 17):
        flip(world.disk, path, position, 0x55)
    for name in world.names():
        if name.endswith(lost) or (lost == "all" and not name.endswith((".log", "metadata"))):
            world.disk.remove(f"{world.path}/{CLICKS}/{name}")
    log = opened(world)
    assert (log.start_offset, log.end_offset) == (0, END)
    assert (world.disk.size(path), log.segments[1].size) == (size, size)
    for offset in (0, 2 * SEGMENT, END - 1):
        piece = read(log, offset, 1)
        assert piece is not None
        piece.release()


@pytest.mark.parametrize("place", [8, 16, 57])
def test_damage_to_the_active_segments_first_batch_prevents_no_append(place: int) -> None:
    world = stopped()
    flip(world.disk, last_log(world), place, 0x40)
    log = opened(world)
    for end in range(END + COUNT, END + 4 * COUNT, COUNT):
        append(world, log, COUNT)
        assert log.end_offset == end
    world.restart()
    log = world.log()
    assert log.end_offset == END + 3 * COUNT
    piece = read(log, END, 1)
    assert piece is not None
    assert read_header(piece.read()).base_offset == END
    piece.release()


@pytest.mark.parametrize("keep_index", [True, False])
def test_damage_below_the_recovery_point_cuts_no_flushed_records_behind_it(
    keep_index: bool,
) -> None:
    world = World()
    log = world.log(index_interval_bytes=150)
    fill(world, log, SEGMENT)
    world.flush(log)
    world.wait(world.directory.saver.request)
    log.close_idle()
    world.kill()
    flip(world.disk, world.path_of(0, Suffix.LOG), 100)
    if not keep_index:
        world.disk.remove(world.path_of(0, Suffix.INDEX))
    log = opened(world)
    assert log.end_offset == SEGMENT


def test_a_clean_shutdown_marker_beside_a_torn_log_is_not_trusted() -> None:
    world = stopped()
    content = world.disk.read(last_log(world))
    overwrite(world.disk, last_log(world), content[:-5])
    log = opened(world)
    check_all_found(log, END - COUNT)
    check_goes_on(world, log)


def test_every_row_of_the_recovery_page_names_an_existing_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_storage_*.py"))
    rows = [row for row in PAGE.read_text().splitlines() if row.startswith("|") and "`test_" in row]
    named = {name for row in rows for name in re.findall(r"`(test_\w+)`", row)}
    assert len(rows) > 35
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []
