"""Compression, LZ4 in detail: what is written and refused, and that memory is bounded."""

from __future__ import annotations

import ctypes
import gc
import gzip
import random
import re
import tracemalloc
import zlib
from pathlib import Path

import lz4.block
import lz4.frame
import pytest
import snappy
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kafka import codec as kafka_codec

from kdist.errors import CorruptRecords
from kdist.records.compression import Codec, codec_of, compress, decompress
from kdist.records.compression import lz4 as kdist_lz4
from kdist.records.compression import snappy as kdist_snappy

MIB = 1 << 20
CODECS = list(Codec)
REAL_CODECS = CODECS[1:]
every_codec = pytest.mark.parametrize("codec", CODECS)
every_real_codec = pytest.mark.parametrize("codec", REAL_CODECS)

WORDS = b" ".join(random.Random(1).choices([b"view", b"click", b"buy", b"back"], k=40_000))
NOISE = random.Random(2).randbytes(150_000)  # larger than any codec's block, and it does not shrink

FOREIGN_COMPRESS = {
    Codec.GZIP: kafka_codec.gzip_encode,
    Codec.SNAPPY: kafka_codec.snappy_encode,
    Codec.LZ4: kafka_codec.lz4_encode,
    Codec.ZSTD: kafka_codec.zstd_encode,
}
FOREIGN_DECOMPRESS = {
    Codec.GZIP: kafka_codec.gzip_decode,
    Codec.SNAPPY: kafka_codec.snappy_decode,
    Codec.LZ4: kafka_codec.lz4_decode,
    Codec.ZSTD: kafka_codec.zstd_decode,
}


# --- round trips --------------------------------------------------------------------------------


