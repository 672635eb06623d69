"""`kdist log` as people and scripts meet it: output, JSON, exit status, and no trace left."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kdist.cli.main import kdist
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from kdist.records.control import ControlType, EndTransactionMarker
from kdist.records.message_set import write_message_set
from kdist.records.record import Record
from kdist.runtime.disk import Disk
from tests.unit.cli.cli_log import LOOKING, rows, run, trace
from tests.unit.inspection.inspection_logs import (
    END_OFFSET,
    START_MS,
    flip,
    headers,
    make_directory,
    segments,
)
from tests.written_records import write_marker

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


@pytest.mark.parametrize("time", ["yesterday", "9" * 5000, "2026-13-01"])
def test_an_invalid_time_is_a_usage_error(log: Path, time: str) -> None:
    result = run("find", log, "--time", time)
    assert result.exit_code == 2
    assert "is neither milliseconds nor ISO 8601" in result.stderr


@pytest.mark.parametrize("time", ["0001-01-01", "1969-12-31T23:59:59.999Z", "9" * 20])
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
