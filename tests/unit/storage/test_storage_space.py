"""Disk space: preallocation, early writeback, the reserve that must stay free, and full disks."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from storage_life import Life, sweep
from storage_world import (
    CLICKS,
    VIEWS,
    World,
    append,
    expected_lines,
    find_by_timestamp,
    lines,
    on_real_disk,
)

from kdist.config.kinds import INT64_MAX
from kdist.errors import DiskFailed, DiskFull, Error
from kdist.model import TopicPartition
from kdist.storage.names import CLEAN_SHUTDOWN, Suffix
from kdist.storage.reading import read
from kdist.testing.simulated_disk import Call
from tests.refusals import refused

# Disk space


def blocks(path: str) -> int:
    return os.stat(path).st_blocks * 512


def test_disk_space_is_reserved_ahead_and_released_at_a_roll_and_at_the_end(
    tmp_path: Path,
) -> None:
    world = on_real_disk(tmp_path, preallocation_step_bytes=1 << 20)
    log = world.log()
    append(world, log, 10, size=40_000)
    first = world.path_of(0, Suffix.LOG)
    reserved = blocks(first)
    log.roll(world.clock.now_ms())
    world.flush(log)  # which a roll asks for
    assert blocks(first) < reserved
    assert blocks(first) <= log.segments[0].size + 8192
    append(world, log, 10, size=40_000)
    last = world.path_of(10, Suffix.LOG)
    assert blocks(last) >= 2 * log.active.size  # a small segment reserves as much as it holds
    world.stop()
    assert blocks(last) <= log.active.size + 8192


def test_disk_space_reserved_before_a_crash_is_released_at_the_next_clean_stop(
    tmp_path: Path,
) -> None:
    world = on_real_disk(tmp_path, preallocation_step_bytes=1 << 20)
    log = world.log()
    append(world, log, 10, size=40_000)
    size, path = log.active.size, world.path_of(0, Suffix.LOG)
    assert blocks(path) >= 2 * size
    world.directory._lock.release()  # the process is gone, without a word
    world.open()
    world.stop()
    assert blocks(path) <= size + 8192


def test_disk_space_kept_by_a_refused_flush_is_released_by_the_next() -> None:
    world = World(preallocation_step_bytes=1 << 20)
    log = world.log()
    append(world, log, 3, size=1000)
    log.roll(world.clock.now_ms())
    first = world.disk._names.content(world.path_of(0, Suffix.LOG))
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "create", forever=False)
    world.settle()
    assert first.reserved_end
    world.flush(log)
    assert not first.reserved_end


def test_preallocate_reserves_the_whole_segment_at_once() -> None:
    world = World()
    log = world.log(preallocate=True, segment_bytes=3 << 20)
    append(world, log, 1, size=1000)
    assert world.disk._names.content(world.path_of(0, Suffix.LOG)).reserved_end >= 3 << 20


@pytest.mark.parametrize("preallocate", [False, True])
def test_preallocation_does_not_use_the_space_that_must_stay_free(preallocate: bool) -> None:
    """Otherwise many partitions could take all of it, and no checkpoint could be saved."""
    world = World(reserved_bytes=500_000, preallocation_step_bytes=1 << 20)
    world.open()
    world.disk.fill(1_000_000)
    world.topic = replace(world.topic, preallocate=preallocate, segment_bytes=200_000)
    logs = [world.log(TopicPartition("clicks", number)) for number in range(20)]
    with pytest.raises(DiskFull):  # noqa: PT012 - at which one is what the test is about
        while True:
            for log in logs:
                append(world, log, 1, size=1000)
    assert world.disk.free_bytes("/d01") >= 490_000
    used = sum(log.size for log in logs)
    assert used > 400_000


def test_writeback_is_started_in_even_steps() -> None:
    world = World(writeback_step_bytes=4096)
    log = world.log(flush_ms=3_600_000)
    for _ in range(20):
        append(world, log, 1, size=1000)  # four of them make a step
        world.settle(20)
    assert log.size == 20 * 1070
    assert world.disk.calls["start_writeback"] == 5
    assert log.active.size - log.active.written_back < 4096


@pytest.mark.parametrize(("step_bytes", "flush_ms"), [(0, 3_600_000), (4096, INT64_MAX)])
def test_no_writeback_is_started_without_a_step_or_an_interval_of_flushes(
    step_bytes: int, flush_ms: int
) -> None:
    world = World(writeback_step_bytes=step_bytes)
    log = world.log(flush_ms=flush_ms)
    append(world, log, 1, size=100_000)
    world.settle()
    assert world.disk.calls["start_writeback"] == 0


# A full or failing disk


def test_an_append_that_does_not_fit_is_refused_and_the_next_takes_its_offset() -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write", forever=False)
    with pytest.raises(DiskFull) as caught:
        append(world, log, 3, producer_id=4, producer_epoch=0, base_sequence=0)
    assert caught.value.error is Error.KAFKA_STORAGE_ERROR
    assert log.end_offset == log.reserved_offset == 3
    assert log.active.file.size() == log.active.size
    append(world, log, 3, producer_id=4, producer_epoch=0, base_sequence=0)
    assert lines(log) == expected_lines(6)


@pytest.mark.parametrize("between", [0, 1])  # a record that fits into the old segment
def test_a_roll_refused_by_a_full_disk_can_be_retried(between: int) -> None:
    world = World()
    log = world.log(segment_bytes=500, index_interval_bytes=0)
    append(world, log, 10)
    world.disk.fail(errno.ENOSPC, when=lambda call: "index" in call.path)
    with pytest.raises(DiskFull):
        append(world, log, 25)
    for _ in range(between):
        append(world, log, 1)
    world.disk.heal()
    append(world, log, 25)
    assert lines(log) == expected_lines(35 + between)
    world.flush(log)
    world.kill()
    assert lines(world.open().logs[log.partition]) == expected_lines(35 + between)


def test_an_index_that_finds_no_room_does_not_fail_the_append() -> None:
    """The records are in the file by then: a refusal would make the client send them twice."""
    world = World()
    log = world.log(index_interval_bytes=0)
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write" and "index" in call.path)
    for _ in range(600):
        world.clock.advance_ms(1)
        append(world, log)
    assert log.end_offset == log.reserved_offset == 600
    assert lines(log) == expected_lines(600)
    world.disk.heal()
    world.restart()
    assert lines(world.log()) == expected_lines(600)


def test_an_append_on_a_failing_disk_raises() -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    world.disk.fail(when=lambda call: call.name == "write")
    with pytest.raises(DiskFailed):
        append(world, log, 3)
    assert log.end_offset == 3


def test_appends_are_refused_before_the_disk_is_full() -> None:
    world = World(reserved_bytes=50_000)
    log = world.log()
    append(world, log, 1, size=1000)
    world.disk.fill(100_000)
    world.directory.log_context.space._left = 0
    for _ in range(30):
        append(world, log, 1, size=1000)
    taken = 30
    with pytest.raises(DiskFull):  # noqa: PT012 - at which one is what the test is about
        while append(world, log, 1, size=1000):
            taken += 1
    assert 40 < taken < 50
    assert world.disk.free_bytes("/d01") >= 49_000


# A disk that is full at any write


def is_write(call: Call) -> bool:
    """Calls that may need a block: data, a directory's entry."""
    return call.name in ("write", "create", "make_directory")


