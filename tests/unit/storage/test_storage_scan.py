"""Scanning batches: both kinds of scan agree, and stop at the first damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_world import START_MS, World, batch_of, numbered

from kdist.records.batch import HEADER_SIZE
from kdist.runtime.files import File
from kdist.storage.scan import DamagedSegment, walk_batches, walk_headers


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
