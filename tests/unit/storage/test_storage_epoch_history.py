"""A log's leader epochs are those of its batches, whatever fails, is cut off or crashes meanwhile.

And of its leader, which leaves its trace before it has a record. Appends are a leader's and a
follower's, written at once or by another thread, several under way at a time, across epochs.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from storage_world import CLICKS, START_MS, World, batch_of, numbered, write

from kdist.errors import ApiError, DiskFull, Error
from kdist.records.batch import iter_headers
from kdist.records.build import build_batch
from kdist.storage.append import Append
from kdist.storage.log import Log
from kdist.testing.simulated_disk import PowerLoss
from tests.examples import examples

LACKS = [errno.ENOSPC, errno.EDQUOT, errno.EMFILE]
Spans = Sequence[tuple[int, int]]  # the epoch and number of records of each batch
SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=3)


def fetched(first: int, spans: Spans) -> bytearray:
    """Batches as a leader's log has them, from offset `first` on."""
    data = bytearray()
    for epoch, count in spans:
        values = numbered(first, count)
        data += build_batch(values, timestamp_ms=START_MS, base_offset=first, leader_epoch=epoch)
        first += count
    return data


def prepare(log: Log, spans: Spans) -> Append:
    return log.prepare_as_follower([fetched(log.reserved_offset, spans)], 99, START_MS)


def lack(world: World, log: Log, number: int) -> None:
    """Have the next write of the log fail, or the file not open that was idle."""
    log.close_idle()
    name = "open" if number == errno.EMFILE else "write"
    world.disk.fail(number, when=lambda call: call.name == name and call.path.endswith(".log"))


def starts(log: Log) -> list[tuple[int, int]]:
    return [tuple(each) for each in log.epochs.entries]  # type: ignore[misc]


def starts_of_batches(log: Log) -> list[tuple[int, int]]:
    """By the headers in the files, of what is readable: each epoch and where it begins."""
    found: dict[int, int] = {}
    ends = [segment.base_offset for segment in log.segments[1:]]
    for segment, end in zip(
        log.segments if log.has_files else (), [*ends, log.end_offset], strict=False
    ):
        for _, header in iter_headers(segment.file.read(0, segment.size)):
            start = max(header.base_offset, log.start_offset)
            if start < min(header.base_offset + header.last_offset_delta + 1, end):
                found.setdefault(header.partition_leader_epoch, start)
    return sorted(found.items())


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def log(world: World) -> Log:
    """Records of the epochs 2 and 3, up to offset 100."""
    log = world.log()
    log.complete_append(prepare(log, [(2, 50), (3, 50)]), START_MS)
    return log


@pytest.mark.parametrize("number", LACKS)
@pytest.mark.parametrize("spans", [[(3, 10), (5, 10)], [(3, 9), (5, 9), (8, 1)], [(7, 1), (8, 1)]])
def test_a_failed_append_across_epochs_leaves_no_epoch(
    world: World, log: Log, number: int, spans: Spans
) -> None:
    for _ in range(2):
        append = prepare(log, spans)
        lack(world, log, number)
        with pytest.raises(DiskFull):
            log.complete_append(append, START_MS)
        assert starts(log) == [(2, 0), (3, 50)]
        world.disk.heal()
    log.complete_append(prepare(log, spans), START_MS)
    assert starts(log) == starts_of_batches(log)
    assert log.epochs.end_offset_for(2, log.end_offset) == (2, 50)


@pytest.mark.parametrize("published", range(3))
@pytest.mark.parametrize("leader", [None, 9])
def test_several_appends_across_epochs_are_given_up_with_all_their_epochs(
    log: Log, published: int, leader: int | None
) -> None:
    """Whether or not this broker began to lead meanwhile, behind them."""
    appends = [
        log.defer(prepare(log, spans)) for spans in ([(3, 4), (5, 4)], [(5, 2), (6, 2)], [(8, 2)])
    ]
    if leader is not None:
        log.begin_epoch(leader)
        batch = batch_of(numbered(log.reserved_offset, 1))
        appends.append(log.defer(log.prepare_as_leader([batch], leader, START_MS)))
    for each in appends[:published]:
        write(each)
        log.publish(each, START_MS)
    log.abandon(appends[published])
    trace = [] if leader is None else [(leader, log.end_offset)]
    assert starts(log) == [*starts_of_batches(log), *trace]


