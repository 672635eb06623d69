"""`kdist log trim` and `rebuild-indexes`, and the errors of a wrong command line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kdist.errors import DiskFailed
from kdist.runtime.disk import Disk
from tests.unit.cli.cli_log import LOOKING, rows, run, trace
from tests.unit.inspection.inspection_logs import (
    flip,
    headers,
    segments,
)

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


@pytest.mark.parametrize("command", ["dump", "verify", "find", "trim", "rebuild-indexes"])
def test_every_help_has_examples(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"kdist log {command} " in result.stdout
    assert "--json" in result.stdout
