"""A disk that can fill up, hang, die, lose what was not synced, and be replaced by an empty one.

It is a filesystem on a loop device, which the kernel detaches with the last mount.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
from pathlib import Path

from lab.shell import run

SIZE_MIB = 320
_MIB = 1 << 20
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_WITHOUT_JOURNAL = 2  # of what is not on disk, not even the journal gets there
_BALLAST = "ballast"
_STEPS_MIN = 4096


class Disk:
    """A mounted filesystem, with a directory `log` for a broker's logs."""

    def __init__(self, directory: Path, name: str) -> None:
        self._image = directory / f"{name}.img"
        self.mount = directory / name
        self.mount.mkdir()
        self._image.touch()
        os.truncate(self._image, SIZE_MIB * _MIB)
        self._make()

    @property
    def log_directory(self) -> Path:
        return self.mount / "log"

    def _make(self) -> None:
        run("mkfs.ext4", "-q", "-F", "-m", "0", self._image)
        self._mount()
        self.log_directory.mkdir()

    def _mount(self) -> None:
        run("mount", "-o", "loop", self._image, self.mount)

    def fill(self) -> None:
        """Leave no room."""
        with (self.mount / _BALLAST).open("ab") as ballast:
            size = shutil.disk_usage(self.mount).free
            while size >= _STEPS_MIN:
                try:
                    os.posix_fallocate(ballast.fileno(), ballast.seek(0, os.SEEK_END), size)
                except OSError:
                    size //= 2  # the filesystem needs some of it itself

    def make_room(self) -> None:
        """Undo `fill`."""
        (self.mount / _BALLAST).unlink(missing_ok=True)

    def hang(self) -> None:
        """Writes wait until `go_on`; who waits cannot even be killed."""
        run("fsfreeze", "--freeze", self.mount)

    def go_on(self) -> None:
        """Undo `hang`."""
        run("fsfreeze", "--unfreeze", self.mount)

    def die(self) -> None:
        """Each call fails with EIO from now on, and what was not synced is lost."""
        descriptor = os.open(self.mount, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _WITHOUT_JOURNAL))
        finally:
            os.close(descriptor)

    def come_back(self) -> None:
        """Mount it again after `die`, once nobody uses it."""
        run("umount", self.mount)
        self._mount()

    def replace(self) -> None:
        """An empty disk in its place, once nobody uses it."""
        run("umount", self.mount)
        self._make()
