"""What only the real disk does: partial and failing system calls, and locks between processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from kdist.errors import DiskFailed, DiskFull
from kdist.runtime import linux
from kdist.runtime.disk import Disk
from kdist.runtime.files import FAILED, Buffer


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.close()


TINY_BYTES = 65_536


@pytest.fixture
def tiny_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Room for 64 KiB: a tmpfs where this user may mount one, else writes that stop there."""
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={TINY_BYTES}", "tmpfs", str(tmp_path)]
    is_mounted = subprocess.run(mounting, capture_output=True, check=False).returncode == 0
    pwrite = os.pwrite

    def write_what_fits(descriptor: int, data: Buffer | list[Buffer], position: int) -> int:
        if position >= TINY_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        content = b"".join(data) if isinstance(data, list | tuple) else data
        return pwrite(descriptor, content[: TINY_BYTES - position], position)

    if not is_mounted:
        monkeypatch.setattr(os, "pwritev", write_what_fits)
        monkeypatch.setattr(os, "pwrite", write_what_fits)
    yield tmp_path
    if is_mounted:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def refusing(code: int) -> Callable[..., NoReturn]:
    """A system call that fails with `code`."""

    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return refuse


def test_a_short_write_is_continued(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev, pwrite = os.pwritev, os.pwrite
    content = bytes(range(100))
    buffers: list[Buffer] = [content[:10], b"", content[10:11], memoryview(content)[11:60]]
    buffers.append(content[60:])
    written: list[int] = []

    def write_first(descriptor: int, buffers: list[Buffer], position: int) -> int:
        written[:] = [pwritev(descriptor, [b"".join(buffers)[:first]], position)]
        return first

    def write_seven(descriptor: int, buffer: memoryview, position: int) -> int:
        written.append(pwrite(descriptor, buffer[:7], position))
        return written[-1]

    monkeypatch.setattr(os, "pwritev", write_first)
    monkeypatch.setattr(os, "pwrite", write_seven)
    for first in range(100):
        file = disk.create(str(tmp_path / f"{first}"))
        assert file.write(buffers, 3) == sum(written) == 100
        assert file.read(0, 200) == bytes(3) + content
        file.close()


def test_a_short_read_is_continued(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.create(str(tmp_path / "a"))
    file.write((bytes(range(100)),), 0)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 7), at))
    assert file.read(10, 50) == bytes(range(10, 60))
    assert file.read(90, 50) == bytes(range(90, 100))
    file.close()


