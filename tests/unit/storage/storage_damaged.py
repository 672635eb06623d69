"""A log for tests to damage, and what must hold once it has been opened again.

It has four segments of ten batches of three records. All of it was flushed, but the recovery point
on the disk is the start of the last segment.
"""

from __future__ import annotations

from functools import cache

from storage_world import CLICKS, START_MS, World, append, expected_lines, find_by_timestamp, lines

from kdist.config.topic import TopicSettings
from kdist.records.batch import read_header
from kdist.storage.log import Log
from kdist.storage.names import Suffix
from kdist.storage.reading import read
from kdist.testing.simulated_disk import SimulatedDisk

COUNT = 3  # records in a batch
SEGMENT = 30  # records in a segment
END = 4 * SEGMENT
TOPIC = TopicSettings(index_interval_bytes=150)


def written(end: int = END) -> World:
    """A machine that has written such a log of `end` records."""
    world = World(topic=TOPIC)
    log = world.log()
    fill(world, log, SEGMENT * 3)
    world.flush(log)
    world.wait(world.directory.saver.request)
    fill(world, log, end)
    assert len(log.segments) == -(-end // SEGMENT)
    world.settle()
    return world


def fill(world: World, log: Log, end: int) -> None:
    while log.end_offset < end:
        if log.end_offset and log.end_offset % SEGMENT == 0 and log.active.size:
            log.roll(world.clock.now_ms())
        world.clock.advance_ms(10)
        append(world, log, COUNT)


def killed(end: int = END) -> World:
    """Such a machine after a kill of the process: one of many with the same disk."""
    disk, now_ms = _left_by_a_kill(end)
    world = World(topic=TOPIC)
    world.clock.advance_ms(now_ms - START_MS)
    world.files = disk.power_on(world.rng)
    world.disk.rng, world.disk.clock = world.rng, world.clock
    return world


@cache
def _left_by_a_kill(end: int) -> tuple[SimulatedDisk, int]:
    """The disk, without power, and the time. All of it was synced, so each start finds the same."""
    world = written(end)
    disk = world.disk
    world.kill()
    return disk, world.clock.now_ms()


def stopped() -> World:
    """Such a machine after a clean stop."""
    world = written()
    world.stop()
    return world


def last_log(world: World) -> str:
    return world.path_of(3 * SEGMENT, Suffix.LOG)


def opened(world: World) -> Log:
    return world.open().logs[CLICKS]


def check_all_found(log: Log, end: int = END) -> None:
    """All records up to `end` are there, by offset and by timestamp, and the log goes on."""
    assert (log.start_offset, log.end_offset) == (0, end)
    check_lookups(log)


def check_lookups(log: Log) -> None:
    """A look-up by offset or timestamp finds what a walk through all batches finds."""
    found = lines(log)
    assert found == expected_lines(log.end_offset)
    for offset in range(0, log.end_offset, 2):
        piece = read(log, offset, 1)
        assert piece is not None
        assert read_header(piece.read()).base_offset == offset - offset % COUNT
        piece.release()
    headers = [header for segment in log.segments for _, header in segment.walk_headers()]
    for header in headers:
        at = find_by_timestamp(log, header.max_timestamp)
        before = find_by_timestamp(log, header.max_timestamp - 1)
        assert at is not None
        assert before is not None
        assert at.offset == before.offset == header.base_offset
    assert find_by_timestamp(log, headers[-1].max_timestamp + 1) is None


def check_goes_on(world: World, log: Log) -> None:
    """The log takes appends at its end, and they are there after the next power loss."""
    end = log.end_offset
    append(world, log, COUNT)
    world.flush(log)
    world.lose_power()
    assert lines(opened(world)) == expected_lines(end + COUNT)
