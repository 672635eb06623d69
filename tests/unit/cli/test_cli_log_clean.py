"""`kdist log clean`: what would go, and a stopped broker's partition compacted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kdist.cli.main import kdist
from kdist.config.topic import TopicSettings
from kdist.records.batch import Batch, read_header
from kdist.records.build import build_batch, read_batch
from kdist.storage.checkpoints import save_offsets
from kdist.storage.names import CLEANER_OFFSETS, HIGH_WATERMARKS
from tests.unit.storage.storage_world import CLICKS, World, on_real_disk

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