def test_a_cached_read_that_finds_only_a_part_returns_none(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.create(str(tmp_path / "a"))
    file.write((bytes(100),), 0)
    monkeypatch.setattr(os, "preadv", lambda _fd, _buffers, _at, _flags: 10)
    assert file.read_cached(0, 50) is None
    assert file.read_cached(90, 50) == bytes(10)  # the file ends there
    monkeypatch.setattr(os, "preadv", refusing(errno.EAGAIN))
    assert file.read_cached(0, 50) is None
    file.close()


def test_a_filesystem_without_rwf_nowait_is_tried_once(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def preadv(*arguments: object) -> NoReturn:
        asked.append(arguments)
        refusing(errno.EOPNOTSUPP)()

    file = disk.create(str(tmp_path / "a"))
    file.write((b"abc",), 0)
    monkeypatch.setattr(os, "preadv", preadv)
    assert file.read_cached(0, 3) == b"abc"
    assert file.read_cached(1, 9) == b"bc"
    assert len(asked) == 1
    file.close()


def test_a_filesystem_without_fallocate_or_sync_file_range_is_tried_once(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def unsupported(*arguments: int) -> bool:
        asked.append(arguments)
        return False

    monkeypatch.setattr(linux, "reserve", unsupported)
    monkeypatch.setattr(linux, "start_writeback", unsupported)
    file = disk.create(str(tmp_path / "a"))
    for _ in range(3):
        file.preallocate(0, 4096)
        file.start_writeback(0, 4096)
    assert len(asked) == 2
    file.close()


def test_preallocated_blocks_are_freed_by_truncate(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = disk.create(str(path))
    file.write((bytes(5000),), 0)
    file.preallocate(0, 1 << 20)
    file.sync()
    before = path.stat().st_blocks * 512
    file.truncate(5000)
    assert before >= 1 << 20
    assert path.stat().st_blocks * 512 <= 16_384
    file.close()


def test_a_write_to_a_full_filesystem_writes_what_fits_and_raises(
    disk: Disk, tiny_directory: Path
) -> None:
    file = disk.create(str(tiny_directory / "a"))
    with pytest.raises(DiskFull):
        file.write((b"x" * 40_000, b"y" * 40_000), 0)
    assert file.size() == TINY_BYTES
    file.preallocate(0, 1 << 20)
    file.truncate(0)
    assert file.write((b"z" * 60_000,), 0) == 60_000
    file.close()


def test_a_replace_on_a_full_filesystem_keeps_the_old_content_only(
    disk: Disk, tiny_directory: Path
) -> None:
    path = str(tiny_directory / "a")
    disk.replace(path, b"old")
    with pytest.raises(DiskFull):
        disk.replace(path, bytes(100_000))
    assert disk.list(str(tiny_directory)) == ["a"]
    assert disk.read(path) == b"old"


@pytest.mark.parametrize("code", sorted(FAILED), ids=errno.errorcode.__getitem__)
def test_a_device_error_raises_disk_failed(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = str(tmp_path / "a")
    file = disk.create(path)
    for name in ("pread", "pwritev", "preadv", "ftruncate", "fdatasync", "posix_fadvise"):
        monkeypatch.setattr(os, name, refusing(code))
    for name in ("open", "stat", "listdir", "rename", "unlink", "mkdir", "statvfs", "utime"):
        monkeypatch.setattr(os, name, refusing(code))
    for name in ("reserve", "start_writeback"):
        monkeypatch.setattr(linux, name, refusing(code))
    calls: list[Callable[[], object]] = [
        lambda: file.read(0, 1), lambda: file.read_cached(0, 1), lambda: file.write((b"x",), 0),
        lambda: file.truncate(0), file.sync, lambda: file.preallocate(0, 1),
        lambda: file.start_writeback(0, 1), lambda: file.drop_cached(0, 1),
        lambda: disk.open(path), lambda: disk.create(path), lambda: disk.exists(path),
        lambda: disk.is_directory(path), lambda: disk.list(path), lambda: disk.size(path),
        lambda: disk.modified_ms(path), lambda: disk.rename(path, path),
        lambda: disk.remove(path), lambda: disk.make_directory(path),
        lambda: disk.free_bytes(path), lambda: disk.sync_directory(path),
        lambda: disk.sync_filesystem(path), lambda: disk.lock(path),
        lambda: disk.replace(path, b""), lambda: disk.total_bytes(path),
        lambda: disk.set_modified_ms(path, 5),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(DiskFailed, match=r"the disk under .* failed"):
            call()
    monkeypatch.undo()
    file.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_refuses_a_write_and_fails_a_sync(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    file = disk.create(str(tmp_path / "a"))
    for name in ("pwritev", "fdatasync", "fsync"):
        monkeypatch.setattr(os, name, refusing(code))
    monkeypatch.setattr(linux, "reserve", refusing(code))
    monkeypatch.setattr(linux, "sync_filesystem", refusing(code))
    with pytest.raises(DiskFull):
        file.write((b"x",), 0)
    for sync in (
        file.sync,
        lambda: disk.sync_directory(str(tmp_path)),
        lambda: disk.sync_filesystem(str(tmp_path)),
    ):
        with pytest.raises(DiskFailed):
            sync()
    file.preallocate(0, 4096)  # the write that comes decides
    file.close()


def test_an_error_that_is_not_the_disks_passes_through(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.create(str(tmp_path / "a"))
    monkeypatch.setattr(os, "pwritev", refusing(errno.EPERM))
    with pytest.raises(PermissionError):
        file.write((b"x",), 0)
    file.close()


def test_no_descriptor_is_inherited(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    for file in (disk.create(path), disk.open(path), disk.open_readonly(path)):
        descriptor = file.fileno()
        assert descriptor is not None
        assert not os.get_inheritable(descriptor)
        file.close()


def test_no_descriptor_is_leaked(disk: Disk, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    disk.create(str(tmp_path / "a")).close()
    disk.replace(str(tmp_path / "a"), b"abc")
    disk.sync_directory(str(tmp_path))
    lock = disk.lock(str(tmp_path / "b"))
    with pytest.raises(BlockingIOError):
        disk.lock(str(tmp_path / "b"))
    lock.release()
    with pytest.raises(IsADirectoryError):
        disk.open_readonly(str(tmp_path))
    for _ in range(3):
        disk.sync_filesystem(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before + 1
    disk.close()
    assert len(os.listdir("/proc/self/fd")) == before


HOLD = """
import sys, time
from kdist.runtime.disk import Disk
lock = Disk().lock(sys.argv[1])
print("held", flush=True)
time.sleep(600)
"""

HOLD_AS_JAVA_DOES = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("program", [HOLD, HOLD_AS_JAVA_DOES], ids=["kdist", "java"])
def test_a_lock_excludes_other_processes_until_they_die(
    disk: Disk, tmp_path: Path, program: str
) -> None:
    path = str(tmp_path / ".lock")
    holder = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(BlockingIOError):
        disk.lock(path)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    disk.lock(path).release()


@pytest.mark.parametrize("is_left_over", [False, True])
def test_a_secret_file_is_its_owners_alone_to_read(
    disk: Disk, tmp_path: Path, is_left_over: bool
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"old, and readable by all")
    if is_left_over:
        path.with_suffix(".tmp").write_bytes(b"")
    disk.replace(str(path), b"password", is_secret=True)
    assert path.read_bytes() == b"password"
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_boot_id_is_the_kernels() -> None:
    assert linux.boot_id() == linux.boot_id()
    assert len(linux.boot_id()) == 36
