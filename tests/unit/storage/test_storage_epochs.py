"""Leader epochs against a list that keeps the epoch of every offset, and their checkpoint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kdist.storage.epochs import (
    EpochEnd,
    EpochStart,
    LeaderEpochs,
    decode_epochs,
    encode_epochs,
)
from kdist.storage.faults import CorruptFile

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
    assert not epochs.assign(1, 10)
    assert not epochs.assign(1, 99)
    assert epochs.entries == [(1, 10)]


def test_a_new_epoch_at_the_same_offset_replaces_an_epoch_without_records():
    epochs = epochs_of((1, 10), (2, 20))
    assert epochs.assign(3, 20)
    assert epochs.entries == [(1, 10), (3, 20)]


def test_assigning_an_older_epoch_removes_the_entries_it_contradicts():
    epochs = epochs_of((1, 10), (3, 30), (5, 50))
    assert epochs.assign(2, 60)
    assert epochs.entries == [(1, 10), (2, 60)]
    assert epochs.assign(2, 40)
    assert epochs.entries == [(1, 10), (2, 40)]


def test_truncating_at_an_epochs_start_removes_it():
    epochs = epochs_of((1, 10), (2, 20))
    assert not epochs.truncate_from_end(21)
    assert epochs.truncate_from_end(20)
    assert epochs.entries == [(1, 10)]


def test_deleting_records_moves_the_start_of_the_epoch_at_the_new_log_start():
    epochs = epochs_of((1, 10), (2, 20), (3, 30))
    assert not epochs.truncate_from_start(9)
    assert not epochs.truncate_from_start(10)
    assert epochs.truncate_from_start(25)
    assert epochs.entries == [(2, 25), (3, 30)]


def test_deleting_all_records_keeps_the_newest_epoch():
    epochs = epochs_of((1, 10), (2, 20))
    assert epochs.truncate_from_start(99)
    assert epochs.entries == [(2, 99)]
    assert epochs.latest == 2


class EpochsModel(RuleBasedStateMachine):
    """The model: `log[offset]` is the epoch of the record at that offset, from `start` on."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = LeaderEpochs()
        self.start = 0
        self.log: list[int] = []

    @property
    def end(self) -> int:
        return self.start + len(self.log)

    @rule(higher=st.integers(0, 2), count=st.integers(1, 4))
    def append(self, higher: int, count: int) -> None:
        epoch = max(self.epochs.latest, 0) + higher
        if not self.log and self.epochs.latest >= 0:
            epoch = self.epochs.latest + 1  # the model cannot tell an epoch without records
        self.epochs.assign(epoch, self.end)
        self.log += [epoch] * count

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        kept = data.draw(st.integers(0, len(self.log)))
        before = self.epochs.entries
        changed = self.epochs.truncate_from_end(self.start + kept)
        assert changed == (self.epochs.entries != before)
        del self.log[kept:]

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        gone = data.draw(st.integers(0, max(len(self.log) - 1, 0)))
        before = self.epochs.entries
        changed = self.epochs.truncate_from_start(self.start + gone)
        assert changed == (self.epochs.entries != before)
        self.start += gone
        del self.log[:gone]

    @invariant()
    def knows_the_epoch_of_every_record(self) -> None:
        assert [self.epochs.epoch_of(self.start + at) for at in range(len(self.log))] == self.log
        assert self.epochs.epoch_of(self.start - 1) == -1 or not self.log

    @invariant()
    def answers_the_end_of_every_epoch(self) -> None:
        if not self.log:
            return
        for epoch in range(self.log[-1] + 2):
            if epoch > self.log[-1]:
                expected = (-1, -1)
            else:
                end = self.start + sum(1 for one in self.log if one <= epoch)
                known = max((one for one in self.log if one <= epoch), default=epoch)
                expected = (known, end)
            assert self.epochs.end_offset_for(epoch, self.end) == expected

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