def full_at(n: int) -> bool:
    """Run the script with a full disk at write `n`; returns whether it had that many."""
    world = World(seed=n)
    life = Life(world)
    world.disk.fail(errno.ENOSPC, when=is_write, after_calls=n, forever=False)
    life.run(may_refuse=True)
    assert life.refusals <= 1
    life.check(life.log)
    writes = sum(map(is_write, world.disk.trace))
    life.check_after_the_crash()
    return writes > n


@pytest.mark.slow
def test_a_disk_full_at_any_one_write_fails_that_step_only() -> None:
    sweep(full_at, "full_at(%d)", at_least=60)


def full_from(n: int) -> bool:
    """Run it until the disk is full from write `n` on, then start, read and make room again."""
    world = World(seed=n)
    life = Life(world)
    world.disk.fail(errno.ENOSPC, when=is_write, after_calls=n)
    try:
        life.run()
    except (DiskFull, AssertionError) as error:
        if not isinstance(error, DiskFull) and not isinstance(error.__context__, DiskFull):
            raise
    else:
        return False
    if life.is_created:
        world.files = world.disk.crash(world.rng)
        world.disk.fail(errno.ENOSPC, when=is_write)
        log = world.open().logs.get(CLICKS)  # on the disk as it is, full
        if log is None:
            life.check_missing()
        else:
            life.check(log)
    world.disk.heal()
    life.check_after_the_crash()
    assert world.failures == []
    return True


