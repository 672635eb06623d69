"""A log directory: its lock, owner, checkpoints, partitions and clean shutdown marker."""

from __future__ import annotations

import errno
import os
import tracemalloc
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from storage_world import (
    CLICKS,
    IDENTITY,
    TOPIC_ID,
    VIEWS,
    World,
    append,
    expected_lines,
    lines,
    on_real_disk,
    overwrite,
)

from kdist.errors import ApiError, DiskFull, UserError
from kdist.model import TopicPartition
from kdist.storage import names
from kdist.storage.directory import Identity, LogDirectory
from kdist.storage.meta import encode_partition_metadata
from kdist.storage.names import Suffix

METADATA = f"/d01/{CLICKS}/{names.PARTITION_METADATA}"


def stopped(seed: int = 0) -> World:
    world = World(seed=seed)
    append(world, world.log(), 3)
    append(world, world.log(VIEWS), 3)
    world.stop()
    return world


# Whose it is


def test_a_directory_is_locked_by_one_process_at_a_time(tmp_path: Path) -> None:
    for world in (World(), on_real_disk(tmp_path)):
        world.open()
        with pytest.raises(UserError, match="in use by another process"):
            LogDirectory(world.path, IDENTITY, world.directory_context())
        world.stop()
        world.open()


def test_a_missing_log_directory_is_not_created() -> None:
    """Else the root disk would fill up where a data disk failed to mount."""
    with pytest.raises(UserError, match="is its disk mounted"):
        World(path="/d02", files=World().disk).open()


@pytest.mark.parametrize(
    ("identity", "text"),
    [
        (Identity(2, "cluster"), "belongs to broker 1"),
        (Identity(1, "other"), "to cluster 'cluster'"),
    ],
)
def test_a_directory_of_another_broker_or_cluster_is_refused_untouched(
    identity: Identity, text: str
) -> None:
    world = stopped()
    before = {name: world.disk.list(f"/d01/{name}") for name in ("clicks-0", "views-3")}
    with pytest.raises(UserError, match=text):
        LogDirectory("/d01", identity, world.directory_context())
    assert {name: world.disk.list(f"/d01/{name}") for name in before} == before
    assert world.disk.exists(f"/d01/{names.CLEAN_SHUTDOWN}")
    world.open()  # and whose it is can open it


@pytest.mark.parametrize(
    "content", [b"", b"version=0\n", b"\xff\xfe", b"broker.id=x\nversion=0\ncluster.id=c\n", None]
)
def test_missing_or_unreadable_meta_properties_must_be_repaired_by_hand(
    content: bytes | None,
) -> None:
    world = stopped()
    good = world.disk.read("/d01/meta.properties")
    if content is None:
        world.disk.remove("/d01/meta.properties")
    else:
        overwrite(world.disk, "/d01/meta.properties", content)
    with pytest.raises(UserError, match=r"meta\.properties"):
        world.open()
    overwrite(world.disk, "/d01/meta.properties", good)
    assert lines(world.open().logs[CLICKS]) == expected_lines(3)


# The clean marker


def test_after_a_clean_stop_at_most_the_last_batch_of_a_log_is_read() -> None:
    world = World()
    log = world.log(index_interval_bytes=0)
    for _ in range(50):
        append(world, log, 3, size=5000)
    world.stop()
    before = len(world.disk.trace)
    world.open()
    assert world.metrics.recovered_logs == 0
    reads = [call.path for call in world.disk.trace[before:] if call.name == "read"]
    assert reads.count(world.path_of(0, Suffix.LOG)) <= 2
    assert lines(world.log()) == expected_lines(150, size=5000)


def test_the_marker_is_durably_removed_before_a_log_is_touched() -> None:
    world = stopped()
    before = len(world.disk.trace)
    world.open()
    calls = [repr(call) for call in world.disk.trace[before:]]
    removed = calls.index(f"remove /d01/{names.CLEAN_SHUTDOWN}")
    assert calls[removed + 1] == "sync_directory /d01"
    assert removed < min(number for number, call in enumerate(calls) if "clicks-0" in call)


def test_the_boot_is_durably_noted_before_the_marker_is_removed() -> None:
    world = stopped()
    content_id, world.boot_id = world.directory.content_id, "boot 2"
    before = len(world.disk.trace)
    assert world.open().content_id == content_id
    calls = [repr(call) for call in world.disk.trace[before:]]
    noted = next(n for n, call in enumerate(calls) if "rename" in call and names.BOOT in call)
    assert calls[noted + 1] == "sync_directory /d01"
    assert noted < calls.index(f"remove /d01/{names.CLEAN_SHUTDOWN}")


def test_whether_the_page_cache_may_be_lost_is_told_by_the_content_id() -> None:
    world = stopped()
    content_id = world.open().content_id
    world.kill()
    assert world.open().content_id == content_id
    world.lose_power()
    world.boot_id = "boot 2"
    assert world.open().content_id not in (None, content_id)


