"""A segment's two sparse indexes, and from an offset by them to the batch that holds it.

    .index      relative offset int32 | position int32           8 bytes an entry
    .timeindex  timestamp int64       | relative offset int32    12 bytes an entry

Big-endian, sorted, relative to the segment's base offset. An entry of `.index` says: the batch at
`position` ends with that offset. One of `.timeindex` says: no record up to that offset has a larger
timestamp.

Nothing is mapped, so an idle partition costs neither memory nor a descriptor. New entries are kept
in memory and written a page at a time. Losing them is harmless: after a crash, indexes of segments
past the recovery point are rebuilt from the log, and a sealed segment's are flushed before the
recovery point moves past it.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple, Self

from kdist.errors import CorruptFile, CorruptRecords, DiskFull
from kdist.records.batch import HEADER_SIZE, LENGTH_PREFIX_SIZE, MAGIC, BatchHeader, read_header
from kdist.runtime.files import File, Files
from kdist.storage.scan import LOOKUP_BYTES, DamagedSegment, check_header, walk_headers

_PENDING_BYTES_MAX = 4096
_BLOCKS_MAX = 4
_BLOCK_ENTRIES = 1024  # 4 MiB of log or more, for eight times what a read of one entry costs
# Of a header: base offset, length, (leader epoch,) magic, (CRC, attributes,) last offset delta.
_EXTENT = struct.Struct(">qi4xb6xi")
_LENGTH_MIN = HEADER_SIZE - LENGTH_PREFIX_SIZE
# If two entries are farther apart, the batch in between is large enough for an entry of its own, so
# the next entry most likely points to the very next batch.
_NEIGHBOURS_BYTES = 2 * LOOKUP_BYTES


Found = tuple[int, BatchHeader]
"""A batch's position in its segment, and its header."""


class IndexEntry(NamedTuple):
    """A key and where it points: (relative offset, position) or (timestamp, relative offset)."""

    key: int
    value: int


class _Block:
    """Consecutive entries from number `start` on, as bytes, with the first and the last key."""

    __slots__ = ("count", "entries", "first_key", "last_key", "numbers", "start")

    def __init__(self, start: int, entries: bytes, entry: struct.Struct) -> None:
        self.start = start
        self.entries = entries
        self.count = len(entries) // entry.size
        self.first_key = self.last_key = 0
        if self.count:
            self.first_key = entry.unpack_from(entries)[0]
            self.last_key = entry.unpack_from(entries, len(entries) - entry.size)[0]
        self.numbers: array[int] | None = (
            None  # each entry as one integer, the key in the high bits
        )

    def has_floor(self, key: int, on_disk: int) -> bool:
        """Whether the floor of `key` is surely in this block, not in one after it."""
        if key < self.first_key or not self.count:
            return not self.start and self.count > 0
        return key <= self.last_key or self.start + self.count == on_disk


