"""Moments that only the code itself can see: the history is told of each.

Some are rare states, which are counted; some are checked; and at some the faults take aim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from kdist.broker.handlers import fetch
from kdist.broker.metadata_cache import MetadataCache
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.protocol.fetch import FetchPartitionResult
from kdist.replication.delayed_produce import DelayedProduce
from kdist.replication.fetching.fetcher import ReplicaFetcher
from kdist.replication.fetching.followed import FollowedPartition
from kdist.replication.in_sync import InSyncReplicas
from kdist.replication.partition import Partition
from kdist.storage import log
from kdist.storage.append import Append
from kdist.storage.cleaning.swap import Swap
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log
from kdist.storage.segment import Segment
from tests.simulator.bug import Bug, patched


class Witness(Protocol):
    """Who is told."""

    def count(self, state: str, /) -> None:
        """A rare state has come up."""
        ...

    def advanced(self, partition: Partition, before: int, /) -> None:
        """A high watermark has moved."""
        ...

    def truncating(self, partition: Partition, offset: int, /) -> None:
        """A follower is about to cut off its log."""
        ...

    def swapping(self, log: Log, mapped_end: int, /) -> None:
        """A cleaner is about to exchange segments."""
        ...

    def believed_in_sync(self, key: TopicPartition, /) -> None:
        """A broker takes all replicas for in sync."""
        ...

    def is_fragile(self, broker_id: int, moment: str, /) -> None:
        """A fault at this broker would be well aimed."""
        ...


@contextmanager
def witnessed(witness: Witness) -> Iterator[None]:
    """Within the block the witness is told of each moment."""
    observed = (
        Bug(Append, "of_duplicate", partial(_of_duplicate, witness)),
        Bug(log, "undo", partial(_undo, witness)),
        Bug(Partition, "advance_high_watermark", partial(_advance, witness)),
        Bug(Partition, "note_truncation", partial(_note_truncation, witness)),
        Bug(Partition, "lead_or_follow", partial(_lead_or_follow, witness)),
        Bug(Partition, "_judge", partial(_judge, witness)),
        Bug(InSyncReplicas, "propose", partial(_propose, witness)),
        Bug(ReplicaFetcher, "_truncate", partial(_truncate, witness)),
        Bug(ReplicaFetcher, "_refused", partial(_refused, witness)),
        Bug(DelayedProduce, "attempt", partial(_attempt, witness)),
        Bug(Partition, "append", partial(_append, witness)),
        Bug(Partition, "append_coalesced", partial(_append, witness)),
        Bug(LogDirectory, "begin_anew", partial(_begin_anew, witness)),
        Bug(Swap, "begin", partial(_begin_swap, witness)),
        Bug(MetadataCache, "is_fully_in_sync", partial(_is_fully_in_sync, witness)),
        Bug(fetch._NearFetch, "_take", partial(_take, witness)),
    )
    with patched(*observed):
        yield


def _of_duplicate(witness: Witness, of_duplicate: Any) -> Any:
    def find(*given: Any) -> Any:
        witness.count("retry was a duplicate")
        return of_duplicate(*given)

    return staticmethod(find)


def _undo(witness: Witness, undo: Callable[..., None]) -> Callable[..., None]:
    def undo_witnessed(segment: Segment) -> None:
        file = segment._file
        if file is not None and file.size() > segment.size:
            witness.count("write in part")
        undo(segment)

    return undo_witnessed


def _advance(witness: Witness, advance: Callable[..., None]) -> Callable[..., None]:
    def advance_high_watermark(self: Partition) -> None:
        before = self.high_watermark
        advance(self)
        if self.high_watermark != before:
            witness.advanced(self, before)
        elif self.in_sync is not None and self.is_under_min_isr:
            witness.count("under min ISR")

    return advance_high_watermark


def _note_truncation(witness: Witness, note: Callable[..., None]) -> Callable[..., None]:
    def note_truncation(self: Partition, offset: int) -> None:
        witness.truncating(self, offset)
        note(self, offset)
        witness.is_fragile(self._context.broker_id, "a truncation")

    return note_truncation


def _lead_or_follow(witness: Witness, apply: Callable[..., None]) -> Callable[..., None]:
    def lead_or_follow(self: Partition, *given: Any) -> None:
        was_pending = self._proposal is not None and not self._proposal.done()
        apply(self, *given)
        if was_pending:
            witness.count("LeaderAndIsr while a proposal was pending")
        if self.is_leader and self.is_behind_its_epoch:
            witness.count("high watermark below the epoch's start")
        witness.is_fragile(self._context.broker_id, "a change of role")

    return lead_or_follow


def _judge(witness: Witness, judge: Callable[..., None]) -> Callable[..., None]:
    def judge_witnessed(self: Partition, answer: Any) -> None:
        error = None if answer.cancelled() else answer.exception()
        if error is not None:
            name = error.error.name if isinstance(error, ApiError) else repr(error)
            witness.count(f"proposal refused: {name}")
        judge(self, answer)

    return judge_witnessed


def _propose(witness: Witness, propose: Callable[..., None]) -> Callable[..., None]:
    def propose_witnessed(self: InSyncReplicas, isr: tuple[int, ...]) -> None:
        propose(self, isr)
        witness.count("ISR shrink proposed" if len(isr) < len(self.isr) else "ISR expand proposed")
        witness.is_fragile(self.leader_id, "a proposal")

    return propose_witnessed


def _truncate(witness: Witness, truncate: Callable[..., None]) -> Callable[..., None]:
    def truncate_witnessed(self: ReplicaFetcher, each: FollowedPartition, *given: Any) -> None:
        end = each.partition.log.end_offset
        witness.count("diverging epoch" if end else "diverging epoch, log empty")
        truncate(self, each, *given)

    return truncate_witnessed


def _refused(witness: Witness, refused: Callable[..., None]) -> Callable[..., None]:
    def refused_witnessed(self: ReplicaFetcher, each: FollowedPartition, error: Error) -> None:
        witness.count(f"follower was refused: {error.name}")
        refused(self, each, error)

    return refused_witnessed


def _append(witness: Witness, append: Callable[..., Append]) -> Callable[..., Append]:
    def append_witnessed(self: Partition, *given: Any) -> Append:
        found = append(self, *given)
        if found.duplicate is not None and found.end_offset > self.high_watermark:
            witness.count("duplicate of what is not committed")
        return found

    return append_witnessed


def _begin_anew(witness: Witness, begin: Callable[..., None]) -> Callable[..., None]:
    def begin_witnessed(self: LogDirectory, *given: Any) -> None:
        witness.count("follower begins anew")
        begin(self, *given)

    return begin_witnessed


def _begin_swap(witness: Witness, begin: Callable[..., None]) -> Callable[..., None]:
    def begin_witnessed(self: Swap) -> None:
        witness.swapping(self._log, self._mapped_end)
        begin(self)

    return begin_witnessed


def _is_fully_in_sync(witness: Witness, ask: Callable[..., bool]) -> Callable[..., bool]:
    def is_fully_in_sync(self: MetadataCache, partition: TopicPartition) -> bool:
        is_so = ask(self, partition)
        if is_so:
            witness.believed_in_sync(partition)
        return is_so

    return is_fully_in_sync


def _take(witness: Witness, take: Callable[..., Any]) -> Callable[..., Any]:
    def take_witnessed(self: Any, partition: Partition, asked: Any) -> Any:
        try:
            found = take(self, partition, asked)
        except ApiError as error:
            witness.count(f"follower is read from: {error.error.name}")
            raise
        if isinstance(found, FetchPartitionResult):
            witness.count("consumer sent to a follower")
        elif found is not None and not partition.is_leader:
            witness.count("read from a follower")
        return found

    return take_witnessed


def _attempt(witness: Witness, attempt: Callable[..., bool]) -> Callable[..., bool]:
    def attempt_witnessed(self: DelayedProduce) -> bool:
        done = self.done

        def note(error: Error) -> None:
            if error is not Error.NONE:
                witness.count(f"acks=all answered late with {error.name}")
            done(error)

        self.done = note
        try:
            return attempt(self)
        finally:
            self.done = done

    return attempt_witnessed
