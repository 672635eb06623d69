"""Producers' states after a start or a truncation: by snapshots, the newest that is sound."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from storage_world import CLICKS, START_MS, World, append, overwrite

from kdist.runtime.tasks import Done
from kdist.storage.log import Log
from kdist.storage.names import Suffix
from kdist.storage.producer_snapshot import encode_snapshot, load_snapshot
from kdist.storage.producers import ProducerStates


def append_three(world: World, log: Log) -> None:
    known = log.producers.producer(5)
    sequence = 0 if known is None else known.last_sequence + 1
    append(world, log, 3, producer_id=5, producer_epoch=0, base_sequence=sequence)


def rolled(world: World, segments: int) -> Log:
    """A log of segments of two batches of one producer, the last without any, never flushed."""
    log = world.log()
    for _ in range(segments - 1):
        append_three(world, log)
        append_three(world, log)
        log.roll(START_MS)
    return log


def snapshot(world: World, base_offset: int) -> str:
    return world.path_of(base_offset, Suffix.SNAPSHOT)


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_a_start_writes_every_snapshot_that_is_missing_behind_the_recovery_point(
    content: bytes | None,
) -> None:
    """Also below one that a flush, which the power loss cut short, had written already."""
    world = World()
    log = rolled(world, 4)
    append_three(world, log)
    producer = log.producers.producer(5)
    paths = [snapshot(world, base_offset) for base_offset in (6, 12, 18)]
    waiting = [log.files_to_save[path] for path in paths]
    assert isinstance(waiting[2], ProducerStates)
    waiting[2].restore(9, producer)  # one whose records are gone
    first, second, third = (encode_snapshot(each) for each in waiting)  # type: ignore[arg-type]
    for path, written in zip(paths, (first, content, third), strict=True):
        if written is not None:
            overwrite(world.disk, path, written)
    world.kill()
    states = world.open().logs[CLICKS].producers
    assert [world.disk.read(path) for path in paths] == [first, second, third]
    assert states.producer(5) == states.producer(9) == producer


def test_a_snapshot_is_of_the_states_at_the_roll_and_encoded_by_the_thread_that_writes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes 0.3 s for 100,000 producers, and the roll is part of an append."""
    world = World()
    world.open()
    run_blocking, is_elsewhere, encoded = world.tasks.run_blocking, False, list[bool]()

    def run_noted(work: Callable[[], None], done: Done) -> None:
        def noted() -> None:
            nonlocal is_elsewhere
            is_elsewhere = True
            try:
                work()
            finally:
                is_elsewhere = False

        run_blocking(noted, done)

    def encode_noted(states: ProducerStates) -> bytes:
        encoded.append(is_elsewhere)
        return encode_snapshot(states)

    monkeypatch.setattr("kdist.storage.flushing.encode_snapshot", encode_noted)
    monkeypatch.setattr(world.tasks, "run_blocking", run_noted)
    log = rolled(world, 2)
    before = log.producers.producer(5)
    append_three(world, log)
    assert log.producers.producer(5) != before
    world.flush(log)
    assert encoded == [True]
    assert load_snapshot(world.disk, snapshot(world, 6)).producer(5) == before


def test_a_truncation_right_after_a_roll_reads_no_segment_below_it() -> None:
    """Compaction may drop what the snapshot knows; it waits for a flush that finds no room."""
    world = World()
    log = rolled(world, 2)
    before = log.producers.producer(5)
    append_three(world, log)
    world.disk.fail(errno.ENOSPC, when=lambda call: ".snapshot" in call.path, forever=False)
    world.settle()
    assert not world.disk.exists(snapshot(world, 6))
    count = len(world.disk.trace)
    world.truncate(log, 6)
    reads = {call.path for call in world.disk.trace[count:] if call.name == "read"}
    assert world.path_of(0, Suffix.LOG) not in reads
    assert log.producers.producer(5) == before