@every_codec
@pytest.mark.parametrize("data", [b"", b"a", WORDS, NOISE, bytes(MIB)], ids=len)
def test_data_comes_back_as_it_went_in_within_its_own_size(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data


@every_codec
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_taken(codec: Codec, kind: type) -> None:
    packed = compress(codec, kind(WORDS))
    assert type(packed) is bytes
    assert decompress(codec, kind(packed), MIB) == WORDS


@given(st.sampled_from(CODECS), st.binary(max_size=3000), st.integers(1, 40))
def test_any_data_comes_back_as_it_went_in(codec: Codec, data: bytes, times: int) -> None:
    data *= times
    assert decompress(codec, compress(codec, memoryview(data)), len(data)) == data


@every_real_codec
def test_large_data_stays_what_it_is_when_others_are_decompressed(codec: Codec) -> None:
    large = (WORDS + NOISE) * (10 * MIB // len(WORDS + NOISE) + 1)
    packed = compress(codec, large)
    found = decompress(codec, packed, len(large))
    for data in (bytes(len(large)), WORDS):
        assert decompress(codec, compress(codec, data), len(data)) == data
    assert bytes(found) == large
    with pytest.raises(CorruptRecords):
        decompress(codec, packed, len(large) - 1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_large_data_is_not_copied_once_more(codec: Codec) -> None:
    """A copy holds up the other threads of the process."""
    found = decompress(codec, compress(codec, bytes(9 * MIB)), 9 * MIB)
    assert isinstance(found, bytearray if codec == Codec.GZIP else memoryview)


@every_real_codec
def test_repetitive_data_shrinks(codec: Codec) -> None:
    assert len(compress(codec, WORDS)) < len(WORDS) / 2


@pytest.mark.parametrize("number", range(5))
def test_the_codec_is_the_low_three_bits_of_the_attributes(number: int) -> None:
    assert codec_of(0b11000 | number) == Codec(number)


@pytest.mark.parametrize("number", [5, 6, 7])
def test_an_unknown_codec_is_corrupt(number: int) -> None:
    with pytest.raises(CorruptRecords, match=f"codec {number}"):
        codec_of(number)


# --- other implementations ----------------------------------------------------------------------


@every_real_codec
@pytest.mark.parametrize("data", [b"a", WORDS, NOISE], ids=len)
def test_kafka_python_reads_what_is_written(codec: Codec, data: bytes) -> None:
    assert FOREIGN_DECOMPRESS[codec](compress(codec, data)) == data


@every_real_codec
@pytest.mark.parametrize("data", [b"a", WORDS, NOISE], ids=len)
def test_what_kafka_python_writes_is_read(codec: Codec, data: bytes) -> None:
    assert decompress(codec, FOREIGN_COMPRESS[codec](data), len(data)) == data


def test_zstd_frames_are_read_with_and_without_their_size() -> None:
    sized = zstandard.ZstdCompressor().compress(WORDS)
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    streamed = stream.compress(WORDS) + stream.flush()  # as Java writes them
    assert zstandard.frame_content_size(sized) == len(WORDS)
    assert zstandard.frame_content_size(streamed) == -1
    for packed in (sized, streamed):
        assert decompress(Codec.ZSTD, packed, len(WORDS)) == WORDS


@pytest.mark.parametrize("block_linked", [False, True])
@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
@pytest.mark.parametrize("checksums", [False, True])
def test_every_kind_of_lz4_frame_is_read(
    block_linked: bool, block_size: int, checksums: bool
) -> None:
    packed = lz4.frame.compress(
        WORDS,
        block_size=block_size,
        block_linked=block_linked,
        block_checksum=checksums,
        content_checksum=checksums,
        store_size=checksums,
    )
    assert decompress(Codec.LZ4, packed, len(WORDS)) == WORDS


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_concatenated_streams_are_read_as_one(codec: Codec) -> None:
    packed = compress(codec, b"one, ") + compress(codec, b"two")
    assert decompress(codec, packed, 8) == b"one, two"
    with pytest.raises(CorruptRecords):
        decompress(codec, packed, 7)


# --- snappy -------------------------------------------------------------------------------------


def test_snappy_is_written_in_xerial_framing_with_blocks_of_32_kib() -> None:
    packed = compress(Codec.SNAPPY, bytes(32_768) + b"tail")
    assert packed[:16] == bytes.fromhex("82534e4150505900 00000001 00000001")
    first = int.from_bytes(packed[16:20], "big")
    assert snappy.uncompress(packed[20 : 20 + first]) == bytes(32_768)
    assert snappy.uncompress(packed[24 + first :]) == b"tail"


def test_a_raw_snappy_block_is_read_as_librdkafka_sends_it() -> None:
    assert decompress(Codec.SNAPPY, snappy.compress(WORDS), len(WORDS)) == WORDS


def test_xerial_framing_that_needs_a_later_reader_is_refused() -> None:
    packed = kdist_snappy.MAGIC + (2).to_bytes(4, "big") * 2 + compress(Codec.SNAPPY, b"x")[16:]
    with pytest.raises(CorruptRecords, match="version 2"):
        decompress(Codec.SNAPPY, packed, 10)


# --- magic 0's lz4 ------------------------------------------------------------------------------


def test_the_wrong_lz4_checksum_is_the_one_kafka_python_writes_for_old_brokers() -> None:
    old = kafka_codec.lz4_encode_old_kafka(WORDS)
    right = kdist_lz4.mend_checksum(old)
    with pytest.raises(CorruptRecords):
        decompress(Codec.LZ4, old, MIB)
    assert decompress(Codec.LZ4, right, MIB) == WORDS
    assert kdist_lz4.break_checksum(right) == old
    assert kafka_codec.lz4_decode_old_kafka(kdist_lz4.break_checksum(right)) == WORDS


def test_the_checksum_is_corrected_behind_a_content_size_too() -> None:
    right = lz4.frame.compress(WORDS, store_size=True)
    assert kdist_lz4.break_checksum(right) != right
    assert kdist_lz4.mend_checksum(kdist_lz4.break_checksum(right)) == right


@pytest.mark.parametrize("size", range(7))
def test_a_frame_cut_within_its_header_has_no_checksum_to_correct(size: int) -> None:
    with pytest.raises(CorruptRecords):
        kdist_lz4.mend_checksum(compress(Codec.LZ4, b"x")[:size])


@given(st.binary(max_size=70))
def test_the_header_hash_is_xxhash_32(data: bytes) -> None:
    assert kdist_lz4.xxhash32(data) == xxhash.xxh32_intdigest(data)


# --- damage -------------------------------------------------------------------------------------


@every_real_codec
def test_data_cut_at_any_length_is_corrupt(codec: Codec) -> None:
    packed = compress(codec, b"one two three four, one two three four")
    for size in range(1 if codec == Codec.SNAPPY else 0, len(packed)):
        if codec == Codec.SNAPPY and size == len(kdist_snappy.HEADER):
            continue  # a framing without blocks is whole, and empty
        with pytest.raises(CorruptRecords):
            decompress(codec, packed[:size], MIB)


@every_real_codec
@pytest.mark.parametrize("tail", [b"\x00", b"garbage", b"\x01" * 30])
def test_bytes_behind_the_end_are_corrupt(codec: Codec, tail: bytes) -> None:
    with pytest.raises(CorruptRecords):
        decompress(codec, compress(codec, WORDS) + tail, MIB)


@given(st.sampled_from(CODECS), st.data())
def test_a_flipped_bit_gives_other_data_or_corrupt_but_never_more_than_allowed(
    codec: Codec, data: st.DataObject
) -> None:
    packed = bytearray(compress(codec, WORDS[:2000]))
    bit = data.draw(st.integers(0, 8 * len(packed) - 1))
    packed[bit // 8] ^= 1 << bit % 8
    try:
        unpacked = decompress(codec, packed, 2000)
    except CorruptRecords:
        return
    assert len(unpacked) <= 2000


@given(st.sampled_from(CODECS), st.binary(max_size=200))
def test_any_bytes_are_data_or_corrupt(codec: Codec, data: bytes) -> None:
    try:
        unpacked = decompress(codec, data, 1000)
    except CorruptRecords:
        return
    assert len(unpacked) <= 1000


# --- bombs --------------------------------------------------------------------------------------


def bomb(codec: Codec, size: int) -> bytes:
    """`size` zeros, packed as densely as the codec can, without ever having them all in memory."""
    if codec == Codec.NONE:
        return bytes(size)
    if codec == Codec.SNAPPY:
        return snappy_bomb(size)
    stream = {
        Codec.GZIP: lambda: zlib.compressobj(wbits=31),
        Codec.LZ4: LZ4Stream,
        Codec.ZSTD: lambda: zstandard.ZstdCompressor().compressobj(),
    }[codec]()
    zeros = bytes(MIB)
    parts = [stream.compress(zeros[: min(MIB, size - at)]) for at in range(0, size, MIB)]
    return b"".join(parts) + stream.flush()


def snappy_bomb(size: int) -> bytes:
    """One raw block: its length, a literal zero, then copies of 64 bytes from one byte back."""
    length, rest = bytearray(), size
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    length.append(rest)
    literal = b"\x00\x00"
    copies, tail = divmod(size - 1, 64)
    last = bytes((tail - 1 << 2 | 2, 1, 0)) if tail else b""
    return bytes(length) + literal + b"\xfe\x01\x00" * copies + last


class LZ4Stream:
    """lz4's compressor with the methods of zlib's."""

    def __init__(self) -> None:
        self._frame = lz4.frame.LZ4FrameCompressor()
        self._head: bytes = self._frame.begin()

    def compress(self, data: bytes) -> bytes:
        head, self._head = self._head, b""
        return head + bytes(self._frame.compress(data))

    def flush(self) -> bytes:
        return bytes(self._frame.flush())


class Memory:
    """How much the process's resident memory rose above where it was when the block began."""

    def __enter__(self) -> Memory:
        gc.collect()  # or what goes meanwhile would make room unseen,
        ctypes.CDLL(None).malloc_trim(0)  # as would what the allocator has kept
        Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is resident now
        self._before = self._peak_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        self.risen_bytes = self._peak_bytes() - self._before

    @staticmethod
    def _peak_bytes() -> int:
        [line] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return int(line) * 1024


def test_the_memory_meter_of_these_tests_detects_touched_memory() -> None:
    with Memory() as memory:
        bytearray(64 * MIB)
    assert memory.risen_bytes > 50 * MIB


@every_codec
@pytest.mark.parametrize("size_max", [0, 1, 1000, MIB])
def test_a_bomb_is_refused_at_the_bound(codec: Codec, size_max: int) -> None:
    packed = bomb(codec, size_max + 1)
    with pytest.raises(CorruptRecords):
        decompress(codec, packed, size_max)
    assert decompress(codec, packed, size_max + 1) == bytes(size_max + 1)


@every_real_codec
def test_a_bomb_takes_no_more_memory_than_the_bound(codec: Codec) -> None:
    packed = bomb(codec, 64 * MIB)
    with Memory() as memory, pytest.raises(CorruptRecords):
        decompress(codec, packed, 4 * MIB)
    assert memory.risen_bytes < 16 * MIB


ZSTD_LIE = bytearray(zstandard.ZstdCompressor().compress(bytes(100_000)))
ZSTD_LIE[5:9] = (0x7FFF_FFFF).to_bytes(4, "little")
LZ4_LIE = bytearray(lz4.frame.compress(b"x" * 1000, store_size=True))
LZ4_LIE[6:14] = (1 << 40).to_bytes(8, "little")
SNAPPY_LIE = b"\xff\xff\xff\xff\x07" + b"\x00x"


@pytest.mark.parametrize(
    ("codec", "lie"),
    [
        pytest.param(Codec.SNAPPY, SNAPPY_LIE, id="snappy block of 2 GiB"),
        pytest.param(
            Codec.SNAPPY,
            kdist_snappy.HEADER + len(SNAPPY_LIE).to_bytes(4, "big") + SNAPPY_LIE,
            id="snappy block of 2 GiB in xerial framing",
        ),
        pytest.param(
            Codec.SNAPPY, kdist_snappy.HEADER + b"\x7f\xff\xff\xff" + SNAPPY_LIE, id="xerial block"
        ),
        pytest.param(Codec.ZSTD, bytes(ZSTD_LIE), id="zstd frame of 2 GiB"),
        pytest.param(Codec.LZ4, kdist_lz4.mend_checksum(LZ4_LIE), id="lz4 frame of 1 TiB"),
        pytest.param(
            Codec.LZ4, compress(Codec.LZ4, b"")[:7] + b"\xff\xff\xff\x7f" + b"x", id="lz4 block"
        ),
    ],
)
def test_a_false_length_allocates_no_memory(codec: Codec, lie: bytes) -> None:
    assert codec != Codec.ZSTD or lie[4] == 0xA0  # a content size of four bytes
    with Memory() as memory, pytest.raises(CorruptRecords):
        decompress(codec, lie, 1 << 31)
    assert memory.risen_bytes < 8 * MIB


def test_many_gzip_members_share_one_bound() -> None:
    packed = gzip.compress(bytes(1000)) * 3
    assert len(decompress(Codec.GZIP, packed, 3000)) == 3000
    with pytest.raises(CorruptRecords):
        decompress(Codec.GZIP, packed, 2999)


# --- many parts ---------------------------------------------------------------------------------

EMPTY_BLOCK = (1).to_bytes(4, "big") + b"\0"
TINY = gzip.compress(b"x")


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        pytest.param(Codec.GZIP, gzip.compress(b"") * 50_000, id="empty gzip members"),
        pytest.param(Codec.GZIP, TINY * 50_000, id="gzip members of a byte"),
        pytest.param(Codec.GZIP, gzip.compress(WORDS) + TINY * 50_000, id="behind a large one"),
        pytest.param(Codec.SNAPPY, kdist_snappy.HEADER + EMPTY_BLOCK * 50_000, id="empty blocks"),
        pytest.param(Codec.SNAPPY, kdist_snappy.HEADER * 50_000, id="headers without blocks"),
    ],
)
def test_more_parts_than_their_content_accounts_for_are_refused(
    codec: Codec, packed: bytes
) -> None:
    with pytest.raises(CorruptRecords, match="parts for"):
        decompress(codec, packed, MIB)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_thousands_of_parts_of_a_kib_each_are_read(codec: Codec) -> None:
    """So large were snappy's blocks in Java's producer before 0.10.1."""
    data = WORDS[:1024] * 3000
    if codec == Codec.GZIP:
        packed = gzip.compress(WORDS[:1024]) * 3000
    else:
        block = snappy.compress(WORDS[:1024])
        packed = kdist_snappy.HEADER + (len(block).to_bytes(4, "big") + block) * 3000
    assert decompress(codec, packed, len(data)) == data


def test_a_few_empty_gzip_members_are_read() -> None:
    packed = gzip.compress(b"") + gzip.compress(WORDS) + gzip.compress(b"")
    assert decompress(Codec.GZIP, packed, len(WORDS)) == WORDS


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