@pytest.mark.slow
def test_a_broker_starts_on_a_disk_that_became_full_at_any_write_and_loses_nothing() -> None:
    sweep(full_from, "full_from(%d)", at_least=60)


def filled(world: World) -> None:
    """Leave no byte free."""
    world.disk.fail(errno.ENOSPC, when=is_write)


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_broker_starts_on_a_full_disk_and_serves_reads(is_clean: bool) -> None:
    world = World()
    log = world.log(segment_bytes=300, index_interval_bytes=0)
    for _ in range(20):
        world.clock.advance_ms(1)
        append(world, log, 3)
    newest = world.clock.now_ms()
    if not is_clean:  # and its indexes are to be rebuilt
        world.disk.remove(world.path_of(0, Suffix.INDEX))
    world.flush(log)
    world.stop() if is_clean else world.kill()
    filled(world)
    log = world.open().logs[CLICKS]
    assert lines(log) == expected_lines(60)
    found = find_by_timestamp(log, newest)
    assert found is not None
    assert found.offset == 57
    with pytest.raises(DiskFull):
        append(world, log, 3)
    world.disk.heal()
    append(world, log, 3)
    world.flush(log)
    world.lose_power()
    log = world.open().logs[CLICKS]
    assert lines(log) == expected_lines(63)
    times = [find_by_timestamp(log, newest - age) for age in range(20)]
    assert [found and found.offset for found in times] == list(range(57, -1, -3))
    assert world.failures == []


def test_on_a_full_disk_reads_and_deletions_continue() -> None:
    world = World()
    log = world.log(segment_bytes=300, index_interval_bytes=0)
    append(world, world.log(VIEWS), 3)
    for _ in range(20):
        append(world, log, 3)
    filled(world)
    log.close_idle()
    assert lines(log) == expected_lines(60)
    with pytest.raises(DiskFull):
        world.delete_records(log, 30)
    with refused(Error.OFFSET_OUT_OF_RANGE):
        read(log, 29, 10)
    world.directory.trimmer.retain(lambda log: log.end_offset)
    world.directory.delete(VIEWS, lambda _error: None)
    world.settle(61_000)
    assert log.segments[0].base_offset > 0
    assert not [name for name in world.disk.list("/d01") if name.startswith("views")]
    assert lines(log) == expected_lines(60, log.segments[0].base_offset)
    world.disk.heal()
    append(world, log, 3)
    world.flush(log)
    assert world.failures == []


def test_a_log_without_room_for_its_files_gets_them_once_there_is_room() -> None:
    n, was_refused = 0, True
    while was_refused:
        world = World()
        log = world.log()
        world.disk.fail(errno.ENOSPC, when=is_write, after_calls=n)
        try:
            world.directory.log_context.create_files(log)
            was_refused = False
        except DiskFull:
            n += 1
            assert not log.has_files
            assert "clicks-0" not in world.disk.list("/d01")
        world.disk.heal()
        assert append(world, log, 3).start_offset == 0
        world.flush(world.log())
        world.lose_power()
        assert lines(world.open().logs[CLICKS]) == expected_lines(3)
    assert n >= 4  # its directory, two calls for its metadata, its first segment


def test_a_clean_stop_refused_by_a_full_disk_costs_a_scan_and_no_record() -> None:
    n, is_marked = 0, False
    while not is_marked:
        world = World(seed=n)
        log = world.log(segment_bytes=300, index_interval_bytes=0)
        for _ in range(8):
            append(world, log, 3)
        world.flush(log)
        append(world, log, 3)
        world.settle()
        world.disk.fail(errno.ENOSPC, when=is_write, after_calls=n)
        world.stop()
        is_marked = world.disk.exists(f"/d01/{CLEAN_SHUTDOWN}")
        world.disk.heal()
        found = lines(world.open().logs[CLICKS])
        assert found == expected_lines(27)
        assert world.metrics.recovered_logs == (0 if is_marked else 1)
        n += 1
    assert n > 6
