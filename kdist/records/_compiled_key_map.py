# cython: boundscheck=False, wraparound=False
# ruff: noqa: F821 - an annotation alone declares a C variable
"""The cleaner's map of keys again, for Cython to compile: as `_reference_cleaning.KeyMap`.

One table of 24-byte slots, probed in order from where a key's hash says: so it takes what its
setting says, and a key one or two cache misses. The hash is SipHash-2-4 with 128 bits (Aumasson
and Bernstein): whoever does not know the secret cannot make two keys collide.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import cython

if not cython.compiled:
    raise ImportError("the compiled map of keys has not been built")

from cython.cimports.cpython.buffer import PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer

from kdist.records import _reference_cleaning

_Pointer = cython.typedef(cython.p_uchar)
_Size = cython.typedef(cython.Py_ssize_t)
_Long = cython.typedef(cython.longlong)
_Word = cython.typedef(cython.ulonglong)

# Where the hash starts: "somepseudorandomlygeneratedbytes", the second word as for 128 bits.
# Written out in an expression, such numbers would be Python's.
_V0 = cython.declare(_Word, 0x736F6D6570736575)
_V1 = cython.declare(_Word, 0x646F72616E646F6D ^ 0xEE)
_V2 = cython.declare(_Word, 0x6C7967656E657261)
_V3 = cython.declare(_Word, 0x7465646279746573)

SLOT_BYTES = _reference_cleaning.SLOT_BYTES
assert cython.sizeof(_Slot) == SLOT_BYTES


@cython.cclass
class KeyMap:
    """As `_reference_cleaning.KeyMap`."""

    def __cinit__(self, slot_count: _Size, secret: bytes):
        assert len(secret) == 16
        assert slot_count < 1 << 32
        self._slot_count = max(slot_count, 2)  # one is always free, and ends a search
        self.limit = min(_reference_cleaning.limit_of(slot_count), self._slot_count - 1)
        # Zeros, which take memory once they are written; in large pages, as each key is anywhere.
        memory = mmap.mmap(-1, self._slot_count * SLOT_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
        PyObject_GetBuffer(memory, cython.address(self._memory), PyBUF_WRITABLE)
        self._slots = cython.cast(cython.pointer[_Slot], self._memory.buf)
        at: _Pointer = cython.cast(_Pointer, cython.cast(cython.p_char, secret))
        self._k0, self._k1 = _word(at, 8), _word(at + 8, 8)
        self._used = 0
        self.is_full = False

    def __dealloc__(self):
        PyBuffer_Release(cython.address(self._memory))

    def __len__(self) -> _Size:
        return self._used

    def put(self, key: bytes, offset: _Long) -> bool:
        """As `_reference_cleaning.KeyMap.put`."""
        aimed: _Slot
        at: _Pointer = cython.cast(_Pointer, cython.cast(cython.p_char, key))
        self._aim(at, len(key), cython.address(aimed))
        return self._put(cython.address(aimed), offset)

    def get(self, key: bytes) -> _Long:
        """As `_reference_cleaning.KeyMap.get`."""
        aimed: _Slot
        at: _Pointer = cython.cast(_Pointer, cython.cast(cython.p_char, key))
        self._aim(at, len(key), cython.address(aimed))
        return self._get(cython.address(aimed))

    @cython.cfunc
    @cython.exceptval(check=False)
    def _aim(self, key: _Pointer, size: _Size, aimed: cython.pointer[_Slot]) -> cython.void:
        """Hash a key, and have its slot brought to the cache, which takes as long as ten hashes."""
        low = cython.address(aimed.low)
        _hash(self._k0, self._k1, key, size, low, cython.address(aimed.high))
        _prefetch(self._slots + self._number(aimed.low))

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _number(self, low: _Word) -> _Word:
        """Where a search begins: the hash's upper half, scaled to the number of slots."""
        return (low >> 32) * self._slot_count >> 32

    @cython.cfunc
    @cython.exceptval(check=False)
    def _put(self, aimed: cython.pointer[_Slot], offset: _Long) -> cython.bint:
        slot: cython.pointer[_Slot] = self._find(aimed)
        if not slot.offset_after:
            if self._used >= self.limit:
                self.is_full = True
                return False
            self._used += 1
            slot.low, slot.high = aimed.low, aimed.high
        slot.offset_after = offset + 1
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def _get(self, aimed: cython.pointer[_Slot]) -> _Long:
        return self._find(aimed).offset_after - 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _find(self, aimed: cython.pointer[_Slot]) -> cython.pointer[_Slot]:
        """The slot of a hashed key, or the free one that it would get."""
        number: _Word = self._number(aimed.low)
        slot: cython.pointer[_Slot] = self._slots + number
        while slot.offset_after and (slot.low != aimed.low or slot.high != aimed.high):
            number += 1
            slot += 1
            if number == self._slot_count:
                number, slot = 0, self._slots
        return slot


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _rotated(word: _Word, bits: cython.int) -> _Word:
    return word << bits | word >> (64 - bits)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _word(at: _Pointer, size: _Size) -> _Word:
    """The little-endian number in the `size` bytes at `at`."""
    word: _Word = 0
    i: _Size
    for i in range(size):
        word |= cython.cast(_Word, at[i]) << 8 * i
    return word


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _round(v: cython.pointer[_Word]) -> cython.void:
    v[0] += v[1]
    v[2] += v[3]
    v[1] = _rotated(v[1], 13) ^ v[0]
    v[3] = _rotated(v[3], 16) ^ v[2]
    v[0] = _rotated(v[0], 32)
    v[2] += v[1]
    v[0] += v[3]
    v[1] = _rotated(v[1], 17) ^ v[2]
    v[3] = _rotated(v[3], 21) ^ v[0]
    v[2] = _rotated(v[2], 32)


@cython.cfunc
@cython.exceptval(check=False)
def _hash(
    k0: _Word,
    k1: _Word,
    at: _Pointer,
    size: _Size,
    low: cython.pointer[_Word],
    high: cython.pointer[_Word],
) -> cython.void:
    v: _Word[4]
    word: _Word
    left: _Size = size
    v[0], v[1], v[2], v[3] = k0 ^ _V0, k1 ^ _V1, k0 ^ _V2, k1 ^ _V3
    while left >= 8:
        word = _word(at, 8)
        v[3] ^= word
        _round(v)
        _round(v)
        v[0] ^= word
        at += 8
        left -= 8
    word = cython.cast(_Word, size) << 56 | _word(at, left)
    v[3] ^= word
    _round(v)
    _round(v)
    v[0] ^= word
    v[2] ^= 0xEE
    for _ in range(4):
        _round(v)
    low[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for _ in range(4):
        _round(v)
    high[0] = v[0] ^ v[1] ^ v[2] ^ v[3]


def hash_of(key: bytes, secret: bytes) -> bytes:
    """The 16 bytes that stand for a key: for tests against the published vectors."""
    low: _Word = 0
    high: _Word = 0
    at: _Pointer = cython.cast(_Pointer, cython.cast(cython.p_char, secret))
    data: _Pointer = cython.cast(_Pointer, cython.cast(cython.p_char, key))
    assert len(secret) == 16
    _hash(_word(at, 8), _word(at + 8, 8), data, len(key), cython.address(low), cython.address(high))
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")
