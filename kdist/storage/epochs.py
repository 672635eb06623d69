"""Where each leader epoch of a log begins, in memory and as `leader-epoch-checkpoint`.

    0          version
    2          number of epochs
    0 0        epoch, offset of its first record
    3 4711

Followers truncate by these, and consumers detect truncation by them. The cache does not read the
log: whoever appends, truncates or deletes records must call it. Source: KIP-101, KIP-279.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from kdist.model import NO_EPOCH, NO_OFFSET
from kdist.storage.checkpoints import INT32_MAX, INT64_MAX, decode_rows, encode_rows, parse_number
from kdist.storage.faults import CorruptFile


class EpochStart(NamedTuple):
    """An epoch, and the offset of the first record that its leader appended."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """An epoch and its end offset (exclusive); both -1 for an unknown epoch."""

    epoch: int
    end_offset: int


_UNKNOWN = EpochEnd(NO_EPOCH, NO_OFFSET)


class LeaderEpochs:
    """The leader epochs of one log, owned by that log.

    Invariant: epochs and their start offsets both strictly increase. Methods that may change them
    return whether they did, so that the owner saves the checkpoint only then.
    """

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._epochs: list[int] = []  # parallel lists: bisect runs on plain integers
        self._starts: list[int] = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    @property
    def entries(self) -> list[EpochStart]:
        """All epochs, oldest first."""
        return list(map(EpochStart, self._epochs, self._starts))

    @property
    def latest(self) -> int:
        """The newest epoch that has records or a leader here, -1 if there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def start_of_latest(self) -> int:
        """Where the newest epoch starts, -1 if there is none."""
        return self._starts[-1] if self._starts else NO_OFFSET

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` has a record at `start_offset`; True if that was new.

        Called for every batch. Entries that contradict the new one are removed, as in Kafka: those
        of this epoch or a later one, and those that start at this offset or after it.
        """
        epochs, starts = self._epochs, self._starts
        if epochs and epoch == epochs[-1] and start_offset >= starts[-1]:
            return False
        assert epoch >= 0
        assert start_offset >= 0
        kept = min(bisect_left(epochs, epoch), bisect_left(starts, start_offset))
        epochs[kept:] = [epoch]
        starts[kept:] = [start_offset]
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """What OffsetForLeaderEpoch answers: the largest known epoch up to `epoch`, and its end.

        The end is the start of the next epoch, or `log_end_offset` for the newest. For an epoch
        newer than the newest it is (-1, -1). For one older than the oldest, whose records retention
        has removed, it is `epoch` itself and the oldest's start, where a follower continues.
        """
        epochs = self._epochs
        if epoch < 0 or not epochs or epoch > epochs[-1]:
            return _UNKNOWN
        if epoch == epochs[-1]:
            return EpochEnd(epoch, log_end_offset)
        following = bisect_right(epochs, epoch)
        known = epochs[following - 1] if following else epoch
        return EpochEnd(known, self._starts[following])

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at `offset`, -1 if it lies before the oldest epoch."""
        following = bisect_right(self._starts, offset)
        return self._epochs[following - 1] if following else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> bool:
        """The log now ends at `end_offset`: remove epochs that start there or later."""
        kept = bisect_left(self._starts, end_offset)
        if kept == len(self._starts):
            return False
        del self._epochs[kept:]
        del self._starts[kept:]
        return True

    def truncate_from_start(self, start_offset: int) -> bool:
        """The log now starts at `start_offset`: remove older epochs; the one of that offset now
        starts there. The newest epoch is kept even if no record of it is left.
        """
        gone = bisect_right(self._starts, start_offset) - 1
        if gone < 0 or (gone == 0 and self._starts[0] == start_offset):
            return False
        del self._epochs[:gone]
        del self._starts[:gone]
        self._starts[0] = start_offset
        return True


def encode_epochs(epochs: LeaderEpochs) -> bytes:
    """The content of `leader-epoch-checkpoint`."""
    return encode_rows(f"{epoch} {start_offset}" for epoch, start_offset in epochs.entries)


def decode_epochs(content: bytes, path: str) -> LeaderEpochs:
    """The epochs of a checkpoint; `CorruptFile` if its frame or a line is wrong or out of order."""
    last = EpochStart(-1, -1)
    entries: list[EpochStart] = []
    for line, (epoch, start_offset) in decode_rows(content, path, width=2):
        entry = EpochStart(
            parse_number(epoch, INT32_MAX, path, line),
            parse_number(start_offset, INT64_MAX, path, line),
        )
        if entry.epoch <= last.epoch or entry.start_offset <= last.start_offset:
            raise CorruptFile(path, line, "epochs and their start offsets do not both increase")
        entries.append(entry)
        last = entry
    return LeaderEpochs(entries)
