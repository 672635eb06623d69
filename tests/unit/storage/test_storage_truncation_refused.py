"""A truncation that the disk refuses at some step leaves a whole log, which can be cut again.

Each step is refused in turn. Then the truncation is retried, or the log grows from its end.
"""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from storage_life import sweep
from storage_world import CLICKS, World, append, batch_of, expected_lines, flip, lines

from kdist.errors import ApiError, DiskFailed, DiskFull, Error
from kdist.storage.names import Suffix
from kdist.testing.simulated_disk import Call, PowerLoss
from tests.examples import first_of

COUNT = 5  # records of a batch
EPOCH = 15  # and of a leader epoch
CUTS = [
    (12, True),
    *(pytest.param(*cut, marks=pytest.mark.slow) for cut in ((12, False), (47, True))),
]  # to which offset, and whether all was flushed before

FULL = {"create", "write", "rename", "remove"}
OPENING = {"open", "create", "list", "sync_directory"}


def may_be_full(call: Call) -> bool:
    return call.name in FULL


def may_lack_descriptors(call: Call) -> bool:
    return call.name in OPENING or (call.name == "read" and call.path.endswith(".snapshot"))


REFUSALS = {errno.ENOSPC: may_be_full, errno.EMFILE: may_lack_descriptors}


class History:
    """A log of one producer's batches in many segments, and the value expected at each offset."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed=seed)
        self.log = self.world.log(segment_bytes=700, index_interval_bytes=0)
        self.values: list[bytes] = []

    def append(self, batches: int = 1) -> None:
        """Append values that differ from those that had their offsets before."""
        for _ in range(batches):
            start, now_ms = self.log.end_offset, self.world.clock.now_ms()
            self.world.clock.advance_ms(7)
            values = [b"%d at %d" % (start + number, now_ms) for number in range(COUNT)]
            fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": start}
            batch = batch_of(values, timestamp=now_ms, **fields)
            self.log.append_as_leader([batch], start // EPOCH, now_ms)
            self.values[start:] = values

    def reopen(self) -> None:
        """Cut the power, and start on what the disk holds."""
        self.world.lose_power()
        self.log = self.world.open().logs[CLICKS]

    def check(self) -> None:
        """The log holds what was appended up to its end, with its epochs, producers and indexes."""
        log = self.log
        end = log.end_offset
        assert end == log.reserved_offset
        assert [line for line in lines(log) if line[0] >= log.start_offset] == list(
            enumerate(self.values[log.start_offset : end], log.start_offset)
        )
        producer = log.producers.producer(1)
        assert (-1 if producer is None else producer.last_sequence) == end - 1
        starts = [(start // EPOCH, start) for start in range(0, end, EPOCH)]
        assert [tuple(entry) for entry in log.epochs.entries] == starts


def cut_log(seed: int = 0, *, is_flushed: bool = True) -> History:
    history = History(seed)
    history.append(12)
    if is_flushed:
        history.world.flush(history.log)
    history.world.settle(61_000)
    history.log.close_idle()
    return history


def is_refused(history: History, offset: int) -> bool:
    """Request a truncation; returns whether the disk had no room for it."""
    try:
        history.world.truncate(history.log, offset)
    except DiskFull:
        return True
    return False


@pytest.mark.parametrize("is_asked_again", [False, True])
@pytest.mark.parametrize(("offset", "is_flushed"), CUTS)
@pytest.mark.parametrize("code", REFUSALS)
def test_a_refused_truncation_leaves_a_whole_log_that_can_be_cut_again(
    code: int, offset: int, is_flushed: bool, is_asked_again: bool
) -> None:
    def refuse(n: int) -> bool:
        history = cut_log(n, is_flushed=is_flushed)
        world, before = history.world, len(history.world.disk.trace)
        world.disk.fail(code, when=REFUSALS[code], after_calls=n, forever=False)
        is_cut = not is_refused(history, offset)
        world.disk.heal()
        calls = sum(map(REFUSALS[code], world.disk.trace[before:]))
        history.check()
        if not is_cut and is_asked_again:
            is_cut = not is_refused(history, offset)
            assert is_cut
        history.check()
        assert not is_cut or history.log.end_offset == offset - offset % COUNT
        history.append(3)
        history.check()
        world.flush(history.log)
        assert world.failures == []
        history.reopen()
        history.check()
        history.append(3)
        history.check()
        return calls > n

    sweep(refuse, "n = %d", at_least=6)


@pytest.mark.parametrize("is_asked_again", [False, True])
@pytest.mark.parametrize("is_stopped", first_of([False, True]))
@pytest.mark.parametrize("offset", first_of([7, 17]))
@pytest.mark.parametrize("code", REFUSALS)
def test_a_refused_truncation_into_the_batch_of_the_start_shows_no_deleted_record(
    code: int, offset: int, is_stopped: bool, is_asked_again: bool
) -> None:
    def refuse(n: int) -> bool:
        world = World(seed=n)
        log = world.log(segment_bytes=300)
        for _ in range(4):
            append(world, log, 10)
        world.flush(log)
        world.delete_records(log, 15)
        log.close_idle()
        before = len(world.disk.trace)
        world.disk.fail(code, when=REFUSALS[code], after_calls=n, forever=False)
        heard: list[BaseException | None] = []
        world.directory.trimmer.truncate(log, offset, heard.append)
        world.settle(1000)
        world.disk.heal()
        calls = sum(map(REFUSALS[code], world.disk.trace[before:]))
        assert heard == [None] or isinstance(heard[0], DiskFull)
        if heard != [None] and is_asked_again:
            world.truncate(log, offset)
            heard = [None]
        assert log.start_offset == 15
        assert log.end_offset in ((15,) if heard == [None] else (15, 20, 30, 40))
        end = append(world, log, 3).end_offset
        world.flush(log)
        assert world.failures == []
        if is_stopped:
            world.stop()
        else:
            world.lose_power()
        log = world.open().logs[CLICKS]
        assert (log.start_offset, log.end_offset) == (15, end)
        assert lines(log) == expected_lines(end, log.segments[0].base_offset)
        append(world, log, 3)
        return calls > n

    sweep(refuse, "n = %d", at_least=6)


@pytest.mark.parametrize(("offset", "is_flushed"), CUTS)
def test_a_power_loss_at_any_step_of_a_truncation_leaves_a_whole_log(
    offset: int, is_flushed: bool
) -> None:
    def lose(n: int) -> bool:
        history = cut_log(n, is_flushed=is_flushed)
        world, is_cut = history.world, False
        world.disk.crash_at(n + 1)
        try:
            world.truncate(history.log, offset)
            is_cut = True
            world.lose_power()
        except PowerLoss:
            world.files = world.disk.power_on(world.rng)
        history.log = world.open().logs[CLICKS]
        history.check()
        end = offset - offset % COUNT
        assert not is_cut or history.log.end_offset == end
        assert history.log.end_offset >= end or not is_flushed
        history.append(3)
        world.flush(history.log)
        history.reopen()
        history.check()
        return not is_cut

    sweep(lose, "n = %d", at_least=6)


@pytest.mark.parametrize("code", REFUSALS)
def test_a_power_loss_after_a_refused_truncation_leaves_a_whole_log(code: int) -> None:
    """What was renamed has its name back, but perhaps not on the disk yet."""

    def refuse(n: int) -> bool:
        history = cut_log(n)
        world = history.world
        world.disk.fail(code, when=REFUSALS[code], after_calls=n, forever=False)
        was_refused = is_refused(history, 12)
        world.disk.heal()
        assert was_refused or history.log.end_offset == 10
        history.reopen()
        history.check()
        assert history.log.end_offset >= 10
        history.append(3)
        history.check()
        return was_refused

    sweep(refuse, "n = %d", at_least=6)


def test_a_truncation_that_can_neither_go_on_nor_back_ends_the_broker() -> None:
    history = cut_log()
    world = history.world
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "rename", after_calls=6)
    with pytest.raises(DiskFailed):
        world.truncate(history.log, 12)
    assert len(world.failures) == 1
    world.disk.heal()
    history.reopen()
    history.check()


def test_after_a_failed_sync_in_a_truncation_no_flush_confirms_anything() -> None:
    """The pages that the failed sync lost may hold records before the cut."""
    history = cut_log(is_flushed=False)
    world, log, heard = history.world, history.log, list[BaseException | None]()
    path = world.path_of(log.active.base_offset, Suffix.LOG)
    world.disk.fail(when=lambda call: call.name == "sync" and call.path == path, forever=False)
    with pytest.raises(DiskFailed):
        world.truncate(log, 57)
    world.directory.flusher.request(log, heard.append)
    world.settle(1000)
    assert heard == []
    assert len(world.failures) == 1


def test_a_truncation_that_meets_a_damaged_batch_fails_and_changes_nothing() -> None:
    history = cut_log()
    world, log = history.world, history.log
    for suffix in (Suffix.INDEX, Suffix.TIME_INDEX):
        world.disk.remove(world.path_of(0, suffix))
    log.segments[0].close_idle()
    flip(world.disk, world.path_of(0, Suffix.LOG), 16)  # the first batch's magic
    heard: list[BaseException | None] = []
    world.directory.trimmer.truncate(log, 7, heard.append)
    world.settle()
    assert [error.error for error in heard if isinstance(error, ApiError)] == [
        Error.CORRUPT_MESSAGE
    ]
    assert log.end_offset == 60
    world.flush(log)


def test_what_compaction_removed_is_still_known_after_a_refused_truncation() -> None:
    """Below the offset for which it did, the log cannot be cut: all of it goes."""
    history = History()
    log = history.log
    log.configure(replace(log.settings, cleanup_policy=frozenset({"compact"})))
    history.append(12)
    history.world.flush(log)
    log.note_cleaned(50)
    history.world.disk.fail(errno.ENOSPC, when=lambda call: "checkpoint" in call.path)
    assert is_refused(history, 55)
    history.world.disk.heal()
    history.world.truncate(log, 47)
    assert (log.start_offset, log.end_offset) == (0, 0)