def test_a_power_loss_right_after_a_clean_stop_loses_nothing() -> None:
    for seed in range(20):
        world = World(seed=seed)
        log = world.log(segment_bytes=300, index_interval_bytes=0)
        for _ in range(12):
            append(world, log, 3)
        world.stop()
        world.lose_power()
        assert lines(world.open().logs[CLICKS]) == expected_lines(36)
        assert world.metrics.recovered_logs == 0


def test_without_a_marker_logs_are_scanned_from_their_recovery_points() -> None:
    world = World()
    log = world.log(segment_bytes=300)
    for _ in range(40):
        append(world, log, 3)
    world.flush(log)
    world.wait(world.directory.saver.request)
    append(world, log, 3)
    world.kill()
    world.open()
    assert world.metrics.recovered_logs == 1
    assert world.metrics.recovered_records <= 15


def test_the_marker_holds_the_broker_epoch() -> None:
    world = World()
    world.open()
    world.directory.close(broker_epoch=147)
    content = world.disk.read(f"/d01/{names.CLEAN_SHUTDOWN}")
    assert content == b'{"version":0,"brokerEpoch":147}'


# Checkpoints


@pytest.mark.parametrize("content", [b"", b"0\n1\n", b"garbage", bytes(100), b"\xff", None])
@pytest.mark.parametrize("name", [names.RECOVERY_POINTS, names.LOG_START_OFFSETS])
@pytest.mark.parametrize("is_clean", [False, True])
def test_a_start_with_a_missing_or_damaged_checkpoint_loses_no_record(
    name: str, content: bytes | None, is_clean: bool
) -> None:
    world = World()
    log = world.log()
    append(world, log, 30)
    world.delete_records(log, 10)
    world.flush(log)
    world.stop() if is_clean else world.kill()
    world.disk.remove(f"/d01/{name}")
    if content is not None:
        overwrite(world.disk, f"/d01/{name}", content)
    log = world.open().logs[CLICKS]
    assert lines(log) == expected_lines(30)
    assert log.start_offset == (0 if name == names.LOG_START_OFFSETS else 10)


def test_recovery_points_are_saved_for_the_next_start() -> None:
    world = World()
    append(world, world.log(), 3)
    world.flush(world.log())
    world.wait(world.directory.saver.request)
    assert world.disk.read(f"/d01/{names.RECOVERY_POINTS}") == b"0\n1\nclicks 0 3\n"


# Partitions


def test_a_new_log_survives_a_power_loss_once_its_records_are_flushed() -> None:
    for seed in range(30):
        world = World(seed=seed)
        log = world.log(VIEWS)
        append(world, log, 3)
        world.flush(log)
        world.lose_power()
        assert lines(world.open().logs[VIEWS]) == expected_lines(3)
        metadata = world.disk.read(f"/d01/views-3/{names.PARTITION_METADATA}")
        assert b"topic_id" in metadata


def test_a_new_log_lost_to_a_power_loss_can_be_recreated() -> None:
    for seed in range(30):
        world = World(seed=seed)
        world.log(VIEWS)
        world.lose_power()
        log = world.open().logs.get(VIEWS) or world.log(VIEWS)
        assert (log.start_offset, log.end_offset) == (0, 0)
        append(world, log, 3)
        world.flush(log)


def test_a_log_that_a_power_loss_has_left_without_its_topics_id_is_set_aside() -> None:
    """It was never flushed; its records must not become another topic's of that name."""
    outcomes: set[tuple[bool, bool]] = set()
    for seed in range(60):
        world = World(seed=seed)
        append(world, world.log(), 3)
        if seed % 2:
            world.wait(world.directory.saver.request)
        world.lose_power()
        found = world.open().logs.get(CLICKS)
        has_records = found is not None and found.end_offset > 0
        if has_records:
            assert world.disk.read(METADATA) == encode_partition_metadata(TOPIC_ID)
        strays = [name for name in world.disk.list("/d01") if name.endswith("-stray")]
        outcomes.add((has_records, bool(strays)))
        if strays:
            assert world.disk.size(f"/d01/{strays[0]}/{0:020}.log") > 0
            world.wait(partial(world.directory.forget, CLICKS))
            append(world, world.log(), 1)
            world.flush(world.log())
            world.lose_power()
            assert lines(world.open().logs[CLICKS]) == expected_lines(1)
    assert outcomes == {(True, False), (False, True), (False, False)}


