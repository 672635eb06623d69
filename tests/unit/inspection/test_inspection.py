"""What `verify` finds in sound and damaged logs."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pytest

from kdist.inspection.place import locate
from kdist.inspection.report import Severity
from kdist.inspection.verify import verify
from kdist.records.batch import HEADER_SIZE, seal
from kdist.records.build import build_batch
from kdist.records.record import Record
from kdist.runtime.disk import Disk
from kdist.storage.checkpoints import save_offsets
from tests.unit.inspection.inspection_logs import (
    CLICKS,
    END_OFFSET,
    FIELDS,
    LOOK,
    START_MS,
    check,
    flip,
    headers,
    of,
    segments,
)
from tests.written_records import write_message_set


def damages(path: Path) -> list[tuple[str, int | None]]:
    return of(check(path), Severity.DAMAGE)


# --- verify: batches ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_deep", [False, True])
def test_a_log_after_a_clean_stop_has_no_findings(log: Path, is_deep: bool) -> None:
    report = check(log.parent, is_deep=is_deep)
    assert report.findings == []
    assert (report.partitions, report.segments, report.batches) == (1, 4, 24)
    assert report.records == END_OFFSET
    assert report.bytes == sum(segment.stat().st_size for segment in segments(log))


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("number", [0, 3, 5])
def test_a_flipped_bit_in_any_field_is_damage_at_its_batch_or_the_next(
    log: Path, field: str, number: int
) -> None:
    segment = segments(log)[1]
    batches = [position for position, _ in headers(segment)]
    flip(segment, batches[number] + FIELDS[field])
    found = damages(log)
    assert found
    assert found[0][0] in (segment.name, segments(log)[2].name)
    assert found[0][1] in (batches[number], *batches[number + 1 : number + 2], 0)


@pytest.mark.parametrize("position", range(HEADER_SIZE))
def test_a_flipped_bit_in_the_last_batch_of_a_closed_log_is_damage(
    log: Path, position: int
) -> None:
    segment = segments(log)[-1]
    flip(segment, headers(segment)[-1][0] + position, 0x10)
    assert check(log.parent).is_damaged


@pytest.mark.parametrize("field", ["batch length, lower", "batch length, higher", "magic", "crc"])
def test_sound_batches_behind_damage_are_still_counted(log: Path, field: str) -> None:
    segment = segments(log)[1]
    flip(segment, headers(segment)[2][0] + FIELDS[field])
    assert check(log).batches == 23


def test_every_damaged_batch_is_reported(log: Path) -> None:
    segment = segments(log)[0]
    positions = [headers(segment)[number][0] for number in (1, 4)]
    for position in positions:
        flip(segment, position + FIELDS["crc"])
    assert damages(log) == [(segment.name, position) for position in positions]


def test_a_misplaced_batch_is_reported_once(log: Path) -> None:
    segment = segments(log)[0]
    batches = headers(segment)
    data = segment.read_bytes()
    second, third = batches[1][0], batches[2][0]
    segment.write_bytes(data[:second] + data[third : third * 2 - second] + data[third:])
    found = [finding.reason for finding in check(log).findings if finding.path == str(segment)]
    assert any("where at least" in reason for reason in found)


@pytest.mark.parametrize("cut", [1, 60, 61, 100])
def test_a_torn_tail_is_damage_in_a_closed_log(log: Path, cut: int) -> None:
    segment = segments(log)[-1]
    position, header = headers(segment)[-1]
    segment.write_bytes(segment.read_bytes()[: position + cut])
    assert cut < header.size
    assert (segment.name, position) in damages(log.parent)


@pytest.mark.parametrize("cut", [1, 60, 61, 100])
def test_a_torn_tail_is_stale_where_a_broker_may_be_writing(killed: Path, cut: int) -> None:
    segment = segments(killed)[-1]
    position, _ = headers(segment)[-1]
    segment.write_bytes(segment.read_bytes()[: position + cut])
    report = check(killed.parent)
    assert of(report, Severity.DAMAGE) == []
    assert (segment.name, position) in of(report, Severity.STALE)


def test_a_torn_tail_below_the_recovery_point_is_damage(killed: Path) -> None:
    save_offsets(Disk(), f"{killed.parent}/recovery-point-offset-checkpoint", {CLICKS: END_OFFSET})
    segment = segments(killed)[-1]
    segment.write_bytes(segment.read_bytes()[:-5])
    assert check(killed).is_damaged


def test_a_torn_segment_that_is_not_the_last_is_damage(killed: Path) -> None:
    segment = segments(killed)[1]
    segment.write_bytes(segment.read_bytes()[:-5])
    assert (segment.name, headers(segment)[-1][0]) in damages(killed)


def test_a_torn_segment_verified_alone_is_judged_by_its_place_in_the_log(killed: Path) -> None:
    middle, last = segments(killed)[1], segments(killed)[-1]
    for segment in (middle, last):
        segment.write_bytes(segment.read_bytes()[:-5])
    assert check(middle).is_damaged
    assert not check(last).is_damaged


def test_a_length_that_reaches_beyond_the_file_is_no_torn_tail_if_batches_follow(
    killed: Path,
) -> None:
    segment = segments(killed)[-1]
    position = headers(segment)[2][0]
    flip(segment, position + 9)
    assert damages(killed) == [(segment.name, position)]


def test_zeros_preallocated_behind_the_last_batch_are_a_torn_tail(killed: Path) -> None:
    segment = segments(killed)[-1]
    size = segment.stat().st_size
    segment.write_bytes(segment.read_bytes() + bytes(5000))
    assert of(check(killed), Severity.STALE) == [(segment.name, size)]


def test_a_missing_segment_in_the_middle_is_damage(log: Path) -> None:
    gone, following = segments(log)[1:3]
    for path in log.glob(f"{gone.stem}.*"):
        path.unlink()
    report = check(log)
    assert (following.name, 0) in of(report, Severity.DAMAGE)
    assert any("offsets 18 to 35 are missing" in finding.reason for finding in report.findings)


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize(("state", "severity"), [("log", "damage"), ("killed", "stale")])
def test_an_index_whose_log_is_gone_is_damage_unless_a_power_loss_may_have_left_it(
    request: pytest.FixtureRequest, number: int, state: str, severity: str
) -> None:
    partition: Path = request.getfixturevalue(state)
    gone = segments(partition)[number]
    gone.unlink()
    orphans = {(gone.with_suffix(suffix).name, None) for suffix in (".index", ".timeindex")}
    assert orphans <= set(of(check(partition), Severity(severity)))


@pytest.mark.parametrize("suffix", ["log", "*"])
def test_a_log_without_segments_below_its_recovery_point_is_damage(log: Path, suffix: str) -> None:
    for path in log.glob(f"*.{suffix}"):
        path.unlink()
    assert ("clicks-0", None) in damages(log)


def test_the_same_gap_in_a_compacted_log_is_no_damage(log: Path) -> None:
    save_offsets(Disk(), f"{log.parent}/cleaner-offset-checkpoint", {CLICKS: 40})
    for path in log.glob(f"{segments(log)[1].stem}.*"):
        path.unlink()
    assert damages(log) == []


def test_segments_that_overlap_are_damage(log: Path) -> None:
    second = segments(log)[1]
    shutil.copy(segments(log)[0], log / f"{10:020d}.log")
    assert any(name in (f"{10:020d}.log", second.name) for name, _ in damages(log))


def test_only_a_deep_verify_finds_records_that_do_not_decode(tmp_path: Path) -> None:
    batch = build_batch([b"value"] * 3, timestamp_ms=START_MS)
    batch[HEADER_SIZE] ^= 0x10  # a record's length
    seal(batch, 0, len(batch))
    segment = tmp_path / f"{0:020d}.log"
    segment.write_bytes(batch)
    assert not check(segment, is_deep=False).is_damaged
    assert damages(segment) == [(segment.name, 0)]


def test_messages_of_an_old_format_are_reported_once_and_skipped(tmp_path: Path) -> None:
    old = [write_message_set([Record(n, START_MS, b"k", b"v")], 1) for n in range(3)]
    batch = build_batch([b"value"], timestamp_ms=START_MS, base_offset=3)
    segment = tmp_path / f"{0:020d}.log"
    segment.write_bytes(b"".join(old) + batch)
    report = check(segment)
    assert of(report, Severity.DAMAGE) == [(segment.name, 0)]
    assert "magic 1" in report.findings[0].reason
    assert report.batches == 1


# --- verify: derived files ----------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_missing_index_is_stale(log: Path, suffix: str) -> None:
    index = segments(log)[1].with_suffix(suffix)
    index.unlink()
    report = check(log)
    assert of(report, Severity.STALE) == [(index.name, None)]
    assert not report.is_damaged


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "content",
    [
        random.Random(1).randbytes(96),
        b"\xff" * 24,
        b"\x00\x00\x00\x01" * 6,
        b"odd",
    ],
)
def test_a_garbage_index_is_damage(log: Path, suffix: str, content: bytes) -> None:
    index = segments(log)[1].with_suffix(suffix)
    index.write_bytes(content)
    assert damages(log) == [(index.name, None)]


def test_an_index_longer_than_its_log_is_damage(log: Path) -> None:
    index = segments(log)[1].with_suffix(".index")
    index.write_bytes(index.read_bytes() + struct.pack(">ii", 1000, 100_000))
    assert damages(log) == [(index.name, None)]


@pytest.mark.parametrize(
    ("suffix", "entry_bits", "first", "end"), [(".index", 64, 32, 64), (".timeindex", 96, 0, 64)]
)
def test_every_flipped_bit_in_a_position_or_timestamp_is_damage(
    log: Path, suffix: str, entry_bits: int, first: int, end: int
) -> None:
    index = segments(log)[1].with_suffix(suffix)
    sound = index.read_bytes()
    missed = []
    for bit in range(len(sound) * 8):
        if not first <= bit % entry_bits < end:
            continue
        flip(index, bit // 8, 1 << bit % 8)
        if not check(index.with_suffix(".log"), is_deep=False).is_damaged:
            missed.append(bit)
        index.write_bytes(sound)
    assert missed == []


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_entry_for_an_offset_beyond_the_end_is_damage(log: Path, suffix: str) -> None:
    index = segments(log)[-1].with_suffix(suffix)
    flip(index, len(index.read_bytes()) - (6 if suffix == ".index" else 2))
    assert damages(log) == [(index.name, None)]


def test_zeros_behind_the_entries_of_an_index_are_no_entries(log: Path) -> None:
    for suffix in (".index", ".timeindex"):
        index = segments(log)[-1].with_suffix(suffix)
        index.write_bytes(index.read_bytes() + bytes(1200))
    assert check(log).findings == []


def test_a_time_index_without_its_last_entry_is_stale(log: Path) -> None:
    index = segments(log)[0].with_suffix(".timeindex")
    index.write_bytes(index.read_bytes()[:-12])
    assert of(check(log), Severity.STALE) == [(index.name, None)]


def test_a_flipped_bit_in_a_checkpoint_or_snapshot_is_damage(log: Path) -> None:
    snapshot = log / f"{36:020d}.snapshot"
    flip(snapshot, 20)
    (log / "leader-epoch-checkpoint").write_bytes(b"0\n1\n0")
    (log / "partition.metadata").write_bytes(b"version: 0\ntopic_id: x")
    (log.parent / "meta.properties").write_bytes(b"version=7\n")
    (log.parent / "recovery-point-offset-checkpoint").write_bytes(b"0\n2\nclicks 0 1\n")
    assert {name for name, _ in damages(log.parent)} == {
        snapshot.name,
        "leader-epoch-checkpoint",
        "partition.metadata",
        "meta.properties",
        "recovery-point-offset-checkpoint",
    }


def test_leader_epochs_that_contradict_the_batches_are_damage(log: Path) -> None:
    (log / "leader-epoch-checkpoint").write_bytes(b"0\n2\n0 0\n3 30\n")
    report = check(log)
    assert [finding.reason for finding in report.findings] == [
        "leader epoch 0 at offset 30, where leader-epoch-checkpoint has 3"
    ]
    assert report.is_damaged


def test_a_snapshot_of_another_offset_is_damage(log: Path) -> None:
    shutil.copy(log / f"{36:020d}.snapshot", log / f"{54:020d}.snapshot")
    assert damages(log) == [(f"{54:020d}.snapshot", None)]


def test_a_recovery_point_beyond_the_end_is_damage(log: Path) -> None:
    save_offsets(Disk(), f"{log.parent}/recovery-point-offset-checkpoint", {CLICKS: 100})
    assert damages(log) == [("clicks-0", None)]


def test_unknown_file_names_are_noted(log: Path) -> None:
    (log / "notes.txt").touch()
    (log / f"{0:020d}.log.swap").touch()
    (log / f"{7:020d}.index").touch()
    (log.parent / "old-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    report = check(log.parent)
    assert of(report, Severity.STALE) == [
        (f"{0:020d}.log.swap", None),
        (f"{7:020d}.index", None),
    ]
    assert {name for name, _ in of(report, Severity.NOTE)} == {
        "notes.txt",
        "old-0.0123456789abcdef0123456789abcdef-delete",
    }


def test_files_that_a_running_broker_deletes_meanwhile_are_noted(log: Path) -> None:
    place = locate(LOOK, str(log.parent))
    segments(log)[0].unlink()
    gone = [finding.reason for finding in verify(LOOK, place).findings]
    assert "was removed while this was being done" in gone
    shutil.rmtree(log)
    (finding,) = verify(LOOK, place).findings[-1:]
    assert (finding.path, finding.severity) == (str(log), Severity.NOTE)


def test_one_of_a_thing_is_told_as_one(log: Path) -> None:
    (log / f"{0:020d}.log.deleted").write_bytes(b"")
    with (log / f"{0:020d}.index").open("ab") as file:
        file.write(b"x")
    reasons = {finding.reason for finding in check(log, is_deep=False).findings}
    assert {"has 1 file to be unlinked", "has 1 byte after its last entry"} <= reasons
