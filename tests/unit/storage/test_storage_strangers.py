"""Foreign entries in a log directory: reported in one log line, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from storage_world import CLICKS, World, append, expected_lines, lines, on_real_disk, overwrite

from kdist.errors import UserError


def test_directories_that_are_no_partitions_are_kept_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    append(world, world.log(), 3)
    world.stop()
    for name in ("lost+found", "clicks-007", "clicks-1.abc-stray"):
        world.disk.make_directory(f"/d01/{name}")
    overwrite(world.disk, "/d01/clicks-5", b"a file")
    overwrite(world.disk, "/d01/meta.properties~", b"an editor's")
    world.open()
    world.settle(1000)
    assert sorted(world.directory.logs) == [CLICKS]
    assert world.disk.exists("/d01/clicks-1.abc-stray")
    assert [each.getMessage() for each in caplog.records] == [
        "3 entries of /d01 are no partitions to open, and are left alone:"
        " clicks-007, clicks-1.abc-stray, clicks-5"
    ]
    for number in range(20):
        world.disk.make_directory(f"/d01/backup {number}")
    caplog.clear()
    world.restart()
    assert (
        caplog.records[0]
        .getMessage()
        .endswith("backup 0, backup 1, backup 10, backup 11, backup 12 and 18 more")
    )


@pytest.mark.parametrize("name", ["clicks-7", f"clicks-7.{7:032x}-delete"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_partition_that_is_a_symbolic_link_is_refused(
    tmp_path: Path, name: str, is_there: bool
) -> None:
    """Flushes would not reach its disk, and after its deletion a broker could not start."""
    (tmp_path / "d01").mkdir()
    world = on_real_disk(tmp_path / "d01")
    append(world, world.log(), 3)
    world.stop()
    if is_there:
        (tmp_path / "elsewhere").mkdir()
    (tmp_path / "d01" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"clicks-7\S* is a symbolic link"):
        world.open()
    (tmp_path / "d01" / name).unlink()
    assert lines(world.open().logs[CLICKS]) == expected_lines(3)
