"""Power loss at every call of a trim and a rebuild: the next start finds a usable log."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kdist.errors import DiskFull
from kdist.inspection.indexes import rebuild_segment
from kdist.inspection.place import load_saved, locate
from kdist.inspection.report import Severity
from kdist.inspection.trim import carry_out, plan_cut_at_damage, plan_cut_at_offset
from kdist.inspection.verify import verify
from kdist.runtime.readonly import ReadOnlyFiles
from kdist.runtime.simulated_disk import SimulatedDisk
from kdist.runtime.simulated_faults import PowerLoss
from tests.examples import first_of
from tests.unit.inspection.inspection_logs import (
    CLICKS,
    END_OFFSET,
    headers,
    make_directory,
    open_directory,
    segments,
)

TOP = Path("/log")
PARTITION = TOP / "clicks-0"

SEEDS = first_of(range(3))


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A closed log directory's files."""
    top = tmp_path_factory.mktemp("pristine") / "log"
    make_directory(top)
    return {f"/log/{p.relative_to(top)}": p.read_bytes() for p in top.rglob("*") if p.is_file()}


def on_disk(contents: dict[str, bytes], seed: int) -> SimulatedDisk:
    """The directory on a simulated disk, all of it synced."""
    disk = SimulatedDisk(random.Random(seed))
    disk.make_directory(str(TOP))
    disk.make_directory(str(PARTITION))
    for path, content in contents.items():
        disk.replace(path, content)
    disk.sync_directory("/")
    return disk


def trim(disk: SimulatedDisk, offset: int | None) -> None:
    view = ReadOnlyFiles(disk)
    place, saved = locate(view, str(PARTITION)), load_saved(view, str(TOP))
    (partition,) = place.partitions
    if offset is None:
        cut = plan_cut_at_damage(view, partition, saved)
    else:
        cut = plan_cut_at_offset(view, partition, saved, offset)
    assert cut is not None
    carry_out(disk, place, saved, cut, is_kept=True)


def rebuild(disk: SimulatedDisk) -> None:
    (partition,) = locate(disk, str(PARTITION)).partitions
    for base_offset in partition.bases:
        rebuild_segment(disk, partition, base_offset)


def survivors(
    contents: dict[str, bytes], work: Callable[[SimulatedDisk], None], seed: int
) -> Iterator[SimulatedDisk]:
    """The disk after a power loss at each call of `work`, and lastly after all of it."""
    calls = 0
    while True:
        calls += 1
        disk = on_disk(contents, seed * 1000 + calls)
        disk.crash_at(calls)
        try:
            work(disk)
        except PowerLoss:
            yield disk.power_on()
        else:
            yield disk.crash()
            return


def start_and_stop(disk: SimulatedDisk) -> int:
    """A broker's start and clean stop; where the log ends."""
    directory = open_directory(TOP, disk)
    end_offset = directory.logs[CLICKS].end_offset
    directory.close()
    view = ReadOnlyFiles(disk)
    report = verify(view, locate(view, str(TOP)), is_deep=True)
    wrong = [f for f in report.findings if f.severity is not Severity.NOTE]
    assert wrong == []
    assert report.records == end_offset
    return end_offset


@pytest.mark.parametrize("seed", SEEDS)
def test_an_interrupted_trim_leaves_an_end_between_the_old_one_and_the_cut(
    contents: dict[str, bytes], seed: int
) -> None:
    ends = [start_and_stop(disk) for disk in survivors(contents, lambda d: trim(d, 40), seed)]
    assert set(ends) <= set(range(39, END_OFFSET + 1))
    assert ends[0] == END_OFFSET
    assert ends[-1] == 39


@pytest.mark.parametrize("seed", SEEDS)
def test_an_interrupted_trim_at_damage_loses_nothing_before_the_damage(
    contents: dict[str, bytes], tmp_path: Path, seed: int
) -> None:
    segment = segments(make_directory(tmp_path / "log"))[2]
    path = f"{PARTITION}/{segment.name}"
    damaged = bytearray(contents[path])
    damaged[headers(segment)[3][0] + 16] ^= 1
    contents = contents | {path: bytes(damaged)}
    for disk in survivors(contents, lambda d: trim(d, None), seed):
        directory = open_directory(TOP, disk)
        assert directory.logs[CLICKS].end_offset >= 45
    assert directory.logs[CLICKS].end_offset == 45


@pytest.mark.parametrize("seed", SEEDS)
def test_an_interrupted_rebuild_leaves_old_or_new_indexes(
    contents: dict[str, bytes], seed: int
) -> None:
    for disk in survivors(contents, rebuild, seed):
        view = ReadOnlyFiles(disk)
        report = verify(view, locate(view, str(PARTITION)))
        assert [f for f in report.findings if f.severity is not Severity.NOTE] == []
        assert start_and_stop(disk) == END_OFFSET


def test_a_full_disk_refuses_a_trim_and_changes_nothing(contents: dict[str, bytes]) -> None:
    disk = on_disk(contents, 1)
    disk.fill(0)
    with pytest.raises(DiskFull):
        trim(disk, 40)
    assert sorted(disk.list(str(PARTITION))) == sorted(
        path.rpartition("/")[2] for path in contents if path.startswith(f"{PARTITION}/")
    )
    assert all(disk.read(path) == content for path, content in contents.items())


@pytest.mark.parametrize("room_bytes", [0, 10])
def test_a_full_disk_refuses_a_rebuild_and_leaves_the_old_indexes(
    contents: dict[str, bytes], room_bytes: int
) -> None:
    disk = on_disk(contents, 1)
    disk.fill(disk.total_bytes("/") - disk.free_bytes("/") + room_bytes)
    with pytest.raises(DiskFull):
        rebuild(disk)
    names = {path.rpartition("/")[2] for path in contents if path.startswith(f"{PARTITION}/")}
    assert set(disk.list(str(PARTITION))) == names
    assert {path: disk.read(path) for path in contents} == contents
