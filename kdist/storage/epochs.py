"""Where each leader epoch of a log begins, in memory and as `leader-epoch-checkpoint`.

    0          version
    2          number of epochs
    0 0        epoch, offset of its first record
    3 4711

Followers truncate by these, and consumers detect truncation by them. The log tells of all that may
change them, which this file then undoes by itself where it has to:

    what happens                   the epochs                                         call
    this broker leads in E         E begins behind the appends under way              `lead`
    it does so no longer           as they are                                        `resign`
    an append is prepared          those of its batches begin with them               `prepare`
    it is published                as they are                                        -
    all under way are abandoned    as before they were prepared                       `abandon`
    records are cut off            those that begin at the log's new end, or behind,  `cut`
                                   go
    records are deleted            older ones go, see `truncate_from_start`

Whatever goes, the epoch in which this broker leads begins where the log then ends: it leaves its
trace before it has a record (KAFKA-7415). Source: KIP-101, KIP-279.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from kdist.config.kinds import INT32_MAX, INT64_MAX
from kdist.errors import CorruptFile
from kdist.model import NO_EPOCH, NO_OFFSET
from kdist.storage.checkpoints import decode_rows, encode_rows, parse_number


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

    Invariant: epochs and their start offsets both strictly increase. `is_changed` is set with each
    change, so that the owner knows when to save them, and then clears it.
    """

    __slots__ = ("_before", "_epochs", "_led", "_starts", "is_changed")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []  # parallel lists: bisect runs on plain integers
        self._starts: list[int] = []
        self._led = NO_EPOCH  # in which this broker leads
        # The epochs before appends that have brought others, by the offset of the first of these.
        # An append below the log end offset is published, and its entry of no use any more.
        self._before: list[tuple[int, LeaderEpochs]] = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self.is_changed = False

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

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` has a record at `start_offset`, which is in the log.

        Entries that contradict the new one are removed: those of a later epoch, and those that
        start at this offset or after it.
        """
        if not self._has(epoch, start_offset):
            assert epoch >= 0
            assert start_offset >= 0
            epochs, starts = self._epochs, self._starts
            kept = min(bisect_right(epochs, epoch), bisect_left(starts, start_offset))
            is_known = kept and epochs[kept - 1] == epoch  # one without records came behind it
            epochs[kept:] = [] if is_known else [epoch]
            starts[kept:] = [] if is_known else [start_offset]
            self.is_changed = True

    def _has(self, epoch: int, start_offset: int) -> bool:
        """Whether the newest epoch is this one, and has begun at this offset or before."""
        epochs = self._epochs
        return bool(epochs) and epoch == epochs[-1] and start_offset >= self._starts[-1]

    def prepare(self, starts: Iterable[tuple[int, int]], log_end_offset: int) -> None:
        """An append is prepared: note the epoch and base offset of its batches.

        An epoch of -1, as old batches have it, is passed over.
        """
        is_first = True
        for epoch, start_offset in starts:
            if epoch >= 0 and not self._has(epoch, start_offset):
                if is_first:
                    under_way = [each for each in self._before if each[0] >= log_end_offset]
                    self._before = [*under_way, (start_offset, LeaderEpochs(self.entries))]
                    is_first = False
                self.assign(epoch, start_offset)

    def abandon(self, log_end_offset: int) -> None:
        """All appends under way are given up: there is nothing at `log_end_offset` or behind."""
        for start_offset, before in self._before:
            if start_offset >= log_end_offset:
                self._epochs, self._starts = before._epochs, before._starts
                self.is_changed = True
                break
        self._end_at(log_end_offset + 1, log_end_offset)

    def lead(self, epoch: int, start_offset: int) -> None:
        """This broker leads in `epoch`, and its first record will be at `start_offset`."""
        self._led = epoch
        self.assign(epoch, start_offset)

    def resign(self) -> None:
        """This broker leads in no epoch."""
        self._led = NO_EPOCH

    def cut(self, log_end_offset: int) -> None:
        """The log ends there now, with no append under way: epochs from there on go (KAFKA-10706):
        their leaders appended nothing before it."""
        self._end_at(log_end_offset, log_end_offset)

    def clear(self, log_end_offset: int) -> None:
        """The log has no record any more, nor any before it: all epochs go."""
        self._end_at(0, log_end_offset)

    def _end_at(self, offset: int, log_end_offset: int) -> None:
        """Remove epochs that start at `offset` or later, but for the one in which it leads."""
        self._before.clear()
        self.truncate_from_end(offset)
        if self._led > self.latest:
            self.assign(self._led, log_end_offset)

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

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that start at `end_offset` or later: they are read from the log."""
        kept = bisect_left(self._starts, end_offset)
        if kept < len(self._starts):
            del self._epochs[kept:]
            del self._starts[kept:]
            self.is_changed = True

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now starts at `start_offset`: remove older epochs; the one of that offset now
        starts there. The newest epoch is kept even if no record of it is left.
        """
        for _, before in self._before:
            before.truncate_from_start(start_offset)
        gone = bisect_right(self._starts, start_offset) - 1
        if gone > 0 or (gone == 0 and self._starts[0] != start_offset):
            del self._epochs[:gone]
            del self._starts[:gone]
            self._starts[0] = start_offset
            self.is_changed = True


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