class SparseIndex:
    """Entries sorted by key: the first `_written` bytes in the file, the rest in memory.

    A lookup reads the one block of entries in which the answer is, and keeps it and a few others:
    who reads a log on from there asks for the next few. With 130,000 entries in the page cache
    (Debian's Python 3.11) any takes 12 µs, one in a block that is kept 4, and 2 by the `bisect` of
    an `OffsetIndex`; an entry read at each step made it 18.
    Owner: the segment. The file is created with the first entries written to it.
    """

    __slots__ = (
        "_around",
        "_around_key",
        "_blocks",
        "_file",
        "_files",
        "_is_rebuilding",
        "_last_key",
        "_path",
        "_pending",
        "_pending_block",
        "_written",
        "is_missing",
    )

    ENTRY: struct.Struct

    def __init__(self, files: Files, path: str, written: int = 0) -> None:
        """`written`: the size of the existing file in bytes; 0 for a new index."""
        self._files = files
        self._path = path
        self._file: File | None = None
        self._written = written
        self._pending = bytearray()
        self._is_rebuilding = False  # the file is the old one, and is ignored
        self._pending_block: _Block | None = None  # a copy of `_pending` for searches
        self._last_key: int | None = None  # None: not read yet
        self._blocks: list[_Block] = []  # most recently used first
        self._around_key: int | None = None  # the last key of `around`, and its result
        self._around: tuple[IndexEntry | None, IndexEntry | None] = None, None
        self.is_missing = False

    @classmethod
    def load(cls, files: Files, path: str) -> Self:
        """The index in `path`, empty if there is none."""
        try:
            return cls(files, path, files.size(path))
        except FileNotFoundError:
            index = cls(files, path)
            index.is_missing = True
            return index

    @property
    def path(self) -> str:
        return self._path

    def move_to(self, path: str) -> None:
        """Its file, which is open, has been renamed."""
        self._path = path

    def __len__(self) -> int:
        return (self._written + len(self._pending)) // self.ENTRY.size

    def size(self) -> int:
        """Its size in bytes, entries in memory included."""
        return self._written + len(self._pending)

    def __getitem__(self, number: int) -> IndexEntry:
        start, size = number * self.ENTRY.size, self.ENTRY.size
        if start >= self._written:
            return IndexEntry._make(self.ENTRY.unpack_from(self._pending, start - self._written))
        if self._blocks:
            block = self._blocks[0]
            if block.start <= number < block.start + block.count:
                place = (number - block.start) * size
                return IndexEntry._make(self.ENTRY.unpack_from(block.entries, place))
        return IndexEntry._make(self.ENTRY.unpack(self._read(number, number + 1)))

    def __iter__(self) -> Iterator[IndexEntry]:
        # In blocks: a damaged or foreign file may be larger than memory, and wrong from the start.
        on_disk = self._written // self.ENTRY.size
        for start in range(0, on_disk, _BLOCK_ENTRIES):
            data = self._read(start, min(start + _BLOCK_ENTRIES, on_disk))
            yield from map(IndexEntry._make, self.ENTRY.iter_unpack(data))
        yield from map(IndexEntry._make, self.ENTRY.iter_unpack(bytes(self._pending)))

    def last(self) -> IndexEntry | None:
        """The entry with the largest key; None if there is none."""
        return self[len(self) - 1] if len(self) else None

    def prime_tail(self) -> None:
        """Read the last key now, so that `append` need not open the file for it."""
        last = self.last()
        self._last_key = None if last is None else last.key

    def append(self, key: int, value: int) -> None:
        """Add an entry if its key is larger than all before it."""
        last_key = self._last_key
        if last_key is None:
            last = self.last()
            last_key = key - 1 if last is None else last.key
        if key > last_key:
            self._last_key = key
            self._around_key = self._pending_block = None
            self._pending += self.ENTRY.pack(key, value)
            if len(self._pending) >= _PENDING_BYTES_MAX:
                self.maybe_write()

    def floor(self, key: int) -> IndexEntry | None:
        """The entry with the largest key that is not above `key`; None if all are above it."""
        return self.around(key)[0]

    def around(self, key: int) -> tuple[IndexEntry | None, IndexEntry | None]:
        """The entry that `floor` gives, and the one after it; None where there is none."""
        if key != self._around_key:
            number = self.floor_number(key)
            self._around = (
                None if number < 0 else self[number],
                self[number + 1] if number + 1 < len(self) else None,
            )
            self._around_key = key
        return self._around

    def floor_number(self, key: int) -> int:
        """The number of the entry that `floor` gives; -1 for none."""
        on_disk = self._written // self.ENTRY.size
        # Most look-ups are for the tail, which needs no reads.
        if self._pending and (not on_disk or self.ENTRY.unpack_from(self._pending)[0] <= key):
            block = self._pending_block or _Block(on_disk, bytes(self._pending), self.ENTRY)
            self._pending_block = block
        else:
            block = self._block_of(key, on_disk)
        return block.start + self._floor_in_block(block, key)

    def _floor_in_block(self, block: _Block, key: int) -> int:
        """As `floor_number`, within a block. It creates no object per entry."""
        entries, size, unpack = block.entries, self.ENTRY.size, self.ENTRY.unpack_from
        low, high = 0, block.count
        while low < high:
            middle = (low + high) // 2
            if unpack(entries, middle * size)[0] <= key:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _block_of(self, key: int, on_disk: int) -> _Block:
        """The block with the floor; it becomes the most recently used."""
        blocks = self._blocks
        for place, block in enumerate(blocks):
            if block.has_floor(key, on_disk):
                if place:
                    blocks.insert(0, blocks.pop(place))
                return block
        block = self._read_block_of(key, on_disk)
        others = [other for other in blocks if other.start != block.start]
        self._blocks = [block, *others[: _BLOCKS_MAX - 1]]
        return block

    def _read_block_of(self, key: int, on_disk: int) -> _Block:
        low, high = 0, -(-on_disk // _BLOCK_ENTRIES)
        while high - low > 1:
            middle = (low + high) // 2
            if self[middle * _BLOCK_ENTRIES].key <= key:
                low = middle
            else:
                high = middle
        start, end = low * _BLOCK_ENTRIES, min((low + 1) * _BLOCK_ENTRIES, on_disk)
        return _Block(start, self._read(start, end) if on_disk else b"", self.ENTRY)

    def _read(self, start: int, end: int) -> bytes:
        """The entries from number `start` to `end`, from the file."""
        size = self.ENTRY.size
        data = self.file.read(start * size, (end - start) * size)
        if len(data) < (end - start) * size:
            raise CorruptFile(self._path, None, f"ends inside entry {start + len(data) // size}")
        return data

    def fault(self, value_max: int) -> str | None:
        """Why the index cannot be used, from its size and its last entry; None if it can."""
        if self.is_missing:
            return f"{self._path} is missing"
        if self._written % self.ENTRY.size:
            return f"{self._path} ends inside an entry"
        last = self.last()
        if last is not None and not any(last):
            return f"{self._path} ends with zeros"
        if last is not None and not (last.key >= 0 and 0 <= last.value <= value_max):
            return f"{self._path} points beyond the log"
        return None

    def sorted_count(self) -> int:
        """How many entries, from the first on, are in order: all of them in an undamaged index.

        An entry of zeros is from a page that never reached the disk.
        """
        previous = IndexEntry(-1, -1)
        for number, entry in enumerate(self):
            if entry.key <= previous.key or entry.value < previous.value or not any(entry):
                return number
            previous = entry
        return len(self)

    def keep(self, count: int) -> None:
        """Drop every entry from number `count` on, on the disk too."""
        size = count * self.ENTRY.size
        del self._pending[max(0, size - self._written) :]
        if size < self._written:
            self.file.truncate(size)
            self.file.sync()
            self._written = size
            self._blocks.clear()
        self._last_key = self._around_key = self._pending_block = None

    def begin_rebuild(self) -> None:
        """Drop all entries; `end_rebuild` replaces the file with those appended from now on."""
        self.forget_pending()
        self._written = 0
        self._blocks.clear()
        self._is_rebuilding = True

    def end_rebuild(self) -> None:
        """Replace the file by the entries since `begin_rebuild`, if there is room.

        All or none: nobody would notice a partial index left by a kill or a power loss, and without
        its last entries a time index finds records too late and has them deleted too early.
        """
        self._is_rebuilding = False
        if self._file is not None:
            self._file.close()
            self._file = None
        try:
            self._files.replace(self._path, bytes(self._pending))
        except DiskFull:  # they stay in memory, as in `maybe_write`
            if self._files.exists(self._path):
                self.file.truncate(0)
                self.file.sync()
        else:
            self._written = len(self._pending)
            self._pending, self._pending_block = bytearray(), None

    def forget_pending(self) -> None:
        """Drop the entries that are only in memory: the file is about to be deleted."""
        self._pending.clear()
        self._last_key = self._around_key = self._pending_block = None

    def write(self) -> None:
        """Write the entries in memory to the file."""
        if self._pending:
            self._written += self.file.write([self._pending], self._written)
            self._pending, self._pending_block = bytearray(), None

    def maybe_write(self) -> None:
        """As `write`; on a full disk the entries stay in memory, where look-ups find them too."""
        if self._is_rebuilding:
            return
        try:
            self.write()
        except DiskFull:
            pass  # retried at the next entry or `close`, and by the flush, which needs them written

    def create(self) -> None:
        """Create the empty file: a log without its index looks damaged to Kafka's tools."""
        if self._files.exists(self._path):  # from a roll that a full disk stopped halfway
            self._files.remove(self._path)
        self._files.create(self._path).close()

    def write_all(self) -> None:
        """As `write`, and create the file if it was deleted, even for no entries."""
        self.write()
        if self._file is None and not self._files.exists(self._path):
            self._file = self._files.create(self._path)

    def close(self) -> None:
        """Write what is in memory if there is room, and close the file; a later use reopens it."""
        self.maybe_write()
        self._blocks.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def file(self) -> File:
        """The open file, created if need be."""
        if self._file is None:
            exists = self._files.exists(self._path)
            self._file = self._files.open(self._path) if exists else self._files.create(self._path)
        return self._file


class OffsetIndex(SparseIndex):
    """`.index`: key is the relative offset, value the position in bytes."""

    __slots__ = ()
    ENTRY = struct.Struct(">ii")

    def _floor_in_block(self, block: _Block, key: int) -> int:
        """Most look-ups are for fetches, so this one uses `bisect`, a fifth of the loop's time."""
        if block.numbers is None:
            block.numbers = array("q", block.entries)
            if sys.byteorder == "little":
                block.numbers.byteswap()
        return bisect_right(block.numbers, key << 32 | 0xFFFF_FFFF) - 1


class TimeIndex(SparseIndex):
    """`.timeindex`: key is the timestamp in milliseconds, value the relative offset."""

    __slots__ = ()
    ENTRY = struct.Struct(">qi")

    def count_up_to(self, relative_offset: int) -> int:
        """How many entries, from the first on, are for offsets up to this one."""
        return next(
            (number for number, entry in enumerate(self) if entry.value > relative_offset),
            len(self),
        )


def find_batch(
    file: File, end: int, base_offset: int, index: OffsetIndex, offset: int
) -> Found | None:
    """Position and header of the batch of a segment that holds `offset`.

    None if no batch holds it (the next one would be found by walking), or if anything is wrong:
    then the caller takes the careful walk, which raises what is wrong. That checks each header and
    takes 5 us a batch, and there may be forty between two index entries. This one takes half a
    microsecond a batch up to the wanted one, and checks only that one in full. `end` is the
    segment's size.
    """
    before, after = index.around(offset - base_offset)
    if before is None:
        return _walk(file, 0, end, base_offset, offset, offset)
    start, last_offset = before.value, base_offset + before.key
    if last_offset < offset and after is not None and start + _NEIGHBOURS_BYTES < after.value < end:
        header = file.read(after.value, HEADER_SIZE)
        found = _checked(file, header, 0, after.value, end, base_offset, offset)
        if found is not None:
            return found
    return _walk(file, start, end, base_offset, offset, last_offset)


def _walk(
    file: File, start: int, end: int, base_offset: int, offset: int, first_max: int
) -> Found | None:
    """As `find_batch`, from `start`, where a batch begins with a base offset up to `first_max`."""
    if not 0 <= start < end:
        return None
    position, chunk, place = start, file.read(start, min(LOOKUP_BYTES, end - start)), 0
    while place + HEADER_SIZE <= len(chunk):
        first, length, magic, last_delta = _EXTENT.unpack_from(chunk, place)
        if magic != MAGIC or length < _LENGTH_MIN or last_delta < 0 or first > first_max:
            return None
        if first + last_delta >= offset:
            return _checked(file, chunk, place, position, end, base_offset, offset)
        first_max = offset
        position += LENGTH_PREFIX_SIZE + length
        place += LENGTH_PREFIX_SIZE + length
        if place + HEADER_SIZE > len(chunk) and position < end:
            chunk, place = file.read(position, min(LOOKUP_BYTES, end - position)), 0
    return None


def _checked(
    file: File, data: bytes, place: int, position: int, end: int, base_offset: int, offset: int
) -> Found | None:
    """The batch at `position`, whose header is in `data`, if that is sound and holds `offset`."""
    try:
        header = read_header(data, place)
        check_header(file, header, position, end, base_offset, base_offset)
    except CorruptRecords:
        return None
    return (position, header) if header.base_offset <= offset <= header.last_offset else None


def walk_from(
    file: File, end: int, base_offset: int, entry: IndexEntry | None, index_path: str
) -> Iterator[Found]:
    """The careful walk, from where `entry` points (None: from the start of the segment).

    `CorruptFile` if no batch begins there, or another than the entry's.
    """
    start = 0 if entry is None else entry.value
    walk = walk_headers(file, start, end, base_offset=base_offset)
    if entry is not None:
        first = _first_if_indexed(walk, entry, end, base_offset)
        if first is None:
            reason = f"its entry for offset {base_offset + entry.key} points nowhere"
            raise CorruptFile(index_path, None, reason)
        yield first
    yield from walk


def _first_if_indexed(
    walk: Iterator[Found], entry: IndexEntry, end: int, base_offset: int
) -> Found | None:
    if not 0 <= entry.value < end:
        return None
    try:
        position, header = next(walk)
    except DamagedSegment:
        return None
    return (position, header) if header.base_offset <= base_offset + entry.key else None