@pytest.mark.parametrize("is_full", [False, True])
def test_a_flush_covers_what_a_process_created_which_was_killed(is_full: bool) -> None:
    for seed in range(40):
        world = World(seed=seed)
        world.log()
        world.settle(1_500)
        world.directory._lock.release()  # as the kernel does; the page cache stays
        if is_full:
            world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "create")
        world.open()
        world.disk.heal()
        append(world, world.log(), 3)
        world.flush(world.log())
        world.lose_power()
        assert lines(world.open().logs[CLICKS]) == expected_lines(3)


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_a_log_without_its_topics_id_is_kept_once_flushed_or_after_a_clean_stop_or_from_elsewhere(
    content: bytes | None,
) -> None:
    for how in ("flushed", "clean", "elsewhere"):
        world = World()
        log = world.log()
        append(world, log, 3)
        if how == "flushed":
            world.flush(log)
            world.wait(world.directory.saver.request)
        if how == "clean":
            world.stop()
        world.disk.remove(METADATA)
        if content is not None:
            world.disk.replace(METADATA, content)
        if how == "elsewhere":
            world.disk.remove(f"/d01/{names.BOOT}")
        world.kill()
        assert lines(world.open().logs[CLICKS]) == expected_lines(3)


@pytest.mark.parametrize("how", ["killed", "full disk"])
def test_a_directory_from_elsewhere_is_taken_over_by_the_first_start_that_is_completed(
    how: str,
) -> None:
    world = World()
    append(world, world.log(), 3)
    world.disk.remove(METADATA)
    world.disk.remove(f"/d01/{names.BOOT}")
    world.kill()
    if how == "killed":
        directory = LogDirectory(world.path, IDENTITY, world.directory_context())
        steps = directory.opening()
        next(steps)
        steps.close()
        directory.close()
    else:
        world.disk.fail(errno.ENOSPC, when=lambda call: call.path.endswith("checkpoint.tmp"))
        world.open()
    world.kill()
    assert lines(world.open().logs[CLICKS]) == expected_lines(3)
    append(world, world.log(VIEWS), 3)
    world.disk.remove(f"/d01/views-3/{names.PARTITION_METADATA}")
    world.kill()
    assert list(world.open().logs) == [CLICKS]


def test_creating_a_log_waits_for_no_sync() -> None:
    world = World()
    world.open()
    world.disk.fail(errno.EIO, when=lambda call: "sync" in call.name)
    world.log(VIEWS)
    assert world.failures == []


def test_a_clean_stop_syncs_a_log_that_was_never_written_to() -> None:
    for seed in range(30):
        world = World(seed=seed)
        world.log(VIEWS)
        world.stop()
        world.lose_power()
        world.open()
        assert VIEWS in world.directory.logs
        assert "partition.metadata" in world.names(VIEWS)


def test_a_deleted_partition_is_gone_at_once_and_unlinked_a_minute_later() -> None:
    world = World()
    append(world, world.log(), 3)
    world.log(VIEWS)
    world.delete()
    assert list(world.directory.logs) == [VIEWS]
    assert [name for name in world.disk.list("/d01") if name.endswith("-delete")]
    world.tasks.run_for_ms(60_100)
    assert not [name for name in world.disk.list("/d01") if name.startswith("clicks")]


def test_a_deleted_partition_stays_deleted_through_a_power_loss() -> None:
    for seed in range(20):
        world = World(seed=seed)
        append(world, world.log(), 3)
        world.delete()
        world.lose_power()
        assert CLICKS not in world.open().logs
        world.settle(1000)
        assert not [name for name in world.disk.list("/d01") if name.startswith("clicks")]


def test_a_partition_deleted_during_its_flush_is_removed_after_it() -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    heard: list[BaseException | None] = []
    world.directory.flusher.request(log, heard.append)
    world.tasks.run_until(lambda: log.is_busy, 100)
    world.delete()
    assert heard == [None]
    assert CLICKS not in world.directory.logs
    assert world.failures == []


def test_a_recreated_partition_does_not_use_its_predecessors_checkpoints() -> None:
    """Saving the checkpoints without it may find no room: until then its name is blocked."""
    for seed in range(10):
        world = World(seed=seed)
        log = world.log()
        append(world, log, 60)
        world.flush(log)
        world.delete_records(log, 50)
        world.disk.fail(errno.ENOSPC, when=lambda call: "checkpoint.tmp" in call.path)
        with pytest.raises(DiskFull):
            world.delete()
        world.disk.heal()
        with pytest.raises(ApiError) as caught:
            world.log()
        assert caught.value.error.retriable
        world.wait(lambda done, world=world: world.directory.forget(CLICKS, done))  # type: ignore[misc]
        log = world.log()
        append(world, log, 3)
        world.flush(log)
        append(world, log, 3)
        world.lose_power()
        log = world.open().logs[CLICKS]
        assert log.start_offset == 0
        assert lines(log) in (expected_lines(3), expected_lines(6))


