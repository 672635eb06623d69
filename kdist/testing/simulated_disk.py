"""A disk in memory that promises no more than a real one: for tests and the simulator.

After a power loss it has what `files.py` promises; the rest is random: unsynced pages are new, old
or zeros, sizes anything between, names old or new. It can also fill up, fail calls and die.

    disk = SimulatedDisk(random.Random(seed))
    disk.crash_at(17)                        # or disk.fail(after_calls=17), disk.fill(1 << 20)
    with pytest.raises(PowerLoss):
        history(disk)
    survivor = disk.power_on()               # another disk; files opened before stay dead
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence

from kdist.runtime.files import Buffer, replace
from kdist.testing.simulated_content import PAGE_BYTES, SECTOR_BYTES, Content
from kdist.testing.simulated_faults import Call, Faults, PowerLoss
from kdist.testing.simulated_names import Directory, Names, os_error
from kdist.testing.virtual_clock import VirtualClock

__all__ = ["Call", "PowerLoss", "SimulatedDisk", "SimulatedFile", "SimulatedLock"]

_CAPACITY_BYTES = 1 << 40


class SimulatedFile:
    """An open file; dead once its disk lost power."""

    def __init__(self, disk: SimulatedDisk, path: str, content: Content, is_writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._content = content
        self._is_writable = is_writable
        self._is_open = True

    def size(self) -> int:
        self._check_open()
        return len(self._content.data)

    def read(self, position: int, size: int) -> bytes:
        self._check_open()
        with self._disk.call("read", self.path):
            if self._content.cold:
                self._content.cold.difference_update(_pages(position, size))
            return bytes(self._content.data[position : position + size])

    def read_cached(self, position: int, size: int) -> bytes | None:
        self._check_open()
        with self._disk.call("read_cached", self.path):
            end = min(position + size, len(self._content.data))
            if not self._content.cold.isdisjoint(_pages(position, end - position)):
                return None
            return bytes(self._content.data[position:end])

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        self._check_open(to_write=True)
        size = sum(map(len, buffers))
        room = self._disk.room_bytes(self._content, position + size)
        fitting = min(size, max(0, room - position))

        def write_part() -> None:
            end = position + self._disk.rng.randint(0, fitting)
            if end <= len(self._content.data):  # it overwrites: only whole sectors
                end -= end % SECTOR_BYTES
            self._content.write(buffers, position, max(0, end - position))

        with self._disk.call("write", self.path, spoil=write_part):
            self._content.write(buffers, position, fitting)
            self._content.modified_ms = self._disk.clock.now_ms()
            if fitting < size:
                raise os_error(errno.ENOSPC, self.path)
        return size

    def truncate(self, size: int) -> None:
        self._check_open(to_write=True)
        with self._disk.call("truncate", self.path):
            self._content.truncate(size)
            self._content.modified_ms = self._disk.clock.now_ms()

    def sync(self) -> None:
        self._check_open()
        with self._disk.call("sync", self.path, spoil=self._content.fail_sync):
            self._content.sync()

    def preallocate(self, position: int, size: int) -> None:
        self._check_open(to_write=True)
        with self._disk.call("preallocate", self.path):
            end = position + size
            if self._disk.room_bytes(self._content, end) >= end:
                self._content.reserved_end = max(self._content.reserved_end, end)

    def start_writeback(self, position: int, size: int) -> None:  # noqa: ARG002
        self._check_open()
        with self._disk.call("start_writeback", self.path):
            pass  # it guarantees nothing, and dirty pages may survive without it

    def drop_cached(self, position: int, size: int) -> None:
        self._check_open()
        with self._disk.call("drop_cached", self.path):
            end = min(position + size, len(self._content.data))
            self._content.cold.update(_pages(position, end - position))

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        self._is_open = False

    def _check_open(self, to_write: bool = False) -> None:
        if self._disk.is_off:
            raise PowerLoss(self.path)
        if not self._is_open or (to_write and not self._is_writable):
            raise os_error(errno.EBADF, self.path)


class SimulatedLock:
    """A held lock. It does not survive a power loss."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._is_held = True

    def release(self) -> None:
        if self._is_held:
            self._is_held = self._content.is_locked = False


