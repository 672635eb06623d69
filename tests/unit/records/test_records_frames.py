"""The bound of a frame's content is never too small, and close for highly compressible data."""

from __future__ import annotations

from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.records import compression
from kdist.records.compression import Codec, compress, decompress
from kdist.records.frames import lz4_bound, zstd_bound

Bound = Callable[[bytes], int | None]
MIB = 1 << 20

WRITERS: dict[str, tuple[Callable[[bytes], bytes], Bound]] = {
    "ours, lz4": (lambda data: compress(Codec.LZ4, data), lz4_bound),
    "linked blocks, lz4": (lambda data: bytes(cramjam.lz4.compress(data)), lz4_bound),
    "ours, zstd": (lambda data: compress(Codec.ZSTD, data), zstd_bound),
    "level 19, zstd": (lambda data: bytes(cramjam.zstd.compress(data, 19)), zstd_bound),
}


@st.composite
def compressible(draw: st.DrawFn) -> bytes:
    pieces = draw(st.lists(st.tuples(st.binary(max_size=50), st.integers(1, 9000)), max_size=4))
    return b"".join(piece * times for piece, times in pieces)


@pytest.mark.parametrize("writer", WRITERS)
@given(data=compressible())
def test_no_frame_holds_more_than_its_bound(writer: str, data: bytes) -> None:
    write, bound_of = WRITERS[writer]
    bound = bound_of(write(data))
    assert bound is not None
    assert bound >= len(data)


@pytest.mark.parametrize("writer", WRITERS)
def test_the_bound_for_highly_compressible_data_is_close(writer: str) -> None:
    write, bound_of = WRITERS[writer]
    bound = bound_of(write(bytes(10 * MIB)))
    assert bound is not None
    assert 10 * MIB <= bound <= 15 * MIB


def test_the_bounds_of_concatenated_frames_are_added() -> None:
    frames = compress(Codec.ZSTD, bytes(MIB)) + compress(Codec.ZSTD, b"abc" * 1000)
    bound = zstd_bound(frames)
    assert bound is not None
    assert bound >= MIB + 3000


@pytest.mark.parametrize("writer", WRITERS)
@given(end=st.integers(0, 500))
def test_a_frame_that_is_cut_short_has_no_bound(writer: str, end: int) -> None:
    write, bound_of = WRITERS[writer]
    frame = write(bytes(range(256)) * 3)
    cut = frame[: end % len(frame)]
    assert bound_of(cut) is None or not cut


@given(data=st.binary(max_size=100))
def test_garbage_has_a_bound_or_none_and_raises_nothing(data: bytes) -> None:
    for magic in (b"", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd"):
        for bound in (lz4_bound(magic + data), zstd_bound(magic + data)):
            assert bound is None or bound >= 0


def test_too_many_blocks_are_not_counted() -> None:
    stored = (1 | 1 << 31).to_bytes(4, "little") + b"x"
    frame = bytes.fromhex("04224d18 60 40 82") + stored * 100_000 + bytes(4)
    assert lz4_bound(frame) is None
    assert decompress(Codec.LZ4, frame, MIB) == b"x" * 100_000


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("size", [100, 300_000, 20 * MIB])
def test_highly_compressible_data_is_decompressed_once(
    codec: Codec, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms: list[int] = []
    bounded = compression._decompress_bounded

    def counting(into: Callable[..., int], *arguments: object) -> bytes:
        def decompress_into(data: object, output: memoryview) -> int:
            rooms.append(len(output))
            return into(data, output)

        return bounded(decompress_into, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(compression, "_decompress_bounded", counting)
    packed = compress(codec, bytes(size))
    assert decompress(codec, packed, 1 << 28) == bytes(size)
    (room,) = rooms
    assert size <= room <= size + (size >> 1) + (1 << 17)