def test_records_that_are_deleted_up_to_an_append_that_fails_keep_their_newest_epoch(
    world: World, log: Log
) -> None:
    append = log.defer(prepare(log, [(5, 4)]))
    world.delete_records(log, 100)
    log.abandon(append)
    assert starts(log) == [(3, 100)]


def test_an_epoch_without_records_is_there_again_when_the_append_behind_it_fails(log: Log) -> None:
    log.begin_epoch(6)
    log.epochs.resign()
    log.abandon(log.defer(prepare(log, [(7, 4)])))
    assert starts(log) == [(2, 0), (3, 50), (6, 100)]


@pytest.mark.parametrize("offset", [40, 70, 100])
@pytest.mark.parametrize("leads", ["before it is queued", "before it is saved", "while it is cut"])
def test_who_leads_when_a_truncation_ends_has_its_epoch_there(
    world: World, log: Log, offset: int, leads: str
) -> None:
    world.flush(log)
    appends = [log.defer(prepare(log, [(3, 4)]))] if offset == 100 else []
    heard: list[BaseException | None] = []
    world.directory.trimmer.truncate(log, offset, heard.append)
    if leads == "before it is queued":
        log.begin_epoch(6)
    for each in appends:
        log.abandon(each)
    if leads == "before it is saved":
        log.begin_epoch(6)
    world.tasks.run_until(lambda: log.truncating_from < log.end_offset, 1)
    if leads == "while it is cut":
        log.begin_epoch(6)
    world.settle()
    assert heard == [None]
    assert starts(log) == [*starts_of_batches(log), (6, log.end_offset)]
    assert log.epochs.start_of_latest == log.end_offset


def test_who_led_before_a_truncation_leaves_no_epoch_behind_it(world: World, log: Log) -> None:
    log.begin_epoch(6)
    log.epochs.resign()
    for offset, expected in ((100, [(2, 0), (3, 50)]), (50, [(2, 0)])):
        world.truncate(log, offset)
        assert starts(log) == expected


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_truncation_that_is_not_wanted_any_more_cuts_nothing(
    world: World, log: Log, is_begun: bool
) -> None:
    heard: list[BaseException | None] = []
    world.directory.trimmer.truncate(log, 70, heard.append, lambda: log.epochs.latest < 6)
    if is_begun:  # the checkpoints are being saved
        world.tasks.run_until(lambda: log.truncating_from < log.end_offset, 1)
    log.begin_epoch(6)
    world.settle()
    (error,) = heard
    assert isinstance(error, ApiError)
    assert error.error is Error.NOT_LEADER_OR_FOLLOWER
    assert (log.end_offset, log.is_truncating, log.is_busy) == (100, False, False)
    assert starts(log) == [(2, 0), (3, 50), (6, 100)]


def test_a_power_loss_anywhere_in_a_truncation_leaves_the_epochs_of_what_is_there() -> None:
    n, is_done = 0, False
    while not is_done:
        n += 1
        world = World(seed=n)
        log = world.log(segment_bytes=400, index_interval_bytes=0)
        for epoch in range(8):
            log.complete_append(prepare(log, [(epoch, 3), (epoch, 2)]), START_MS)
        world.flush(log)
        world.disk.crash_at(n)
        try:
            world.truncate(log, 17)
            log.complete_append(prepare(log, [(9, 4), (11, 4)]), START_MS)
            world.flush(log)
            is_done = True
            world.lose_power()
        except PowerLoss:
            world.files = world.disk.power_on()
        log = world.open().logs[CLICKS]
        assert starts(log) == starts_of_batches(log)
    assert n > 10


