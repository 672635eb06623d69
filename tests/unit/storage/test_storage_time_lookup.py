"""Look-ups by timestamp in steps: threads read cold logs, and a log may change meanwhile."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import ApiError, DiskFailed, DiskFull, Error
from kdist.runtime.files import File
from kdist.runtime.simulated_disk import SimulatedDisk
from kdist.runtime.steps import Steps, run_steps
from kdist.storage.log import Log
from kdist.storage.names import Suffix
from kdist.storage.time_lookup import TimestampedOffset, finding_by_timestamp, finding_newest
from tests.examples import examples
from tests.unit.storage.storage_world import World, append, batch_of, numbered

START_MS = 1_700_000_000_000
Lookup = Steps[TimestampedOffset | None]


def make_cold(world: World, log: Log) -> None:
    """Nothing of the log is in the page cache any more."""
    for segment in log.segments:
        segment.close_idle()
        for path in segment.paths:
            if world.disk.exists(path):
                file = world.disk.open(path)
                file._content.cold.update(range(1000))  # type: ignore[attr-defined]
                file.close()


def run(
    world: World, steps: Lookup, between: Callable[[int], None] = lambda _: None
) -> TimestampedOffset | None:
    """The result; on the loop nothing was read but from the page cache."""
    number = 0
    while True:
        reads = world.disk.calls["read"]
        try:
            work = next(steps)
        except StopIteration as end:
            assert world.disk.calls["read"] == reads
            result: TimestampedOffset | None = end.value
            return result
        assert world.disk.calls["read"] == reads
        if work is not None:
            work()
        number += 1
        between(number)


def run_all(
    steps: Lookup, between: Callable[[int], None] = lambda _: None
) -> TimestampedOffset | None:
    """The result, wherever it was read."""
    number = 0
    while True:
        try:
            work = next(steps)
        except StopIteration as end:
            result: TimestampedOffset | None = end.value
            return result
        if work is not None:
            work()
        number += 1
        between(number)


def filled(world: World, count: int = 60) -> Log:
    """A batch of a record each, a millisecond apart, in several segments."""
    log = world.log(segment_bytes=500, index_interval_bytes=100)
    for number in range(count):
        append(world, log, 1, timestamp=START_MS + number)
    world.flush(log)
    return log


@examples(60)
@given(
    stamps=st.lists(st.lists(st.integers(-3, 30), min_size=1, max_size=4), min_size=1, max_size=25),
    interval=st.sampled_from([0, 100, 4096]),
    start=st.integers(0, 60),
    evicted=st.sets(st.integers(0, 30)),
)
def test_a_cold_log_is_looked_up_as_a_cached_one_and_read_by_threads_alone(
    stamps: list[list[int]], interval: int, start: int, evicted: set[int]
) -> None:
    """Whatever is evicted again between the steps, but then it is read on the loop."""
    world = World()
    log = world.log(segment_bytes=500, index_interval_bytes=interval)
    times: list[int] = []
    for own in stamps:
        at = [START_MS + time for time in own]
        times += at
        values = numbered(log.end_offset, len(at))
        log.append_as_leader([batch_of(values, timestamps=at)], 0, START_MS)
    world.flush(log)
    world.delete_records(log, min(start, log.end_offset))
    world.restart()
    log = world.log()
    assert [segment.largest_timestamp for segment in log.segments]  # known since the start
    left = list(enumerate(times))[log.start_offset :]
    for timestamp in (START_MS, START_MS + 13, START_MS + 31):
        make_cold(world, log)
        found = run(world, finding_by_timestamp(log, timestamp))
        assert (found and found[:2]) == next((each for each in left if each[1] >= timestamp), None)
    make_cold(world, log)
    found = run(world, finding_newest(log))
    newest = max((at for _, at in left), default=-1)
    assert (found and found[:2]) == next((each for each in left if each[1] == newest), None)
    found = run_all(
        finding_by_timestamp(log, START_MS + 13),
        lambda number: make_cold(world, log) if number in evicted else None,
    )
    assert (found and found[:2]) == next((o for o in left if o[1] >= START_MS + 13), None)


def test_a_page_that_is_evicted_again_and_again_is_read_in_the_end() -> None:
    world = World()
    log = filled(world)
    make_cold(world, log)
    steps = finding_by_timestamp(log, START_MS + 33)
    assert run_all(steps, lambda _: make_cold(world, log)) == (33, START_MS + 33, 0)


def test_a_segment_that_retention_deletes_between_two_steps_is_done_without() -> None:
    world = World()
    log = filled(world)
    make_cold(world, log)

    def delete(number: int) -> None:
        if number == 1:
            world.delete_records(log, log.segments[3].base_offset)
            world.settle(120_000)

    found = run(world, finding_by_timestamp(log, START_MS), delete)
    assert found == (log.start_offset, START_MS + log.start_offset, 0)


def test_a_log_that_is_cut_between_two_steps_is_looked_up_anew() -> None:
    world = World()
    log = filled(world)
    for cut in (20, 21):
        make_cold(world, log)
        found = run(
            world,
            finding_by_timestamp(log, START_MS + 40 - cut),
            lambda number, cut=cut: world.truncate(log, cut) if number == 1 else None,  # type: ignore[misc]
        )
        assert found is None or found.offset == 40 - cut


def test_a_look_up_while_the_log_is_being_cut_is_refused() -> None:
    world = World()
    log = filled(world)
    make_cold(world, log)
    steps = finding_by_timestamp(log, START_MS + 55)
    work = next(steps)
    assert work is not None
    work()
    world.directory.truncate(log, 20, lambda _error: None)
    world.tasks.run_until(lambda: log.is_truncating, 100)
    for segment in log.segments:
        world.disk.open(segment.path).truncate(10)
    with pytest.raises(ApiError) as raised:
        run(world, steps)
    assert raised.value.error is Error.NOT_LEADER_OR_FOLLOWER


def opened_by(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The files that are opened to be read from now on."""
    files: list[Any] = []
    open_readonly = disk.open_readonly

    def opening(path: str) -> File:
        files.append(open_readonly(path))
        return cast(File, files[-1])

    monkeypatch.setattr(disk, "open_readonly", opening)
    return files


