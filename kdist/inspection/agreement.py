"""Whether a log's batches agree with its leader epochs and producer snapshots (pure).

Each class is given a log's batches in order and returns the contradictions.
"""

from __future__ import annotations

from collections.abc import Mapping

from kdist.model import NO_EPOCH
from kdist.records.batch import BatchHeader
from kdist.storage.epochs import LeaderEpochs
from kdist.storage.producers import ProducerStates


class EpochAgreement:
    """Checks that leader epochs never decrease, and match the checkpoint."""

    def __init__(self, epochs: LeaderEpochs | None) -> None:
        """`epochs`: the checkpoint's, None if there is none to compare with."""
        self._epochs = epochs if epochs is not None and epochs.entries else None
        self._last = NO_EPOCH

    @property
    def has_seen_epochs(self) -> bool:
        """Whether a batch had an epoch, so that there should be a checkpoint."""
        return self._last != NO_EPOCH

    def fault(self, header: BatchHeader) -> str | None:
        """Why the next batch's epoch cannot be right, after those before it."""
        epoch = header.partition_leader_epoch
        if epoch < NO_EPOCH:
            return f"leader epoch {epoch} is invalid"
        if epoch < self._last:
            last, self._last = self._last, epoch
            return f"leader epoch {epoch} follows {last}"
        self._last = epoch
        return None

    def disagreement(self, header: BatchHeader) -> str | None:
        """How the checkpoint contradicts the batch."""
        if self._epochs is None:
            return None
        saved = self._epochs.epoch_of(header.base_offset)
        if saved in (NO_EPOCH, header.partition_leader_epoch):
            return None
        return (
            f"leader epoch {header.partition_leader_epoch} at offset {header.base_offset},"
            f" where leader-epoch-checkpoint has {saved}"
        )


class SnapshotAgreement:
    """Checks that each producer's newest sequence and offset match the snapshots.

    Only producers in both the log and the snapshot are compared: a snapshot may have older ones,
    whose batches retention has removed, and lack expired ones.
    """

    def __init__(self, snapshots: Mapping[int, ProducerStates]) -> None:
        """The snapshots by their offsets."""
        self._snapshots = snapshots
        self._pending = sorted(snapshots, reverse=True)
        self._newest: dict[int, tuple[int, int, int]] = {}

    def take(self, header: BatchHeader) -> list[tuple[int, str]]:
        """Take the next batch; return the contradicting snapshots up to its base offset."""
        found = self.pass_to(header.base_offset) if self._pending else []
        if header.producer_id >= 0 and not header.is_control:
            self._newest[header.producer_id] = (
                header.producer_epoch,
                header.last_sequence,
                header.last_offset,
            )
        return found

    @property
    def beyond(self) -> list[int]:
        """The snapshots beyond all batches so far."""
        return self._pending[::-1]

    def pass_to(self, offset: int) -> list[tuple[int, str]]:
        """Check the snapshots up to `offset`: all batches below it have been taken."""
        found = []
        while self._pending and self._pending[-1] <= offset:
            at = self._pending.pop()
            if fault := self._compare(at, self._snapshots[at]):
                found.append((at, fault))
        return found

    def _compare(self, offset: int, states: ProducerStates) -> str | None:
        for producer_id, producer in states.producers.items():
            if not producer.batches:
                continue
            last = producer.batches[-1].last_offset
            if last >= offset:
                return (
                    f"producer {producer_id} has a batch up to offset {last}, beyond the snapshot"
                )
            newest = self._newest.get(producer_id)
            if newest is None or newest[0] != producer.epoch:
                continue
            if newest[1:] != (producer.last_sequence, last):
                return (
                    f"producer {producer_id} is at sequence {producer.last_sequence} and offset"
                    f" {last}, but in the log at {newest[1]} and {newest[2]}"
                )
        return None
