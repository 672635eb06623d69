"""A start scans what it must, and rebuilds wrong indexes, epochs or snapshots from the log."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from storage_damaged import END, SEGMENT, check_all_found, check_goes_on, killed, opened, stopped
from storage_world import (
    CLICKS,
    START_MS,
    World,
    append,
    batch_of,
    expected_lines,
    lines,
    numbered,
    overwrite,
)

from kdist.errors import DiskFailed
from kdist.records.batch import HEADER_SIZE
from kdist.runtime.files import File
from kdist.storage.names import PARTITION_METADATA, Suffix, segment_name
from kdist.storage.scan import DamagedSegment, walk_batches, walk_headers
from tests.examples import examples

# Indexes


def garbage(content: bytes) -> bytes:
    return random.Random(len(content)).randbytes(len(content))


def shuffled(content: bytes) -> bytes:
    return content[len(content) // 2 :] + content[: len(content) // 2]


def odd(content: bytes) -> bytes:
    return content[:-3]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut inside an entry": odd,
    "garbage": garbage,
    "long garbage": lambda content: random.Random(1).randbytes(24_000),
    "zeros as long as it was": lambda content: bytes(len(content)),
    "preallocated": lambda content: content + bytes(2400),
    "all zeros": lambda content: bytes(2400),
    "longer than its log": lambda content: (
        content + struct.pack(">iiqi", 1 << 20, 1 << 20, 1 << 50, 1 << 20)
    ),
    "out of order": shuffled,
}


def batches(counts: list[int], size: int = 10) -> list[bytes]:
    """Batches of so many records each, with dense offsets."""
    made, offset = [], 0
    for count in counts:
        batch = batch_of(numbered(offset, count, size), base_offset=offset, timestamp=START_MS)
        made.append(bytes(batch.data))
        offset += count
    return made


def file_of(content: bytes) -> File:
    file = World().disk.create("/d01/0.log")
    file.write([content], 0)
    return file


def damage_of(content: bytes, *, end: int | None = None, base_offset: int = 0) -> DamagedSegment:
    with pytest.raises(DamagedSegment) as caught:
        list(
            walk_batches(
                file_of(content), 0, len(content) if end is None else end, base_offset=base_offset
            )
        )
    return caught.value


@pytest.mark.parametrize("make", [killed, stopped])
@pytest.mark.parametrize("base_offset", [0, SEGMENT, 3 * SEGMENT])
@pytest.mark.parametrize("suffix", [Suffix.INDEX, Suffix.TIME_INDEX])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_does_not_mislead_lookups(
    damage: str, suffix: Suffix, base_offset: int, make: Callable[[], World]
) -> None:
    world = make()
    path = world.path_of(base_offset, suffix)
    content = world.disk.read(path) if world.disk.exists(path) else b""
    overwrite(world.disk, path, DAMAGES[damage](content))
    log = opened(world)
    check_all_found(log)
    check_goes_on(world, log)


@pytest.mark.parametrize("suffix", [Suffix.INDEX, Suffix.TIME_INDEX])
@pytest.mark.parametrize("size", [2400, 2401])
def test_index_entries_of_an_empty_log_are_removed(size: int, suffix: Suffix) -> None:
    world = World()
    log = world.log(index_interval_bytes=0)
    world.settle(2000)
    world.stop()
    path = f"{log.directory}/{segment_name(0, suffix)}"
    overwrite(world.disk, path, random.Random(1).randbytes(size))
    world.open()
    log = world.log()
    for _ in range(5):
        append(world, log, 3)
    assert (len(log.active.offset_index), len(log.active.time_index)) == (4, 1)
    assert lines(log) == expected_lines(15)


@pytest.mark.parametrize("make", [killed, stopped])
def test_an_offset_index_that_lost_whole_entries_does_not_mislead_lookups(
    make: Callable[[], World],
) -> None:
    world = make()
    path = world.path_of(SEGMENT, Suffix.INDEX)
    overwrite(world.disk, path, world.disk.read(path)[:16])
    check_all_found(opened(world))


def test_only_verify_detects_a_time_index_that_lost_whole_entries() -> None:
    """It looks like the index of a log whose later records are older. No power loss leaves it."""
    world = stopped()
    path = world.path_of(SEGMENT, Suffix.TIME_INDEX)
    overwrite(world.disk, path, world.disk.read(path)[:24])
    log = opened(world)
    assert lines(log) == expected_lines(END)
    assert log.segments[1].largest_timestamp[0] < log.segments[2].largest_timestamp[0]
    rebuilt = log.segments[1]
    rebuilt.rebuild_indexes(log.settings.index_interval_bytes)
    check_all_found(log)


@pytest.mark.parametrize("make", [killed, stopped])
@pytest.mark.parametrize(
    "suffixes", [[Suffix.INDEX], [Suffix.TIME_INDEX], [Suffix.INDEX, Suffix.TIME_INDEX]]
)
def test_missing_indexes_are_rebuilt_and_stay_right(
    suffixes: list[Suffix], make: Callable[[], World]
) -> None:
    world = make()
    for name in world.names():
        if any(name.endswith(suffix) for suffix in suffixes):
            world.disk.remove(f"{world.path}/{CLICKS}/{name}")
    check_all_found(opened(world))
    world.stop()
    check_all_found(opened(world))  # also what was written of them at the stop
    world.kill()
    check_all_found(opened(world))


@pytest.mark.slow
def test_indexes_whose_rebuild_was_interrupted_are_not_left_incomplete() -> None:
    """A start that is killed there leaves in the file what had reached the page cache."""
    n, is_through = 0, False
    while not is_through:
        world = World(seed=n)
        log = world.log(index_interval_bytes=0)
        for _ in range(700):  # more entries than wait in memory to be written
            world.clock.advance_ms(1)
            append(world, log)
        newest_ms = world.clock.now_ms()
        log.roll(newest_ms)
        append(world, log)  # so that a start after a kill takes the first segment as it is
        world.stop()
        for suffix in (Suffix.INDEX, Suffix.TIME_INDEX):
            world.disk.remove(world.path_of(0, suffix))
        world.disk.fail(after_calls=n, forever=False)
        try:
            world.open()
            is_through = True
        except DiskFailed:
            log = world.open().logs[CLICKS]
            assert log.segments[0].largest_timestamp == (newest_ms, 699)
            assert len(log.segments[0].offset_index) == 699
        n += 1
    assert n > 60


@pytest.mark.parametrize("make", [killed, stopped])
@pytest.mark.parametrize("suffix", [Suffix.INDEX, Suffix.TIME_INDEX])
@pytest.mark.parametrize("other", [0, 2 * SEGMENT])
def test_another_segments_index_does_not_mislead_lookups(
    other: int, suffix: Suffix, make: Callable[[], World]
) -> None:
    world = make()
    stray = world.disk.read(world.path_of(other, suffix))
    overwrite(world.disk, world.path_of(SEGMENT, suffix), stray)
    log = opened(world)
    check_all_found(log)


@examples(60, deadline=None)
@given(
    is_clean=st.booleans(),
    suffix=st.sampled_from([Suffix.INDEX, Suffix.TIME_INDEX]),
    number=st.integers(0, 3),
    content=st.binary(max_size=120),
    keep=st.integers(0, 60),
)
def test_lookups_are_right_whatever_an_index_holds(
    is_clean: bool, suffix: Suffix, number: int, content: bytes, keep: int
) -> None:
    world = stopped() if is_clean else killed()
    path = world.path_of(number * SEGMENT, suffix)
    before = world.disk.read(path) if world.disk.exists(path) else b""
    # An index that only lost whole entries at its end: see the test above.
    assume(suffix is Suffix.INDEX or content or keep >= len(before))
    overwrite(world.disk, path, before[:keep] + content)
    check_all_found(opened(world))


# Other files in a partition's directory


@pytest.mark.parametrize("content", [None, b"", b"0\n1\n0 0", bytes(200), b"7\n0\n", b"\xff\xfe"])
@pytest.mark.parametrize("make", [killed, stopped])
def test_missing_or_damaged_leader_epochs_are_rebuilt_from_the_log(
    make: Callable[[], World], content: bytes | None
) -> None:
    world = make()
    path = f"{world.path}/{CLICKS}/leader-epoch-checkpoint"
    if content is None:
        world.disk.remove(path)
    else:
        overwrite(world.disk, path, content)
    log = opened(world)
    check_all_found(log)
    assert [tuple(entry) for entry in log.epochs.entries] == [(0, 0)]


@pytest.mark.parametrize("content", [None, b"", bytes(100), b"\0\1garbage that is no snapshot"])
@pytest.mark.parametrize("is_clean", [False, True])
def test_missing_or_damaged_producer_snapshots_are_rebuilt_from_the_log(
    content: bytes | None, is_clean: bool
) -> None:
    world = World()
    log = world.log(segment_bytes=400)
    for number in range(8):
        append(world, log, 3, producer_id=5, producer_epoch=1, base_sequence=3 * number)
    world.flush(log)
    before = log.producers.producer(5)
    world.stop() if is_clean else world.kill()
    for name in [name for name in world.names() if name.endswith(".snapshot")]:
        path = f"{world.path}/{CLICKS}/{name}"
        world.disk.remove(path)
        if content is not None:
            overwrite(world.disk, path, content)
    log = opened(world)
    after = log.producers.producer(5)
    assert before is not None
    assert after is not None
    assert after.batches[-1] == before.batches[-1]
    again = append(world, log, 3, producer_id=5, producer_epoch=1, base_sequence=21)
    assert again.duplicate is not None


def test_leftovers_of_an_interrupted_run_are_removed() -> None:
    world = killed()
    rubbish = [
        f"{0:020d}.log.deleted",
        f"{7:020d}.index.deleted",
        f"{0:020d}.log.cleaned",
        "leader-epoch-checkpoint.tmp",
        f"{7:020d}.index",  # of no log
        f"{7:020d}.timeindex",
        f"{7:020d}.snapshot",  # of no segment's start
    ]
    for name in rubbish:
        overwrite(world.disk, f"{world.path}/{CLICKS}/{name}", b"rubbish")
    check_all_found(opened(world))
    assert not set(rubbish) & set(world.names())


def test_unknown_files_are_left_alone() -> None:
    world = killed()
    strangers = ["README", "lost+found", "123.log", f"{0:020d}.log.bak"]
    for name in strangers:
        overwrite(world.disk, f"{world.path}/{CLICKS}/{name}", b"theirs")
    check_all_found(opened(world))
    assert set(strangers) <= set(world.names())


def test_a_partition_directory_without_a_segment_is_an_empty_log() -> None:
    world = killed()
    for name in {*world.names()} - {PARTITION_METADATA}:
        world.disk.remove(f"{world.path}/{CLICKS}/{name}")
    log = opened(world)
    assert (log.start_offset, log.end_offset) == (0, 0)
    check_goes_on(world, log)


@given(
    counts=st.lists(st.integers(1, 30), max_size=20),
    size=st.integers(10, 800),
    read_bytes=st.sampled_from([61, 64, 200, 4096]),
)
def test_both_scans_yield_every_batch_in_order(
    counts: list[int], size: int, read_bytes: int
) -> None:
    made = batches(counts, size)
    content = b"".join(made)
    file = file_of(content)
    scanned = list(walk_batches(file, 0, len(content), base_offset=0))
    headers = list(walk_headers(file, 0, len(content), base_offset=0, read_bytes=read_bytes))
    assert [bytes(batch.data) for batch in scanned] == made
    assert [(batch.position, batch.header) for batch in scanned] == headers
    assert [position for position, _ in headers] == [
        sum(map(len, made[:number])) for number in range(len(made))
    ]


def test_a_scan_may_begin_and_end_at_any_batch() -> None:
    made = batches([2, 3, 4, 5])
    file = file_of(b"".join(made))
    start, end = len(made[0]), sum(map(len, made[:3]))
    assert [header.base_offset for _, header in walk_headers(file, start, end, base_offset=0)] == [
        2,
        5,
    ]
    assert [
        batch.header.base_offset for batch in walk_batches(file, start, end, base_offset=0)
    ] == [2, 5]
    assert list(walk_batches(file, end, end, base_offset=0)) == []


def test_a_batch_larger_than_one_read_is_scanned_whole() -> None:
    (made,) = batches([1], 1_000_000)
    (batch,) = walk_batches(file_of(made), 0, len(made), base_offset=0)
    assert bytes(batch.data) == made


def test_the_header_scan_reads_no_records() -> None:
    made = batches([1] * 5, 100_000)
    world = World()
    file = world.disk.create("/d01/0.log")
    file.write(made, 0)
    read = list(walk_headers(file, 0, file.size(), base_offset=0))
    assert len(read) == 5
    assert world.disk.calls["read"] == 5


def test_damage_is_reported_with_file_position_and_reason() -> None:
    made = batches([3, 3, 3])
    content = bytearray(b"".join(made))
    content[len(made[0]) + HEADER_SIZE] ^= 1
    damage = damage_of(bytes(content))
    assert (damage.path, damage.position) == ("/d01/0.log", len(made[0]))
    assert "CRC" in damage.reason
    assert str(damage).endswith(damage.reason)


@pytest.mark.parametrize("left", [1, 11, 12, 60, 61, 80])
def test_a_scan_ends_at_an_incomplete_batch(left: int) -> None:
    made = batches([3, 3])
    content = made[0] + made[1][:left]
    assert damage_of(content).position == len(made[0])


def test_a_file_shorter_than_expected_is_damaged_where_it_ends() -> None:
    made = batches([3, 3])
    content = b"".join(made)
    assert damage_of(content, end=len(content) + 100).position == len(content)


def test_decreasing_offsets_are_damage() -> None:
    made = batches([3, 3])
    assert damage_of(made[1] + made[0]).position == len(made[1])
    assert damage_of(made[0], base_offset=1).position == 0


def test_an_offset_too_large_for_its_segment_is_damage() -> None:
    made = bytes(batch_of([b"x"], base_offset=2**31 + 5).data)
    assert damage_of(made).position == 0
    assert "can hold" in damage_of(made, base_offset=5).reason
    assert list(walk_batches(file_of(made), 0, len(made), base_offset=6))


def test_every_batch_before_the_damage_is_yielded() -> None:
    content = b"".join(batches([3, 3, 3]))[:-1]
    walk = walk_batches(file_of(content), 0, len(content), base_offset=0)
    assert [next(walk).header.base_offset for _ in range(2)] == [0, 3]
    with pytest.raises(DamagedSegment):
        next(walk)


@given(st.binary(max_size=400))
def test_any_bytes_are_scanned_to_their_end_or_to_reported_damage(content: bytes) -> None:
    made = batches([2])[0] + content
    walk, position, damage = walk_batches(file_of(made), 0, len(made), base_offset=0), 0, None
    try:
        for batch in walk:
            position = batch.position + batch.header.size
    except DamagedSegment as error:
        damage = error.position
    assert position == (len(made) if damage is None else damage)
    assert (damage is None) == (position == len(made))