def test_a_disk_that_fails_under_the_thread_is_told_of_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    log = filled(world)
    make_cold(world, log)
    files = opened_by(world.disk, monkeypatch)
    steps = finding_by_timestamp(log, START_MS + 33)
    assert next(steps) is not None
    with pytest.raises(DiskFailed):
        steps.throw(DiskFailed("/d01", OSError()))
    assert files
    assert not any(each._is_open for each in files)


@pytest.mark.parametrize("opens", [1, 2])
def test_a_look_up_without_a_descriptor_for_all_of_a_segments_files_leaves_none_open(
    monkeypatch: pytest.MonkeyPatch, opens: int
) -> None:
    world = World()
    log = filled(world)
    files = opened_by(world.disk, monkeypatch)
    world.disk.fail(errno.EMFILE, after_calls=opens, when=lambda call: call.name == "open_readonly")
    with pytest.raises(DiskFull):
        run_steps(finding_by_timestamp(log, START_MS + 33))
    assert len(files) == opens
    assert not any(each._is_open for each in files)


def test_an_index_that_misleads_is_rebuilt_once() -> None:
    world = World()
    log = filled(world)
    world.restart()
    log = world.log()
    segment = log.segments[1]
    path = world.path_of(segment.base_offset, Suffix.TIME_INDEX)
    content = bytearray(world.disk.read(path))
    entry = content[:12]
    content[:12] = entry[:8] + (int.from_bytes(entry[8:], "big") + 1).to_bytes(4, "big")
    world.disk.replace(path, bytes(content))
    timestamp = START_MS + segment.base_offset + 1
    found = run_all(finding_by_timestamp(log, timestamp))
    assert found == (segment.base_offset + 1, timestamp, 0)
