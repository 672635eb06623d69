"""Leader epochs against a list that keeps the epoch of every record, and their checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cleaning_world import SETTINGS, A, CleaningWorld, pairs_in
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kdist.errors import CorruptFile
from kdist.records.batch import Batch, read_header
from kdist.records.build import build_batch
from kdist.storage.epochs import (
    EpochEnd,
    EpochStart,
    LeaderEpochs,
    decode_epochs,
    encode_epochs,
)
from kdist.storage.names import LEADER_EPOCHS
from tests.unit.storage.storage_world import CLICKS, overwrite

PATH = "/d/leader-epoch-checkpoint"


def epochs_of(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(EpochStart(*entry) for entry in entries)


def test_an_epoch_ends_where_the_next_begins():
    epochs = epochs_of((1, 10), (2, 20), (4, 40))
    assert epochs.end_offset_for(1, 50) == (1, 20)
    assert epochs.end_offset_for(2, 50) == (2, 40)


def test_the_newest_epoch_ends_with_the_log():
    assert epochs_of((1, 10), (4, 40)).end_offset_for(4, 50) == (4, 50)


def test_a_skipped_epoch_answers_with_the_one_before_it():
    assert epochs_of((1, 10), (2, 20), (4, 40)).end_offset_for(3, 50) == (2, 40)


def test_an_epoch_before_the_oldest_ends_where_the_oldest_begins():
    assert epochs_of((2, 20), (4, 40)).end_offset_for(0, 50) == (0, 20)


def test_an_epoch_after_the_newest_is_unknown():
    assert epochs_of((1, 10)).end_offset_for(2, 50) == EpochEnd(-1, -1)


def test_a_log_without_epochs_knows_none():
    assert LeaderEpochs().end_offset_for(0, 50) == EpochEnd(-1, -1)
    assert epochs_of((0, 0)).end_offset_for(-1, 50) == EpochEnd(-1, -1)
    assert LeaderEpochs().latest == -1


def test_assigning_a_known_epoch_again_changes_nothing():
    epochs = epochs_of((1, 10))
    epochs.assign(1, 10)
    epochs.assign(1, 99)
    assert epochs.entries == [(1, 10)]
    assert not epochs.is_changed


def test_a_new_epoch_at_the_same_offset_replaces_an_epoch_without_records():
    epochs = epochs_of((1, 10), (2, 20))
    epochs.assign(3, 20)
    assert epochs.entries == [(1, 10), (3, 20)]
    assert epochs.is_changed


def test_assigning_an_older_epoch_removes_the_entries_it_contradicts():
    epochs = epochs_of((1, 10), (3, 30), (5, 50))
    epochs.assign(2, 60)
    assert epochs.entries == [(1, 10), (2, 60)]
    epochs.assign(2, 40)
    assert epochs.entries == [(1, 10), (2, 40)]


def test_more_records_of_an_epoch_behind_one_without_records_leave_its_start():
    epochs = epochs_of((1, 10), (2, 20), (3, 30))
    epochs.assign(2, 30)
    assert epochs.entries == [(1, 10), (2, 20)]


def test_truncating_at_an_epochs_start_removes_it():
    epochs = epochs_of((1, 10), (2, 20))
    epochs.cut(21)
    assert not epochs.is_changed
    epochs.cut(20)
    assert epochs.entries == [(1, 10)]
    assert epochs.is_changed


def test_deleting_records_moves_the_start_of_the_epoch_at_the_new_log_start():
    epochs = epochs_of((1, 10), (2, 20), (3, 30))
    epochs.truncate_from_start(9)
    epochs.truncate_from_start(10)
    assert not epochs.is_changed
    epochs.truncate_from_start(25)
    assert epochs.entries == [(2, 25), (3, 30)]
    assert epochs.is_changed


def test_deleting_all_records_keeps_the_newest_epoch():
    epochs = epochs_of((1, 10), (2, 20))
    epochs.truncate_from_start(99)
    assert epochs.entries == [(2, 99)]
    assert epochs.latest == 2


class EpochsModel(RuleBasedStateMachine):
    """The model: the epoch of each record, and of each leader where it began.

    Of appends under way, `under_way` has the number of records each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epochs = LeaderEpochs()
        self.saved: list[EpochStart] = []
        self.start = 0
        self.records: list[int] = []  # from offset 0 on; -1 where it is not known any more
        self.under_way: list[int] = []
        self.led: int | None = None
        self.newest = 0  # of all there were
        self.begun: list[EpochStart] = []

    @property
    def end(self) -> int:
        return len(self.records) - sum(self.under_way)

    def begin(self, offset: int) -> None:
        if self.led is not None:
            self.begun.append(EpochStart(self.led, offset))

    @rule(higher=st.integers(1, 2))
    def lead(self, higher: int) -> None:
        self.led = self.newest = self.newest + higher
        self.epochs.lead(self.led, len(self.records))
        self.begin(len(self.records))

    @rule()
    def resign(self) -> None:
        self.epochs.resign()
        self.led = None

    @rule(spans=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=3))
    def append(self, spans: list[tuple[int, int]]) -> None:
        """Prepare an append: a leader's in its epoch, a follower's in those of other leaders."""
        epoch, added, starts = max([0, *self.records[-1:]]), list[int](), list[tuple[int, int]]()
        for higher, count in spans:
            epoch = self.led if self.led is not None else epoch + higher
            starts.append((epoch, len(self.records) + len(added)))
            added += [epoch] * count
        self.newest = max(self.newest, epoch)
        self.epochs.prepare(starts, self.end)
        self.records += added
        self.under_way.append(len(added))

    @precondition(lambda self: self.under_way)
    @rule()
    def publish(self) -> None:
        del self.under_way[0]

    @rule()
    def abandon(self) -> None:
        del self.records[self.end :]
        self.under_way = []
        self.epochs.abandon(self.end)
        self.begun = [each for each in self.begun if each.start_offset <= self.end]
        self.begin(self.end)

    @precondition(lambda self: not self.under_way)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        end = data.draw(st.integers(self.start, self.end))
        self.records = self.records[:end] if end > self.start else [-1] * end
        self.epochs.cut(end)
        self.begun = []
        self.begin(end)

    @precondition(lambda self: not self.under_way)
    @rule(more=st.integers(1, 5))
    def begin_anew(self, more: int) -> None:
        self.start = self.end + more
        self.records = [-1] * self.start
        self.epochs.clear(self.start)
        self.begun = []
        self.begin(self.start)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.end))
        self.epochs.truncate_from_start(self.start)

    @rule()
    def save(self) -> None:
        self.saved, self.epochs.is_changed = self.epochs.entries, False

    @precondition(lambda self: not self.under_way)
    @rule()
    def restart(self) -> None:
        self.epochs = decode_epochs(encode_epochs(self.epochs), PATH)
        self.saved = self.epochs.entries
        self.led = None

    def expected(self) -> list[tuple[int, int]]:
        """Each epoch with where it begins."""
        starts: dict[int, int] = {}
        for offset, epoch in enumerate(self.records):
            if epoch >= 0:
                starts.setdefault(epoch, offset)
        for epoch, offset in self.begun:
            if offset == len(self.records) and epoch not in starts:
                starts = {each: start for each, start in starts.items() if start < offset}
                starts[epoch] = offset
        if gone := [epoch for epoch, start in starts.items() if start <= self.start]:
            starts[max(gone)] = self.start
        return sorted(each for each in starts.items() if each[1] >= self.start)

    @invariant()
    def knows_where_each_epoch_begins(self) -> None:
        assert self.epochs.entries == self.expected()

    @invariant()
    def answers_the_end_of_every_epoch(self) -> None:
        expected = self.expected()
        for asked in range(expected[-1][0] + 1 if expected else 0):
            known = max((epoch for epoch, _ in expected if epoch <= asked), default=asked)
            end = min((start for epoch, start in expected if epoch > asked), default=self.end)
            assert self.epochs.end_offset_for(asked, self.end) == (known, end)

    @invariant()
    def tells_of_each_change(self) -> None:
        assert self.epochs.is_changed or self.epochs.entries == self.saved

    @invariant()
    def grows_both_ways(self) -> None:
        entries = self.epochs.entries
        assert [epoch for epoch, _ in entries] == sorted({epoch for epoch, _ in entries})
        assert [start for _, start in entries] == sorted({start for _, start in entries})

    @invariant()
    def survives_its_checkpoint(self) -> None:
        content = encode_epochs(self.epochs)
        assert decode_epochs(content, PATH).entries == self.epochs.entries