class SimulatedDisk(Faults):
    """A disk with an empty root directory. `rng` alone decides what a power loss leaves."""

    def __init__(self, rng: random.Random, clock: VirtualClock | None = None) -> None:
        super().__init__(rng)
        self.rng = rng
        self.clock = clock or VirtualClock()  # of the process that uses it, which waits for it
        self.latency_ms: Callable[[Call], float] = lambda _call: 0.0
        self._names = Names(Directory())
        self._capacity_bytes = _CAPACITY_BYTES

    def begin(self, call: Call) -> int:
        waited_ms, pause = self.latency_ms(call), self.clock.pause
        if waited_ms:
            self.clock.wait_ms(waited_ms)
        elif pause is not None:
            pause(0)
        return super().begin(call)

    def fill(self, capacity_bytes: int) -> None:
        """Set the capacity; a write beyond it is done in part and raises `DiskFull`.

        `used_bytes() + n` leaves room for `n` bytes.
        """
        self._capacity_bytes = capacity_bytes

    def used_bytes(self) -> int:
        """How much of the capacity the files take."""
        return sum(content.allocated_bytes() for content in self._names.contents())

    def room_bytes(self, content: Content, end: int) -> int:
        """How far the file can grow towards `end` with the capacity that is left."""
        allocated = content.allocated_bytes()
        if self._capacity_bytes == _CAPACITY_BYTES or end <= allocated:
            return end  # the usual case: no need to add up the sizes of all files
        return min(end, allocated + max(0, self._capacity_bytes - self.used_bytes()))

    def crash(self, rng: random.Random | None = None) -> SimulatedDisk:
        """Lose power now, and return what `power_on` finds."""
        self.is_off = True
        return self.power_on(rng)

    def power_on(self, rng: random.Random | None = None) -> SimulatedDisk:
        """A disk with what survived the power loss, without faults. May differ with each call."""
        assert self.is_off, "the power is on"
        found = SimulatedDisk(self.rng, self.clock)
        found._names = self._names.survivor(rng or self.rng)
        found._capacity_bytes = self._capacity_bytes
        return found

    def open(self, path: str) -> SimulatedFile:
        with self.call("open", path):
            return SimulatedFile(self, path, self._names.content(path), is_writable=True)

    def open_readonly(self, path: str) -> SimulatedFile:
        with self.call("open_readonly", path):
            return SimulatedFile(self, path, self._names.content(path), is_writable=False)

    def create(self, path: str, *, is_secret: bool = False) -> SimulatedFile:  # noqa: ARG002 - one user
        with self.call("create", path):
            content = Content(bytearray(), self.clock.now_ms())
            self._names.add(path, content)
            return SimulatedFile(self, path, content, is_writable=True)

    def list(self, path: str) -> list[str]:
        with self.call("list", path):
            return sorted(self._names.directory(path).entries)

    def is_directory(self, path: str) -> bool:
        with self.call("is_directory", path):
            try:
                return isinstance(self._names.find(path), Directory)
            except (FileNotFoundError, NotADirectoryError):
                return False

    def is_link(self, path: str) -> bool:
        with self.call("is_link", path):
            return False

    def exists(self, path: str) -> bool:
        with self.call("exists", path):
            try:
                self._names.find(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def size(self, path: str) -> int:
        with self.call("size", path):
            return len(self._names.content(path).data)

    def modified_ms(self, path: str) -> int:
        with self.call("modified_ms", path):
            return self._names.content(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        with self.call("set_modified_ms", path):
            self._names.content(path).modified_ms = modified_ms

    def read(self, path: str) -> bytes:
        with self.call("read", path):
            content = self._names.content(path)
            content.cold.clear()
            return bytes(content.data)

    def replace(
        self, path: str, content: bytes, *, durable: bool = True, is_secret: bool = False
    ) -> None:
        replace(self, path, content, durable=durable, is_secret=is_secret)

    def make_directory(self, path: str) -> None:
        with self.call("make_directory", path):
            self._names.add(path, Directory())

    def rename(self, old: str, new: str) -> None:
        with self.call("rename", new):
            self._names.rename(old, new)

    def link(self, old: str, new: str) -> None:
        with self.call("link", new):
            self._names.link(old, new)

    def exchange(self, one: str, other: str) -> bool:
        with self.call("exchange", other):
            return self._names.exchange(one, other)

    def remove(self, path: str) -> None:
        with self.call("remove", path):
            self._names.remove(path)

    def remove_tree(self, path: str) -> None:
        with self.call("remove_tree", path):
            self._names.remove_tree(path)

    def sync_directory(self, path: str) -> None:
        with self.call("sync_directory", path):
            self._names.sync(self._names.directory(path))

    def sync_filesystem(self, path: str) -> None:
        def fail_syncs() -> None:
            for content in self._names.contents():
                content.fail_sync()

        with self.call("sync_filesystem", path, spoil=fail_syncs):
            self._names.sync(None)
            for content in self._names.contents():
                content.sync()

    def free_bytes(self, path: str) -> int:
        with self.call("free_bytes", path):
            return max(0, self._capacity_bytes - self.used_bytes())

    def total_bytes(self, path: str) -> int:
        with self.call("total_bytes", path):
            return self._capacity_bytes

    def lock(self, path: str) -> SimulatedLock:
        if not self.exists(path):
            self.create(path)
        with self.call("lock", path):
            content = self._names.content(path)
            if content.is_locked:
                raise os_error(errno.EAGAIN, path)
            content.is_locked = True
            return SimulatedLock(content)


def _pages(position: int, size: int) -> range:
    return range(position // PAGE_BYTES, -(-(position + max(0, size)) // PAGE_BYTES))