def test_an_opening_in_steps_reports_its_progress() -> None:
    world = stopped()
    directory = LogDirectory("/d01", IDENTITY, world.directory_context())
    seen = set()
    for work in directory.opening():
        seen.add((len(directory.logs), directory.found, directory.is_clean))
        if work is not None:
            work()
    assert seen == {(0, 2, True), (1, 2, True), (2, 2, True)}


def test_an_abandoned_opening_leaves_no_marker_and_no_lock() -> None:
    world = stopped()
    directory = LogDirectory("/d01", IDENTITY, world.directory_context())
    with closing(directory.opening()) as steps:
        while not directory.logs:
            next(steps)
    directory.close()
    assert not world.disk.exists(f"/d01/{names.CLEAN_SHUTDOWN}")
    world.open()
    assert world.metrics.recovered_logs == 2


def test_a_long_log_is_scanned_in_many_steps(tmp_path: Path) -> None:
    world = on_real_disk(tmp_path)
    world.open()
    for _ in range(500):
        append(world, world.log(), size=60_000)
    world.directory._lock.release()
    directory = LogDirectory(world.path, IDENTITY, world.directory_context())
    works = list(directory.opening())
    assert works.count(None) > 5
    directory.close()


def test_an_open_partition_takes_a_few_kilobytes_of_memory(tmp_path: Path) -> None:
    world = on_real_disk(tmp_path)
    world.open()
    for number in range(100):
        append(world, world.log(TopicPartition("clicks", number)), 3)
    world.stop()
    tracemalloc.start()
    world.open()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(world.directory.logs) == 100
    assert taken < 100 * 16_000
    world.stop()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_open_partitions_keep_no_descriptor_open(tmp_path: Path) -> None:
    world = on_real_disk(tmp_path)
    world.open()
    before = descriptors()
    for number in range(200):
        world.directory.create(TopicPartition("clicks", number), TOPIC_ID, world.topic)
    assert descriptors() == before
    for log in world.directory.logs.values():
        append(world, log, 3)
    world.stop()
    assert descriptors() <= before
    world.open()
    assert descriptors() <= before + 1
    world.directory._lock.release()
    (tmp_path / names.CLEAN_SHUTDOWN).unlink(missing_ok=True)
    world.open()  # as after a crash
    assert world.metrics.recovered_logs == 200
    assert descriptors() <= before + 1  # syncfs keeps one
    world.stop()


# High watermarks


def test_high_watermarks_are_saved_at_a_clean_stop_and_loaded() -> None:
    world = World()
    append(world, world.log(), 5)
    world.directory.high_watermarks = lambda: {CLICKS: 4}
    world.restart()
    assert world.directory.saved_high_watermarks == {CLICKS: 4}
    world.restart()  # nobody has asked the controller yet: they stay what they were
    assert world.directory.saved_high_watermarks == {CLICKS: 4}


def test_a_damaged_checkpoint_of_high_watermarks_is_ignored_with_one_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    append(world, world.log(), 5)
    world.stop()
    path = f"/d01/{names.HIGH_WATERMARKS}"
    overwrite(world.files, path, b"0\n1\nclicks 0 -3\n")
    world.open()
    assert world.directory.saved_high_watermarks == {}
    assert [
        record.message for record in caplog.records if "replication-offset" in record.message
    ] == [f"{path}, line 3: '-3' is not a number of 0 to {2**63 - 1}: the checkpoint is ignored"]


def test_a_recreated_partition_does_not_use_its_predecessors_high_watermark() -> None:
    world = World()
    log = world.log()
    append(world, log, 5)
    world.flush(log)
    world.directory.high_watermarks = lambda: {CLICKS: 5}
    world.wait(world.directory.saver.request)
    world.delete()
    world.log()
    assert b"clicks" not in world.disk.read(f"/d01/{names.HIGH_WATERMARKS}")


def test_a_high_watermark_saved_during_a_truncation_is_not_above_what_surely_stays() -> None:
    world = World()
    log = world.log(segment_bytes=300)
    for _ in range(4):
        append(world, log, 10)
    world.flush(log)
    world.directory.high_watermarks = lambda: {CLICKS: 40}
    world.truncate(log, 25)
    world.lose_power()
    world.open()
    assert world.directory.saved_high_watermarks[CLICKS] <= 20 == world.log().end_offset


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_boot_that_a_full_disk_kept_from_being_noted_is_noted_by_the_first_save_that_succeeds(
    *, is_saved: bool
) -> None:
    world = World()
    world.disk.fail(errno.ENOSPC, when=lambda call: call.path.endswith("boot.json.tmp"))
    content_id = world.open().content_id
    with pytest.raises(DiskFull):
        world.wait(world.directory.saver.request)
    world.disk.heal()
    if is_saved:
        world.wait(world.directory.saver.request)
    world.kill()
    assert (world.open().content_id == content_id) == is_saved