TestEpochsModel = EpochsModel.TestCase


def test_the_checkpoint_is_version_count_and_lines():
    content = b"0\n2\n0 0\n3 4711\n"
    assert encode_epochs(epochs_of((0, 0), (3, 4711))) == content
    assert decode_epochs(content, PATH).entries == [(0, 0), (3, 4711)]


@given(st.binary(max_size=30) | st.text("012 \n", max_size=30).map(str.encode))
def test_any_bytes_are_a_checkpoint_or_corrupt(content):
    try:
        epochs = decode_epochs(content, PATH)
    except CorruptFile:
        return
    assert decode_epochs(encode_epochs(epochs), PATH).entries == epochs.entries


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"0\n2\n1 10\n1 20\n", 4),
        (b"0\n2\n2 10\n1 20\n", 4),
        (b"0\n2\n1 20\n2 20\n", 4),
        (b"0\n2\n1 20\n2 10\n", 4),
        (b"0\n1\n-1 20\n", 3),
        (b"0\n1\n1 -20\n", 3),
        (b"0\n1\n1 2 3\n", 3),
        (b"0\n1\n1 9223372036854775808\n", 3),
        (b"0\n1\n2147483648 0\n", 3),
        (b"2\n1\n1 2\n", 1),
        (b"0\n2\n1 2\n", None),
    ],
)
def test_a_malformed_checkpoint_is_corrupt_at_its_line(content, line):
    with pytest.raises(CorruptFile) as caught:
        decode_epochs(content, PATH)
    assert caught.value.line == line


@pytest.mark.parametrize("checkpoint", [None, b"garbage"])
def test_where_each_epoch_begins_outlives_its_records_and_the_checkpoint(
    checkpoint: bytes | None,
) -> None:
    world = CleaningWorld(topic=replace(SETTINGS, min_cleanable_dirty_ratio=0.0))
    log = world.log()
    for epoch in (0, 0, 2, 2, 2, 3, 5, 5):
        record = build_batch([b"x" * 150], [A], timestamp_ms=world.clock.now_ms())
        log.append_as_leader([Batch(read_header(record), record)], epoch, world.clock.now_ms())
    world.close_segment()
    before = log.epochs.entries
    for _ in range(3):  # what is left of a pass goes through the next
        world.put([(A, b"x")], epoch=5)
        world.close_segment()
        world.clean()
    assert world.cleaned.passes == 3
    assert len(pairs_in(log)) == 1
    world.stop()
    path = f"{world.path}/{CLICKS}/{LEADER_EPOCHS}"
    world.files.remove(path)
    if checkpoint is not None:
        overwrite(world.disk, path, checkpoint)
    # Epoch 0, of which no batch is left, has none before it: nobody asks where it begins.
    assert world.open().logs[CLICKS].epochs.entries == before[1:]
    assert before == [(0, 0), (2, 2), (3, 5), (5, 6)]
