"""A closed log located, rebuilt, trimmed; with a power loss at every call, a usable one."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kdist.errors import DiskFull, UserError
from kdist.inspection.indexes import rebuild_segment
from kdist.inspection.place import Kind, load_saved, locate
from kdist.inspection.reading import find_offset, find_time
from kdist.inspection.report import Severity
from kdist.inspection.trim import carry_out, plan_cut_at_damage, plan_cut_at_offset
from kdist.inspection.verify import verify
from kdist.runtime.disk import Disk
from kdist.runtime.readonly import ReadOnlyFiles
from kdist.storage.checkpoints import load_offsets, save_offsets
from kdist.storage.names import flush_mark_name
from kdist.testing.simulated_disk import SimulatedDisk
from kdist.testing.simulated_faults import PowerLoss
from tests.examples import first_of
from tests.unit.inspection.inspection_logs import (
    CLICKS,
    END_OFFSET,
    FIELDS,
    LOOK,
    RECORDS,
    START_MS,
    check,
    flip,
    headers,
    make_directory,
    of,
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


def trim_on(disk: SimulatedDisk, offset: int | None) -> None:
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


# --- locate -------------------------------------------------------------------------------------


def test_a_path_is_classified_by_its_name_and_content(log: Path, tmp_path: Path) -> None:
    kinds = {
        log.parent: Kind.LOG_DIRECTORY,
        log: Kind.PARTITION,
        segments(log)[0]: Kind.SEGMENT,
        segments(log)[0].with_suffix(".index"): Kind.INDEX,
        log / "leader-epoch-checkpoint": Kind.EPOCHS,
        log.parent / "meta.properties": Kind.META,
        log.parent / "recovery-point-offset-checkpoint": Kind.CHECKPOINT,
    }
    assert {path: locate(LOOK, str(path)).kind for path in kinds} == kinds


@pytest.mark.parametrize("name", ["missing", "empty", "other", "notes.txt"])
def test_a_path_outside_any_log_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x").touch()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match=name):
        locate(LOOK, str(tmp_path / name))


# --- find ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", ["nothing", "missing", "garbage"])
def test_every_offset_and_time_is_found_whatever_the_indexes_say(log: Path, spoil: str) -> None:
    for index in log.glob("*.index"):
        if spoil == "missing":
            index.unlink()
        elif spoil == "garbage":
            index.write_bytes(random.Random(2).randbytes(80))
    (partition,) = locate(LOOK, str(log)).partitions
    for offset in range(END_OFFSET):
        found = find_offset(LOOK, partition, offset)
        assert found is not None
        assert found.record.offset == offset
        assert found.header.base_offset == offset - offset % RECORDS
        assert find_time(LOOK, partition, START_MS + offset) == found
    assert find_offset(LOOK, partition, END_OFFSET) is None
    assert find_time(LOOK, partition, START_MS + END_OFFSET) is None


# --- rebuild ------------------------------------------------------------------------------------


def test_rebuilt_indexes_equal_those_that_the_broker_wrote(log: Path) -> None:
    sound = {path: path.read_bytes() for path in log.glob("*index")}
    for path in sound:
        path.write_bytes(b"garbage")
    (partition,) = locate(LOOK, str(log)).partitions
    for base_offset in partition.bases:
        rebuilt = rebuild_segment(Disk(), partition, base_offset)
        assert all(each.fault_before and not each.failure for each in rebuilt)
    assert check(log).findings == []
    times = {path: content for path, content in sound.items() if path.suffix == ".timeindex"}
    # The topic's own index interval, 300 bytes, is not known: fewer entries, the same last one.
    assert {path: path.read_bytes()[-12:] for path in times} == {
        path: content[-12:] for path, content in times.items()
    }


def test_a_damaged_segment_keeps_its_indexes(log: Path) -> None:
    segment = segments(log)[1]
    flip(segment, headers(segment)[3][0] + FIELDS["magic"])
    before = {path: path.read_bytes() for path in log.iterdir()}
    (partition,) = locate(LOOK, str(log)).partitions
    rebuilt = rebuild_segment(Disk(), partition, partition.bases[1])
    assert all(each.failure and "magic is 3" in each.failure for each in rebuilt)
    assert {path: path.read_bytes() for path in log.iterdir()} == before


# --- trim ---------------------------------------------------------------------------------------


def trim(log: Path, offset: int | None, *, is_kept: bool = True) -> tuple[int, tuple[str, ...]]:
    place = locate(LOOK, str(log))
    saved = load_saved(LOOK, place.log_directory)
    (partition,) = place.partitions
    if offset is None:
        cut = plan_cut_at_damage(LOOK, partition, saved)
    else:
        cut = plan_cut_at_offset(LOOK, partition, saved, offset)
    assert cut is not None
    trimmed = carry_out(Disk(), place, saved, cut, is_kept=is_kept)
    assert trimmed.end_offset == cut.end_offset
    return trimmed


def end_after_a_start(log: Path) -> int:
    directory = open_directory(log.parent)
    end_offset = directory.logs[CLICKS].end_offset
    directory.close()
    return end_offset


@pytest.mark.parametrize("offset", [0, 1, 3, 17, 18, 35, 36, 37, 54, 71])
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_trimmed_log_is_sound_and_ends_where_it_was_cut(
    request: pytest.FixtureRequest, offset: int, is_closed: bool
) -> None:
    log: Path = request.getfixturevalue("log" if is_closed else "killed")
    end_offset, _ = trim(log, offset, is_kept=False)
    assert end_offset == offset - offset % RECORDS
    report = check(log.parent)
    assert not report.is_damaged
    assert of(report, Severity.STALE) == []
    assert report.records == end_offset
    saved = load_offsets(Disk(), f"{log.parent}/recovery-point-offset-checkpoint")
    assert saved[CLICKS] == end_offset
    assert (log.parent / ".kafka_cleanshutdown").exists() == is_closed
    assert end_after_a_start(log) == end_offset


def test_a_trimmed_log_has_no_flush_mark(log: Path) -> None:
    mark = log / flush_mark_name("c" * 22)
    mark.touch()
    trim(log, 3)
    assert not mark.exists()


def test_trimmed_bytes_are_kept_beside_the_log(log: Path) -> None:
    before = b"".join(segment.read_bytes() for segment in segments(log))
    kept = trim(log, 40).kept
    again = trim(log, 20).kept
    assert not set(kept) & set(again)
    now = [*segments(log), *map(Path, again), *map(Path, kept)]
    assert b"".join(path.read_bytes() for path in now) == before
    assert end_after_a_start(log) == 18
    assert all(Path(path).exists() for path in (*kept, *again))


def assert_cut_at_damage(log: Path, wanted: int) -> None:
    """Trimmed at its damage the log ends at this offset, and is sound."""
    end_offset, kept = trim(log, None)
    assert end_offset == wanted
    assert len(kept) == 2
    report = check(log.parent)
    assert not report.is_damaged
    assert of(report, Severity.STALE) == []
    assert end_after_a_start(log) == end_offset


@pytest.mark.parametrize("field", ["batch length, lower", "magic", "crc", "record count"])
@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_log_trimmed_at_its_damage_is_sound(log: Path, field: str, number: int) -> None:
    segment = segments(log)[2]
    position, header = headers(segment)[number]
    flip(segment, position + FIELDS[field])
    assert_cut_at_damage(log, header.base_offset)


@pytest.mark.parametrize("byte", [4, 5, 6, 7])
@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_log_with_a_base_offset_too_high_is_cut_in_front_of_that_batch(
    log: Path, number: int, byte: int
) -> None:
    segment = segments(log)[2]
    position, header = headers(segment)[number]
    content = bytearray(segment.read_bytes())
    content[position + byte] |= 0x40
    segment.write_bytes(content)
    assert_cut_at_damage(log, header.base_offset)


def test_a_cut_at_an_offset_behind_damage_is_refused(killed: Path) -> None:
    segment = segments(killed)[1]
    flip(segment, headers(segment)[1][0] + FIELDS["crc"])
    with pytest.raises(UserError, match="--at-damage"):
        trim(killed, 50)


def test_a_cut_below_the_log_start_offset_is_refused(log: Path) -> None:
    save_offsets(Disk(), f"{log.parent}/log-start-offset-checkpoint", {CLICKS: 20})
    with pytest.raises(UserError, match="begins at offset 20"):
        trim(log, 19)


def test_there_is_nothing_to_cut_in_a_sound_log_or_behind_its_end(log: Path) -> None:
    saved = load_saved(LOOK, str(log.parent))
    (partition,) = locate(LOOK, str(log)).partitions
    assert plan_cut_at_damage(LOOK, partition, saved) is None
    assert plan_cut_at_offset(LOOK, partition, saved, END_OFFSET) is None


# --- the view -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("create", 1),
        ("replace", 2),
        ("make_directory", 1),
        ("rename", 2),
        ("remove", 1),
        ("remove_tree", 1),
        ("sync_directory", 1),
        ("sync_filesystem", 1),
        ("lock", 1),
    ],
)
def test_every_changing_call_on_the_view_fails_an_assertion(call: str, arguments: int) -> None:
    with pytest.raises(AssertionError, match=f"{call} of x"):
        getattr(LOOK, call)(*["x"] * arguments)


def test_a_file_of_the_view_can_only_be_read(log: Path) -> None:
    path = str(segments(log)[0])
    file = LOOK.open(path)
    assert file.read(0, 10) == Path(path).read_bytes()[:10]
    for call, arguments in {
        "write": ([b"x"], 0),
        "truncate": (0,),
        "sync": (),
        "preallocate": (0, 1),
        "start_writeback": (0, 1),
    }.items():
        with pytest.raises(AssertionError, match=re.escape(f"{call} of {path}")):
            getattr(file, call)(*arguments)
    file.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_interrupted_trim_leaves_an_end_between_the_old_one_and_the_cut(
    contents: dict[str, bytes], seed: int
) -> None:
    ends = [start_and_stop(disk) for disk in survivors(contents, lambda d: trim_on(d, 40), seed)]
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
    for disk in survivors(contents, lambda d: trim_on(d, None), seed):
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
        trim_on(disk, 40)
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
