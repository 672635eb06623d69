"""LZ4: the frames that are written, and usual frames read block by block."""

from __future__ import annotations

import random
import tracemalloc

import lz4.block
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import CorruptRecords
from kdist.records.compression import Codec, compress, decompress

MIB = 1 << 20
WORDS = b" ".join(random.Random(1).choices([b"view", b"click", b"buy", b"back"], k=40_000))
NOISE = random.Random(2).randbytes(150_000)  # it does not shrink


@pytest.mark.parametrize(
    ("size", "block_size"), [(1, 65_536), (65_536, 65_536), (65_537, 262_144), (600_000, 262_144)]
)
def test_lz4_is_written_as_java_does_in_independent_blocks_without_extras(
    size: int, block_size: int
) -> None:
    data = (WORDS * (size // len(WORDS) + 1))[:size]
    packed = compress(Codec.LZ4, data)
    assert lz4.frame.decompress(packed) == data
    info = lz4.frame.get_frame_info(packed)
    assert info["block_size"] == block_size
    assert not info["block_linked"]
    assert not info["block_checksum"]
    assert not info["content_checksum"]
    assert info["content_size"] == 0


def test_an_lz4_block_that_does_not_shrink_is_stored_between_those_that_do() -> None:
    block = 262_144
    noise = random.Random(3).randbytes(block)
    packed = compress(Codec.LZ4, bytes(block) + noise + bytes(block) + noise)
    assert lz4.frame.decompress(packed) == bytes(block) + noise + bytes(block) + noise
    assert packed.count((block | 1 << 31).to_bytes(4, "little") + noise) == 2


def test_lz4_data_larger_than_any_kept_buffer_is_read_back() -> None:
    data = NOISE * 80  # 12 MB
    packed = compress(Codec.LZ4, data)
    assert len(packed) > len(data)
    assert lz4.frame.decompress(packed) == data


def test_lz4_output_is_copied_once() -> None:
    data = WORDS * 4
    tracemalloc.start()
    try:
        packed = compress(Codec.LZ4, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * len(packed)


@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
def test_usual_lz4_frames_are_read_block_by_block(
    monkeypatch: pytest.MonkeyPatch, block_size: int
) -> None:
    """The library reads a frame through its own buffer, from which it copies each block."""
    monkeypatch.delattr("cramjam.lz4.decompress_into")
    data = NOISE * 40 + WORDS
    packed = lz4.frame.compress(data, block_size=block_size, block_linked=False, store_size=False)
    assert decompress(Codec.LZ4, packed, len(data)) == data


LZ4_64_KIB = bytes.fromhex("04224d18604082")


@pytest.mark.parametrize(
    ("block", "is_stored"),
    [
        pytest.param(NOISE[:65_537], True, id="stored"),
        pytest.param(lz4.block.compress(bytes(65_537), store_size=False), False, id="compressed"),
    ],
)
def test_an_lz4_block_that_is_larger_than_its_frame_allows_is_corrupt(
    block: bytes, is_stored: bool
) -> None:
    packed = LZ4_64_KIB + (len(block) | is_stored << 31).to_bytes(4, "little") + block
    with pytest.raises(CorruptRecords):
        decompress(Codec.LZ4, packed + bytes(4), MIB)


def test_a_damaged_block_of_a_frame_that_needs_more_room_than_is_kept_is_corrupt() -> None:
    data = WORDS * 60  # 12 MB
    packed = bytearray(compress(Codec.LZ4, data))
    packed[11:14] = b"\x0f\xff\xff"  # a match ahead of the beginning
    with pytest.raises(CorruptRecords):
        decompress(Codec.LZ4, packed, len(data))


@given(st.data())
def test_damaged_lz4_is_read_as_its_own_library_reads_it_or_not_at_all(data: st.DataObject) -> None:
    packed = bytearray(compress(Codec.LZ4, WORDS[:2000]))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    try:
        found = decompress(Codec.LZ4, packed, MIB)
    except CorruptRecords:
        return
    assert found == lz4.frame.decompress(bytes(packed))
