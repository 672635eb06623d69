"""`kdist log` as people and scripts meet it: output, exit status, no trace left; and what mends."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kdist.cli.main import kdist
from kdist.config.topic import TopicSettings
from kdist.errors import DiskFailed
from kdist.records.batch import Batch, read_header
from kdist.records.build import build_batch, read_batch
from kdist.records.compression import Codec
from kdist.records.control import ControlType, EndTransactionMarker
from kdist.records.record import Record
from kdist.runtime.disk import Disk
from kdist.storage.checkpoints import save_offsets
from kdist.storage.names import CLEANER_OFFSETS, HIGH_WATERMARKS
from tests.unit.inspection.inspection_logs import (
    END_OFFSET,
    START_MS,
    flip,
    headers,
    make_directory,
    segments,
)
from tests.unit.storage.storage_world import CLICKS, World, on_real_disk
from tests.written_records import write_marker, write_message_set

LOOKING = [
    ["dump"],
    ["dump", "--records"],
    ["dump", "--json", "--records"],
    ["dump", "--index", "--time-index", "--snapshot", "--epochs", "--checkpoints"],
    ["verify", "--deep"],
    ["find", "--offset", "40"],
    ["find", "--time", "2023-11-14T22:13:20.040"],
]
"""Every command that changes nothing."""


def run(*arguments: object, text: str = "") -> Result:
    result = CliRunner().invoke(kdist, ["log", *map(str, arguments)], input=text)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def rows(*arguments: object) -> list[dict[str, Any]]:
    """What a command prints as JSON lines."""
    return [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]


def trace(path: Path) -> dict[str, tuple[bytes, int]]:
    """Every file's content and time of change, directories' times too."""
    return {
        str(found): (found.read_bytes() if found.is_file() else b"", found.stat().st_mtime_ns)
        for found in [path, *path.rglob("*")]
    }


PAIRS = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"a", None), (b"b", b"5")]


def stopped(path: Path, high_watermark: int = 5) -> World:
    """A directory with one compacted partition, closed cleanly."""
    world = on_real_disk(path, topic=TopicSettings(cleanup_policy=("compact",), segment_bytes=200))
    log = world.log()
    world.directory.high_watermarks = lambda: {CLICKS: high_watermark}
    for key, value in PAIRS:
        data = build_batch([value], [key], timestamp_ms=1)
        log.append_as_leader([Batch(read_header(data), data)], 0, 1)
    log.roll(1)
    world.flush(log)
    world.stop()
    return world


def ran(*words: str, status: int = 0, **more: str) -> str:
    done = CliRunner().invoke(kdist, ["log", "clean", *words], **more)  # type: ignore[arg-type]
    assert done.exit_code == status, done.output
    return done.output


def offsets_in(path: Path) -> list[int]:
    found: list[int] = []
    for segment in sorted((path / str(CLICKS)).glob("*.log")):
        data, at = segment.read_bytes(), 0
        while at < len(data):
            found += [each.offset for each in read_batch(data, at)]
            at += read_header(data, at).size
    return found


# --- dump ---------------------------------------------------------------------------------------


def test_dump_shows_each_batch_on_a_line_below_its_segment(log: Path) -> None:
    lines = run("dump", log).stdout.splitlines()
    assert [line for line in lines if line.startswith("/")] == [
        f"{path}  {path.stat().st_size / 1024:.1f} KiB" for path in segments(log)
    ]
    batches = [line.split() for line in lines if re.match(r" +[0-9]", line)]
    assert [line[:2] for line in batches] == [[str(n), str(n + 2)] for n in range(0, 72, 3)]
    assert batches[1][-4:] == ["create", "7/0/3..5", "0", "ok"]


def test_dump_aligns_numbers_to_the_right(log: Path) -> None:
    lines = run("dump", segments(log)[0]).stdout.splitlines()
    ends = {re.match(r" +[A-Z0-9]+ +[A-Z0-9]+", line).end() for line in lines[1:] if line}  # type: ignore[union-attr]
    assert len(ends) == 1


@pytest.mark.parametrize(
    ("environment", "is_styled"),
    [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_that_wants_no_color_gets_no_escapes(
    log: Path, environment: dict[str, str], is_styled: bool
) -> None:
    unset = {"NO_COLOR": None, "TERM": None}
    shown = CliRunner(env=unset | environment).invoke(kdist, ["log", "dump", str(log)], color=True)
    assert ("\x1b" in shown.stdout) is is_styled


def test_dump_of_a_range_that_holds_nothing_is_refused(log: Path) -> None:
    for end in (4, 5):
        result = run("dump", log, "--from", 5, "--to", end)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--to must be greater than --from" in result.stderr


def test_dump_in_json_has_raw_values(log: Path) -> None:
    first, *_ = rows("dump", log)
    position, header = headers(segments(log)[0])[0]
    assert first["file"] == str(segments(log)[0])
    assert (first["type"], first["position"], first["size"]) == ("batch", position, header.size)
    assert (first["base_offset"], first["last_offset"], first["record_count"]) == (0, 2, 3)
    assert (first["codec"], first["timestamp_type"]) == ("none", "create_time")
    assert (first["producer_id"], first["producer_epoch"], first["last_sequence"]) == (7, 0, 2)
    assert (first["max_timestamp"], first["leader_epoch"]) == (START_MS + 2, 0)
    assert (first["crc"], first["is_crc_ok"]) == (header.crc, True)


@pytest.mark.parametrize(("start", "end"), [(0, 72), (7, 8), (17, 19), (40, 41), (70, 100)])
def test_dump_of_a_range_has_its_records_and_no_others(log: Path, start: int, end: int) -> None:
    batches = rows("dump", log, "--records", "--from", start, "--to", end)
    offsets = [record["offset"] for batch in batches for record in batch["records"]]
    assert offsets == list(range(start, min(end, END_OFFSET)))


def test_a_limit_counts_batches_or_with_records_records(log: Path) -> None:
    assert len(rows("dump", log, "--limit", 7)) == 7
    batches = rows("dump", log, "--records", "--limit", 7)
    assert sum(len(batch["records"]) for batch in batches) == 7


def test_a_range_without_records_says_so(log: Path) -> None:
    assert "no batches in this range" in run("dump", log, "--from", 72).stdout


def test_dump_of_a_log_directory_leaves_out_empty_segments(tmp_path: Path) -> None:
    for name, content in {
        "clicks-0": build_batch([b"a"], timestamp_ms=START_MS), "views-0": b"", "views-1": b"",
    }.items():  # fmt: skip
        (tmp_path / name).mkdir()
        write_segment(tmp_path / name, content)
    text = run("dump", tmp_path).stdout
    assert ("clicks-0" in text, "views" in text) == (True, False)
    assert text.endswith("\n2 empty segments left out.\n")
    assert "no batches" in run("dump", tmp_path / "views-1").stdout


def write_segment(path: Path, *parts: bytes | bytearray) -> Path:
    segment = path / f"{0:020d}.log"
    segment.write_bytes(b"".join(parts))
    return segment


def test_null_empty_text_and_bytes_are_distinguished(tmp_path: Path) -> None:
    values = [None, b"", b"text", b"\xff\x00", "ключ".encode(), b"line\n"]
    batch = build_batch(
        values,
        headers=[[("h", None), ("h\x1b", b"")], *[[]] * 5],
        timestamp_ms=START_MS,
        codec=Codec.ZSTD,
    )
    segment = write_segment(tmp_path, batch)
    text = run("dump", "--records", segment).stdout
    shown = re.findall(r"null -> (\S+)", text)
    assert shown == ["null", '""', '"text"', "0xff00", '"ключ"', "0x6c696e650a"]
    assert '[h=null, h\\x1b=""]' in text
    (row,) = rows("dump", "--records", segment)
    assert [record["value"] for record in row["records"]] == [
        None, "", "text", {"hex": "ff00"}, "ключ", "line\n",
    ]  # fmt: skip
    assert row["records"][0]["headers"] == [["h", None], ["h\x1b", ""]]


@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT])
def test_a_marker_shows_commit_or_abort(tmp_path: Path, kind: ControlType) -> None:
    key, value = write_marker(EndTransactionMarker(kind, 9))
    batch = build_batch(
        [value], [key], timestamp_ms=START_MS, producer_id=3, producer_epoch=1,
        is_transactional=True, is_control=True,
    )  # fmt: skip
    segment = write_segment(tmp_path, batch)
    text = run("dump", "--records", segment).stdout
    assert f"{kind.name} by coordinator epoch 9" in text
    assert "txn control" in text
    (row,) = rows("dump", "--records", segment)
    assert row["records"][0]["control"] == {"type": kind.name, "coordinator_epoch": 9}


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_messages_of_old_formats_are_shown(tmp_path: Path, magic: int, codec: Codec) -> None:
    old = write_message_set([Record(n, START_MS, b"k", b"v%d" % n) for n in range(3)], magic, codec)
    segment = write_segment(tmp_path, old, build_batch([b"new"], timestamp_ms=0, base_offset=3))
    found = rows("dump", "--records", segment)
    values = [record["value"] for row in found for record in row["records"]]
    assert values == ["v0", "v1", "v2", "new"]
    assert f"magic={magic}" in run("dump", segment).stdout


def test_dump_shows_damage_in_place_and_continues(log: Path) -> None:
    segment = segments(log)[1]
    position = headers(segment)[2][0]
    flip(segment, position + 70)
    result = run("dump", log)
    assert result.exit_code == 1
    assert f"DAMAGED at position {position}: CRC is" in result.stdout
    assert " BAD" in result.stdout
    found = rows("dump", log)
    assert [row["position"] for row in found if row["type"] == "damage"] == [position]
    assert len(found) == 24


@pytest.mark.parametrize(
    ("flag", "kinds"),
    [
        ("--index", {"index"}),
        ("--time-index", {"time index"}),
        ("--snapshot", {"producer snapshot"}),
        ("--epochs", {"leader epochs"}),
        ("--checkpoints", {"checkpoint", "meta.properties"}),
    ],
)
def test_a_flag_dumps_the_files_of_its_kind(log: Path, flag: str, kinds: set[str]) -> None:
    found = rows("dump", log.parent, flag)
    assert {row["type"] for row in found} == kinds
    by_file = {row["file"]: [r for r in found if r["file"] == row["file"]] for row in found}
    for path, expected in by_file.items():
        assert rows("dump", path) == expected


def test_an_index_is_shown_with_absolute_offsets(log: Path) -> None:
    index = segments(log)[1].with_suffix(".index")
    positions = dict(headers(segments(log)[1]))
    found = rows("dump", index)
    assert found
    for row in found:
        assert row["offset"] == positions[row["position"]].last_offset


def test_an_empty_file_says_that_it_has_no_entries(tmp_path: Path) -> None:
    index = tmp_path / f"{0:020d}.index"
    index.touch()
    assert "no entries" in run("dump", index).stdout


def test_a_partition_without_segments_says_so(tmp_path: Path) -> None:
    empty = tmp_path / "void-0"
    empty.mkdir()
    assert run("dump", empty).stdout == f"{empty} has no segments.\n"
    assert rows("dump", empty) == []


# --- verify and find ----------------------------------------------------------------------------


def test_verify_of_a_sound_log_exits_with_0_and_counts_what_it_read(log: Path) -> None:
    result = run("verify", log.parent, "--deep")
    assert result.exit_code == 0
    assert "1 partition, 4 segments, 24 batches, 72 records, 7.1 KiB." in result.stdout
    assert "Sound: 0 damage, 0 stale, 0 to note." in result.stdout


def test_verify_of_a_damaged_log_exits_with_1_and_says_where(log: Path) -> None:
    segment = segments(log)[2]
    position = headers(segment)[3][0]
    flip(segment, position + 70)
    result = run("verify", log)
    assert result.exit_code == 1
    assert re.search(rf"^damage +{segment.name} +{position}  CRC is", result.stdout, re.MULTILINE)
    (report,) = rows("verify", log)
    assert report["is_damaged"] is True
    (finding,) = report["findings"]
    assert (finding["severity"], finding["file"]) == ("damage", str(segment))
    assert finding["position"] == position


def test_find_says_where_a_record_is(log: Path) -> None:
    (answer,) = rows("find", log, "--offset", 40)
    (found,) = answer["found"]
    position, header = headers(segments(log)[2])[1]
    assert (found["file"], found["position"]) == (str(segments(log)[2]), position)
    assert found["batch"] == {"base_offset": 39, "last_offset": 41, "size": header.size}
    assert (found["record"]["offset"], found["record"]["timestamp"]) == (40, START_MS + 40)


@pytest.mark.parametrize(
    "time",
    [
        str(START_MS + 40),
        "2023-11-14T22:13:20.040",
        "2023-11-14T22:13:20.040Z",
        "2023-11-15T00:13:20.040+02:00",
        "2023-11-14 22:13:20.039500",
    ],
)
def test_a_time_is_milliseconds_or_iso_in_utc_unless_it_says_otherwise(
    log: Path, time: str
) -> None:
    (answer,) = rows("find", log, "--time", time)
    assert answer["found"][0]["record"]["offset"] == 40


@pytest.mark.parametrize("time", ["yesterday", "1e12", "2026-13-01"])
def test_an_invalid_time_is_a_usage_error(log: Path, time: str) -> None:
    result = run("find", log, "--time", time)
    assert result.exit_code == 2
    assert "is neither milliseconds nor ISO 8601" in result.stderr


@pytest.mark.parametrize("time", ["0001-01-01", "1969-12-31T23:59:59.999Z"])
def test_a_time_before_1970_is_a_usage_error(log: Path, time: str) -> None:
    result = run("find", log, "--time", time)
    assert result.exit_code == 2
    assert "is before 1970" in result.stderr


def test_a_file_that_is_no_segment_is_refused(log: Path) -> None:
    index = segments(log)[0].with_suffix(".index")
    for words in (["find", index, "--offset", 1], ["rebuild-indexes", index]):
        result = run(*words)
        assert result.exit_code == 1
        assert f"{index} (index) h" in result.stderr


def test_a_path_that_is_not_utf_8_is_escaped_in_json(log: Path) -> None:
    odd = log.rename(log.with_name(os.fsdecode(b"caf\xe9-0")))
    output = run("find", odd, "--offset", 1, "--json").stdout_bytes
    assert json.loads(output.decode("ascii"))["path"] == str(odd)


def test_nothing_found_exits_with_1_and_says_so(log: Path) -> None:
    result = run("find", log, "--offset", END_OFFSET)
    assert (result.exit_code, result.stdout) == (1, "There is no such record, and none after it.\n")


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_reading_changes_no_file(log: Path, command: list[str]) -> None:
    before = trace(log.parent)
    for path in (log.parent, log, segments(log)[1]):
        assert run(*command, path).exit_code in (0, 1)
    assert trace(log.parent) == before


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_reading_needs_no_lock(log: Path, command: list[str]) -> None:
    lock = Disk().lock(f"{log.parent}/.lock")
    assert run(*command, log).exit_code == 0
    lock.release()


def test_a_record_limit_ends_in_the_middle_of_a_batch(log: Path) -> None:
    lines = run("dump", log, "--records", "--limit", 4).stdout.splitlines()
    records = [line for line in lines if " -> " in line]
    batches = [line for line in lines if line.endswith(" ok")]
    assert (len(records), len(batches)) == (4, 2)


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_a_directory_around_log_directories_is_refused_with_their_names(
    command: str, tmp_path: Path
) -> None:
    for name in ("d01", "d02"):
        make_directory(tmp_path / name)
        (tmp_path / name / "meta.properties").touch()
    (tmp_path / ".lock").touch()
    done = run(command, tmp_path)
    assert done.exit_code == 1
    assert done.stderr == (
        f"kdist: {tmp_path} is no log directory itself: give {tmp_path}/d01 or {tmp_path}/d02\n"
    )
    (tmp_path / "meta.properties").touch()  # a broker's, which has no partition yet
    assert run("dump", tmp_path).stderr == ""


def test_a_dry_run_tells_what_would_go_and_changes_nothing(tmp_path: Path) -> None:
    stopped(tmp_path)
    before = sorted((p.name, p.stat().st_size) for p in tmp_path.rglob("*"))
    (found,) = json.loads(ran(str(tmp_path), "--dry-run", "--json"))["partitions"]
    assert found["partition"] == "clicks-0"
    assert (found["first_dirty_offset"], found["end_offset"]) == (0, 5)
    assert (found["records"], found["removed_records"]) == (5, 3)
    assert 0 < found["removed_bytes"] < found["bytes"]
    assert sorted((p.name, p.stat().st_size) for p in tmp_path.rglob("*")) == before
    table = ran(str(tmp_path / "clicks-0"), "--dry-run")
    assert "clicks-0" in table
    assert "DIRTY FROM" in table


def test_a_stopped_brokers_partition_is_compacted(tmp_path: Path) -> None:
    world = stopped(tmp_path)
    ran(str(tmp_path / "clicks-0"), "--yes", "--json")
    assert offsets_in(tmp_path) == [3, 4]
    assert (tmp_path / CLEANER_OFFSETS).read_text() == "0\n1\nclicks 0 5\n"
    assert not [p for p in tmp_path.rglob("*") if p.suffix in (".swap", ".cleaned", ".deleted")]
    log = world.open().logs[CLICKS]
    assert world.directory.is_clean
    assert (log.first_dirty_offset, log.end_offset) == (5, 5)


def test_what_is_not_committed_stays(tmp_path: Path) -> None:
    stopped(tmp_path, high_watermark=2)
    ran(str(tmp_path / "clicks-0"), "--yes")
    assert offsets_in(tmp_path) == [0, 1, 2, 3, 4]


def test_the_name_is_asked_for(tmp_path: Path) -> None:
    stopped(tmp_path)
    said = ran(str(tmp_path / "clicks-0"), status=1, input="yes\n")
    assert "Nothing was changed." in said
    assert offsets_in(tmp_path) == [0, 1, 2, 3, 4]
    ran(str(tmp_path / "clicks-0"), input="clicks-0\n")
    assert offsets_in(tmp_path) == [3, 4]


def test_a_directory_that_was_not_closed_cleanly_is_refused(tmp_path: Path) -> None:
    stopped(tmp_path)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    assert "stop it cleanly" in ran(str(tmp_path / "clicks-0"), "--yes", status=1)


def test_a_running_brokers_partition_is_refused_but_for_a_dry_run(tmp_path: Path) -> None:
    world = stopped(tmp_path)
    world.open()
    assert "in use" in ran(str(tmp_path / "clicks-0"), "--yes", status=1)
    ran(str(tmp_path / "clicks-0"), "--dry-run")


@pytest.mark.parametrize("name", [HIGH_WATERMARKS])
def test_without_a_checkpoint_nothing_is_known_to_be_committed(tmp_path: Path, name: str) -> None:
    world = stopped(tmp_path)
    save_offsets(world.files, str(tmp_path / name), {})
    (found,) = json.loads(ran(str(tmp_path), "--dry-run", "--json"))["partitions"]
    assert found["removed_records"] == 0


# --- trim and rebuild-indexes -------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["trim", "--to-offset", "40", "--yes"], ["rebuild-indexes"]], ids=" ".join
)
def test_changes_are_refused_while_a_broker_runs(log: Path, command: list[str]) -> None:
    before = trace(log)
    lock = Disk().lock(f"{log.parent}/.lock")
    result = run(*command, log)
    lock.release()
    assert result.exit_code == 1
    assert result.stderr == (
        f"kdist: {log.parent} is in use: stop the broker that runs on it first\n"
    )
    assert trace(log) == before


@pytest.mark.parametrize("typed", ["", "y\n", "yes\n", "clicks\n"])
def test_trim_does_nothing_until_the_name_is_typed(log: Path, typed: str) -> None:
    before = trace(log)
    result = run("trim", log, "--to-offset", 40, text=typed)
    assert result.exit_code == 1
    assert "Nothing was changed." in result.stdout
    assert trace(log) == before


def test_trim_says_what_it_will_remove_and_does_so_when_confirmed(log: Path) -> None:
    result = run("trim", log, "--to-offset", 40, text="clicks-0\n")
    assert result.exit_code == 0
    assert f"{log} will end at offset 39 (offset 40, in the middle of a batch" in result.stdout
    assert "11 batches with 33 records" in result.stdout
    assert f"{log} now ends at offset 39." in result.stdout
    assert run("verify", log.parent).exit_code == 0


def test_trim_beside_an_invalid_checkpoint_changes_nothing(log: Path) -> None:
    checkpoint = log.parent / "cleaner-offset-checkpoint"
    checkpoint.write_bytes(b"noise")
    before = trace(log)
    result = run("trim", log, "--to-offset", 40, "--yes")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"kdist: {checkpoint}: its last line has no end of line\n"
    assert trace(log) == before


def test_trim_at_damage_in_json_says_what_it_kept(log: Path) -> None:
    segment = segments(log)[2]
    flip(segment, headers(segment)[3][0] + 16)
    (outcome,) = rows("trim", log, "--at-damage", "--yes")
    assert (outcome["is_cut"], outcome["end_offset"]) == (True, 45)
    assert all(Path(path).exists() for path in outcome["kept"])
    assert run("verify", log.parent).exit_code == 0
    assert rows("trim", log, "--at-damage", "--yes") == [{"path": str(log), "is_cut": False}]


def test_rebuild_indexes_says_which_were_wrong(log: Path) -> None:
    spoilt, missing = segments(log)[1].with_suffix(".index"), segments(log)[0].with_suffix(".index")
    spoilt.write_bytes(b"\xff" * 16)
    missing.unlink()
    (outcome,) = rows("rebuild-indexes", log)
    wrong = {each["path"]: each["fault_before"] for each in outcome["indexes"]}
    assert len(wrong) == 8
    assert {path: fault for path, fault in wrong.items() if fault} == {
        str(spoilt): "entry 0 is negative",
        str(missing): "was missing",
    }
    assert run("verify", log.parent).exit_code == 0


def test_rebuild_indexes_of_a_damaged_segment_exits_with_1(log: Path) -> None:
    segment = segments(log)[1]
    flip(segment, headers(segment)[3][0] + 16)
    result = run("rebuild-indexes", log)
    assert result.exit_code == 1
    position = headers(segment)[2][0] + headers(segment)[2][1].size
    assert f"NOT REBUILT, the log is damaged at position {position}: magic" in result.stdout


# --- what is wrong with a command line -----------------------------------------------------------


@pytest.mark.parametrize("command", [*LOOKING, ["trim", "--at-damage"], ["rebuild-indexes"]])
@pytest.mark.parametrize("name", ["missing", "empty", "notes.txt"])
def test_a_wrong_path_is_a_one_sentence_error_with_exit_status_1(
    tmp_path: Path, command: list[str], name: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").touch()
    result = run(*command, tmp_path / name)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"kdist: {tmp_path / name} is ")
    assert result.stderr.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["empty", "notes.txt"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["dmp", "."],
        ["verify", "--depp", "."],
        ["verify"],
        ["find", "."],
        ["find", ".", "--offset", "1", "--time", "1"],
        ["find", ".", "--offset", "-1"],
        ["find", ".", "--time", "yesterday"],
        ["trim", "."],
        ["trim", ".", "--to-offset", "1", "--at-damage"],
        ["trim", ".", "--to-offset", "1", "--json"],
        ["dump", ".", "--limit", "0"],
    ],
    ids=" ".join,
)
def test_a_wrong_flag_is_exit_status_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr


def test_a_disk_that_fails_is_exit_status_74(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Disk, path: str) -> int:
        raise DiskFailed(path, OSError(errno.EIO, os.strerror(errno.EIO)))

    monkeypatch.setattr(Disk, "open_readonly", fail)
    result = run("verify", log)
    assert result.exit_code == 74
    assert result.stderr.startswith("kdist: the disk under ")
