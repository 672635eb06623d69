"""How many files a log has open: few, however many segments it has."""

from __future__ import annotations

import os
from pathlib import Path

from storage_world import World, append

from kdist.runtime.disk import Disk, DiskFile
from kdist.storage.names import LEADER_EPOCHS, RECOVERY_POINTS

SEGMENTS = 50


class CountingDisk(Disk):
    """Keeps the largest number of descriptors that this process had open."""

    most = 0

    def open(self, path: str) -> DiskFile:
        file = super().open(path)
        self.most = max(self.most, len(os.listdir("/proc/self/fd")))
        return file


def most_opened(tmp_path: Path, *, is_stopped: bool, lost: str = "") -> int:
    """How many files are open at most when a log without its files of this name is opened."""
    disk = CountingDisk()
    world = World(disk, str(tmp_path))
    log = world.log(segment_bytes=100, index_interval_bytes=0)
    for _ in range(SEGMENTS):
        world.clock.advance_ms(1)
        append(world, log, 3)
    assert len(log.segments) == SEGMENTS
    if is_stopped:
        world.stop()
    else:
        world.directory._lock.release()
    log.close()
    for path in tmp_path.rglob(lost) if lost else ():
        path.unlink()
    before, disk.most = len(os.listdir("/proc/self/fd")), 0
    world.open().retain(lambda log: log.end_offset)
    return disk.most - before


def test_a_start_and_the_first_retention_open_few_files_at_a_time(tmp_path: Path) -> None:
    cases = {
        "stopped": {"is_stopped": True},
        "killed": {"is_stopped": False},
        "without recovery points": {"is_stopped": False, "lost": RECOVERY_POINTS},
        "without producers": {"is_stopped": True, "lost": "*.snapshot"},
        "without epochs": {"is_stopped": True, "lost": LEADER_EPOCHS},
        "without indexes": {"is_stopped": True, "lost": "*index"},
    }
    for name, case in cases.items():
        (tmp_path / name).mkdir()
        assert most_opened(tmp_path / name, **case) < 12, name
