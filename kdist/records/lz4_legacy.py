"""LZ4 frames of magic 0, whose header checksum is computed over the wrong bytes.

The checksum byte of a frame's header covers the descriptor (FLG, BD, content size). Kafka's first
LZ4 writers also hashed the frame's magic number before it (KAFKA-3160), and readers of magic 0
expect that wrong byte to this day. Magic 1 and 2 have the right one.

    offset  size  field
    0       4     magic 04 22 4d 18
    4       1     FLG: version (2 bits, 01), blocks independent, block checksums, content size,
                  content checksum, reserved, dictionary id
    5       1     BD: block size (bits 4 to 6)
    6       0|8   content size, if FLG says so
    ...     0|4   dictionary id, if FLG says so
    ...     1     checksum: second byte of xxHash-32 over FLG up to here

Source: the LZ4 frame format 1.6, and KIP-57.
"""

from __future__ import annotations

from kdist.errors import CorruptRecords
from kdist.wire.varint import Buffer

_MAGIC = bytes.fromhex("04224d18")
_HAS_CONTENT_SIZE = 0x08
_HAS_DICTIONARY_ID = 0x01

_PRIME_1 = 0x9E3779B1
_PRIME_2 = 0x85EBCA77
_PRIME_3 = 0xC2B2AE3D
_PRIME_4 = 0x27D4EB2F
_PRIME_5 = 0x165667B1
_MASK = 0xFFFF_FFFF


def break_checksum(frame: Buffer) -> bytes:
    """The frame with the wrong checksum that magic 0 needs."""
    return _with_checksum(frame, hashed_from=0)


def mend_checksum(frame: Buffer) -> bytes:
    """The frame with the right checksum, whatever it had: Java's reader ignores it too."""
    return _with_checksum(frame, hashed_from=len(_MAGIC))


def _with_checksum(frame: Buffer, hashed_from: int) -> bytes:
    view = memoryview(frame)
    if len(view) < 7 or view[:4] != _MAGIC:
        raise CorruptRecords("the LZ4 data does not begin with a frame")
    at = 6 + (8 if view[4] & _HAS_CONTENT_SIZE else 0) + (4 if view[4] & _HAS_DICTIONARY_ID else 0)
    checksum = xxhash32(bytes(view[hashed_from:at])) >> 8 & 0xFF
    return b"".join((view[:at], bytes((checksum,)), view[at + 1 :]))


def xxhash32(data: bytes) -> int:
    """xxHash-32 with seed 0, in plain Python: enough for the 2 to 18 bytes of a header."""
    size = len(data)
    stripes_end = size & ~15
    if stripes_end:
        lanes = [(_PRIME_1 + _PRIME_2) & _MASK, _PRIME_2, 0, -_PRIME_1 & _MASK]
        for at in range(0, stripes_end, 4):
            lane = at // 4 % 4
            mixed = (lanes[lane] + _word(data, at) * _PRIME_2) & _MASK
            lanes[lane] = _rotate(mixed, 13) * _PRIME_1 & _MASK
        turns = (1, 7, 12, 18)
        digest = sum(_rotate(lane, by) for lane, by in zip(lanes, turns, strict=True)) & _MASK
    else:
        digest = _PRIME_5
    digest = (digest + size) & _MASK
    words_end = size & ~3
    for at in range(stripes_end, words_end, 4):
        digest = _rotate((digest + _word(data, at) * _PRIME_3) & _MASK, 17) * _PRIME_4 & _MASK
    for byte in data[words_end:]:
        digest = _rotate((digest + byte * _PRIME_5) & _MASK, 11) * _PRIME_1 & _MASK
    digest = (digest ^ digest >> 15) * _PRIME_2 & _MASK
    digest = (digest ^ digest >> 13) * _PRIME_3 & _MASK
    return digest ^ digest >> 16


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _rotate(word: int, by: int) -> int:
    return (word << by | word >> 32 - by) & _MASK
