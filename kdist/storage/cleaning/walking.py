"""Reading segments for the cleaner: plain batches many at a time, all others one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kdist.records.batch import HEADER_SIZE, crc_fault, read_header
from kdist.runtime.files import File
from kdist.storage.scan import DamagedSegment, ScannedBatch, check_header

READ_BYTES = 1 << 20

Bulk = Callable[[memoryview, int, int], tuple[int, int]]
"""Takes plain batches from a position, where at least an offset must follow; says where it stopped,
and the offset to follow there."""


def walk(
    file: File, size: int, base_offset: int, bulk: Bulk, on_read: Callable[[int], None]
) -> Iterator[ScannedBatch]:
    """Pass the batches in `size` bytes of a segment to `bulk`, and yield those that it leaves.

    Every batch is checked, its CRC too. `DamagedSegment` at the first that is wrong. `on_read` is
    told how many bytes are read.
    """
    position, next_offset, read_bytes = 0, base_offset, READ_BYTES
    while position < size:
        asked = min(read_bytes, size - position)
        chunk = memoryview(file.read(position, asked))
        if len(chunk) < asked or len(chunk) < HEADER_SIZE:
            raise DamagedSegment(file.path, position, "the file ends inside a batch")
        on_read(asked)
        at, read_bytes = 0, READ_BYTES
        while True:
            at, next_offset = bulk(chunk, at, next_offset)
            left = len(chunk) - at
            if left < HEADER_SIZE:
                break  # the rest of its header is in the next chunk, if there is any rest
            header = read_header(chunk, at)
            check_header(file, header, position + at, size, base_offset, next_offset)
            if header.size > left:
                read_bytes = max(READ_BYTES, header.size)
                break
            if fault := crc_fault(chunk, at, header):
                raise DamagedSegment(file.path, position + at, fault)
            yield ScannedBatch(position + at, header, chunk[at : at + header.size])
            next_offset = header.next_offset
            at += header.size
        position += at


class Throttle:
    """Keeps reads and writes below a rate, as `log.cleaner.io.max.bytes.per.second` has it."""

    _STEP_NS = 20_000_000  # waits are for no less, since a sleep is not exact

    def __init__(
        self,
        bytes_per_second: int,
        now_ns: Callable[[], int],
        wait_ms: Callable[[float], None],
    ) -> None:
        self.set_rate(bytes_per_second)
        self._now_ns = now_ns
        self._wait_ms = wait_ms
        self._due_ns = now_ns()

    def set_rate(self, bytes_per_second: int) -> None:
        """Keep below another rate from here on."""
        self._ns_per_byte = 1e9 / bytes_per_second

    def take(self, size: int) -> None:
        """Account for so many bytes, and wait until they are due."""
        now_ns = self._now_ns()
        self._due_ns = max(self._due_ns, now_ns - self._STEP_NS) + int(size * self._ns_per_byte)
        if self._due_ns - now_ns > self._STEP_NS:
            self._wait_ms((self._due_ns - now_ns) / 1e6)