class EpochHistory(RuleBasedStateMachine):
    """A log's life; the model is what the headers of its batches say."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.log = self.world.log(segment_bytes=1_000, index_interval_bytes=100)
        self.under_way: list[Append] = []
        self.newest = 1  # of the leaders' epochs
        self.led: int | None = None

    def prepare(self, spans: Spans) -> Append:
        """A follower's append of batches in this and later epochs, or a leader's, in its own."""
        if self.led is not None:
            batch = batch_of(numbered(self.log.reserved_offset, sum(count for _, count in spans)))
            return self.log.prepare_as_leader([batch], self.led, START_MS)
        epoch, batches = max(0, self.log.epochs.epoch_of(self.log.reserved_offset - 1)), []
        for higher, count in spans:
            epoch = min(epoch + higher, self.newest)
            batches.append((epoch, count))
        return prepare(self.log, batches)

    def give_up(self, append: Append) -> None:
        self.log.abandon(append)
        del self.under_way[self.under_way.index(append) :]

    def end(self, published: int) -> None:
        """End what is under way: publish so many of them."""
        for each in self.under_way[:published]:
            write(each)
            self.log.publish(each, START_MS)
        del self.under_way[:published]
        if self.under_way:
            self.give_up(self.under_way[0])

    @rule(higher=st.integers(1, 2))
    def lead(self, higher: int) -> None:
        self.led = self.newest = self.newest + higher
        self.log.begin_epoch(self.newest)

    @rule(higher=st.integers(0, 2))
    def follow(self, higher: int) -> None:
        self.newest += higher
        self.led = None
        self.log.epochs.resign()

    @precondition(lambda self: not self.under_way)
    @rule(spans=SPANS, number=st.sampled_from([0, 0, *LACKS]))
    def append(self, spans: Spans, number: int) -> None:
        self.world.settle()  # no flush has a file open
        before = starts(self.log)
        append = self.prepare(spans)
        if not number:
            self.log.complete_append(append, START_MS)
            return
        lack(self.world, self.log, number)
        with pytest.raises(DiskFull):
            self.log.complete_append(append, START_MS)
        self.world.disk.heal()
        assert starts(self.log) == before

    @rule(spans=SPANS)
    def defer(self, spans: Spans) -> None:
        append = self.log.defer(self.prepare(spans))
        append.keep()
        self.under_way.append(append)

    @rule(published=st.integers(0, 3))
    def write(self, published: int) -> None:
        self.end(published)

    @rule()
    def flush(self) -> None:
        self.world.flush(self.log)

    @rule(offset=st.integers(0, 40), published=st.integers(0, 3), leads=st.integers(0, 5))
    def truncate(self, offset: int, published: int, leads: int) -> None:
        """A follower's log is cut off; in some step of that it may begin to lead."""
        self.follow(0)
        heard: list[BaseException | None] = []
        end = max(self.log.start_offset, self.log.end_offset - offset)
        lead = partial(self.lead, 1)
        self.world.directory.trimmer.truncate(self.log, end, heard.append, lambda: self.led is None)
        for step in (
            partial(self.end, published),
            lambda: self.world.tasks.run_for_ms(0),
            lambda: self.world.tasks.run_until(lambda: self.log.truncating_from <= end, 1),
            self.world.settle,
        ):
            if leads == 1:
                lead()
            leads -= 1
            step()
        assert len(heard) == 1
        assert (self.log.is_busy, self.log.is_truncating) == (False, False)

    @precondition(lambda self: not self.under_way)
    @rule(share=st.integers(0, 3), is_retained=st.booleans())
    def delete(self, share: int, is_retained: bool) -> None:
        log = self.log
        offset = log.end_offset - (log.end_offset - log.start_offset) * share // 3
        self.world.delete_records(log, offset)
        if is_retained:
            self.world.directory.trimmer.retain(lambda log: log.end_offset)
            self.world.settle()

    @precondition(lambda self: not self.under_way)
    @rule(more=st.integers(1, 9))
    def begin_anew(self, more: int) -> None:
        self.follow(0)
        offset = self.log.end_offset + more
        self.world.wait(
            lambda done: self.world.directory.trimmer.truncate_fully(self.log, offset, done)
        )

    @precondition(lambda self: not self.under_way)
    @rule(end=st.sampled_from(["stop", "kill", "lose power"]))
    def start_again(self, end: str) -> None:
        if end == "stop":
            self.world.stop()
        elif end == "kill":
            self.world.kill()
        else:
            self.world.lose_power()
        self.world.open()
        self.log, self.led = self.world.log(), None

    @invariant()
    def knows_the_epochs_of_its_batches(self) -> None:
        log, assigned = self.log, starts(self.log)
        before_end = [each for each in assigned if each[1] < log.end_offset]
        assert before_end == starts_of_batches(log)
        assert self.led is None or log.epochs.latest == self.led
        if not self.under_way:
            behind: list[Any] = assigned[len(before_end) :]
            assert [start for _, start in behind] in ([], [log.end_offset])
        assert not self.world.failures


TestEpochHistory = EpochHistory.TestCase
TestEpochHistory.settings = examples(60, stateful_step_count=25)
