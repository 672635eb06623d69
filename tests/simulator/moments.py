"""Moments that only the code itself can see: the history is told of each.

Some are rare states, which are counted; some are checked; and at some the faults take aim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from kdist.broker.handlers import fetch
from kdist.broker.metadata_cache import MetadataCache
from kdist.broker.offsets_log import OffsetsLoader
from kdist.controller.writing import FencedWriter
from kdist.errors import ApiError, Error
from kdist.model import OFFSETS_TOPIC, LeaderAndIsr, TopicPartition
from kdist.protocol.fetch import FetchPartitionResult
from kdist.replication.delayed import DelayedProduce
from kdist.replication.fetcher import ReplicaFetcher
from kdist.replication.follower_session import FollowedPartition
from kdist.replication.in_sync import InSyncReplicas
from kdist.replication.partition import Partition
from kdist.storage import flushing, log
from kdist.storage.append import Append
from kdist.storage.background import OffsetSaver
from kdist.storage.directory import LogDirectory
from kdist.storage.flushing import FlushJob
from kdist.storage.log import Log
from kdist.storage.segment import Segment
from kdist.storage.swapping import Swap
from kdist.storage.trimming import Trimmer
from kdist.zk import znodes
from kdist.zk.client import Operation
from kdist.zk.errors import ConnectionLoss
from tests.simulator.aiming import Aiming
from tests.simulator.bug import Bug, patched


class Witness(Protocol):
    """Who is told."""

    aiming: Aiming

    def count(self, state: str, times: int = 1, /) -> None:
        """A rare state has come up, so many times."""
        ...

    def advanced(self, partition: Partition, before: int, /) -> None:
        """A high watermark has moved."""
        ...

    def changing_state(self, partition: Partition, state: LeaderAndIsr, /) -> None:
        """A broker is about to take another state of a partition."""
        ...

    def proposing(self, partition: Partition, isr: Sequence[int], /) -> None:
        """A leader is about to propose another ISR."""
        ...

    def truncating(self, partition: Partition, offset: int, /) -> None:
        """A follower is about to cut off its log."""
        ...

    def loading(self, partition: Partition, /) -> None:
        """A broker comes to lead a partition, whose groups it may have to load."""
        ...

    def swapping(self, log: Log, mapped_end: int, merged: int, /) -> None:
        """A cleaner is about to exchange so many segments for one."""
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
        Bug(Partition, "_propose", partial(_propose_isr, witness)),
        Bug(ReplicaFetcher, "_truncate", partial(_truncate, witness)),
        Bug(ReplicaFetcher, "_refused", partial(_refused, witness)),
        Bug(DelayedProduce, "attempt", partial(_attempt, witness)),
        Bug(Partition, "append", partial(_append, witness)),
        Bug(Partition, "append_coalesced", partial(_append, witness)),
        Bug(Trimmer, "truncate_fully", partial(_truncate_fully, witness)),
        Bug(Swap, "begin", partial(_begin_swap, witness)),
        Bug(MetadataCache, "is_fully_in_sync", partial(_is_fully_in_sync, witness)),
        Bug(fetch._NearFetch, "_take", partial(_take, witness)),
        *_aimed_at(witness),
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
        witness.changing_state(self, given[0])
        apply(self, *given)
        if was_pending:
            witness.count("LeaderAndIsr while a proposal was pending")
        if self.is_leader and self.is_behind_its_epoch:
            witness.count("high watermark below the epoch's start")
        witness.is_fragile(self._context.broker_id, "a change of role")
        witness.aiming.changing_role(self)

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
        witness.aiming.proposing(self.leader_id)

    return propose_witnessed


def _propose_isr(witness: Witness, propose: Callable[..., None]) -> Callable[..., None]:
    def propose_witnessed(self: Partition, isr: tuple[int, ...]) -> None:
        witness.proposing(self, isr)
        propose(self, isr)

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
        witness.aiming.appended(self)
        if found.duplicate is not None and found.end_offset > self.high_watermark:
            witness.count("duplicate of what is not committed")
        return found

    return append_witnessed


def _truncate_fully(witness: Witness, truncate: Callable[..., None]) -> Callable[..., None]:
    def truncate_witnessed(self: Trimmer, *given: Any) -> None:
        witness.count("follower begins anew")
        log = given[0]
        witness.aiming.renaming(log.context.files, log.directory, "a log's new beginning")
        truncate(self, *given)

    return truncate_witnessed


def _begin_swap(witness: Witness, begin: Callable[..., None]) -> Callable[..., None]:
    def begin_witnessed(self: Swap) -> None:
        log, merged = self._log, len(self._old)
        witness.swapping(log, self._mapped_end, merged)
        witness.aiming.renaming(log.context.files, log.directory, "a swap", 3 * merged + 6)
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


def _aimed_at(witness: Witness) -> tuple[Bug, ...]:
    """Moments at which single calls fail, messages meet, or somebody dies between two calls."""
    return (
        Bug(Log, "prepare_as_follower", partial(_prepare, witness)),
        Bug(Log, "defer", partial(_defer, witness)),
        Bug(Log, "abandon", partial(_abandon, witness)),
        Bug(Log, "begin_cut", partial(_begin_cut, witness)),
        Bug(Log, "retire", partial(_retire, witness)),
        Bug(Partition, "configure", partial(_configure, witness)),
        Bug(LogDirectory, "_retire", partial(_retire_log, witness)),
        Bug(OffsetSaver, "_start", partial(_save, witness)),
        Bug(flushing, "plan_flush", partial(_plan_flush, witness)),
        Bug(OffsetsLoader, "begin", partial(_begin_loading, witness)),
        Bug(FencedWriter, "_write_all", partial(_write_all, witness)),
        Bug(fetch._Fetch, "_read", partial(_read, witness)),
    )


def _configure(witness: Witness, configure: Callable[..., None]) -> Callable[..., None]:
    def configure_witnessed(self: Partition, *given: Any) -> None:
        was_first = self.log.is_flushed_first
        configure(self, *given)
        if self.log.has_mark_due:
            moment = "a change of a flush mark"
            witness.aiming.renaming(self.log.context.files, self.log.directory, moment)
        if self.log.is_flushed_first and not was_first:
            witness.aiming.flushing_first(self)

    return configure_witnessed


def _is_across_epochs(append: Append) -> bool:
    spans = append.spans
    return bool(spans) and spans[0][1].leader_epoch != spans[-1][1].leader_epoch


def _prepare(witness: Witness, prepare: Callable[..., Append]) -> Callable[..., Append]:
    def prepare_witnessed(self: Log, *given: Any) -> Append:
        append = prepare(self, *given)
        if _is_across_epochs(append):
            moment = "an append across epochs"
            witness.count(moment)
            witness.aiming.appending(self.context.files, append.segment, moment, 0.5)
        return append

    return prepare_witnessed


def _defer(witness: Witness, defer: Callable[..., Append]) -> Callable[..., Append]:
    def defer_witnessed(self: Log, append: Append) -> Append:
        if self.is_appending:
            moment = "an append behind another"
            witness.aiming.appending(self.context.files, append.segment, moment, 0.15)
        return defer(self, append)

    return defer_witnessed


def _abandon(witness: Witness, abandon: Callable[..., None]) -> Callable[..., None]:
    def abandon_witnessed(self: Log, append: Append) -> None:
        witness.count("append across epochs failed", _is_across_epochs(append))
        is_followed = append in self._under_way and append is not self._under_way[-1]
        witness.count("several appends failed at once", is_followed)
        abandon(self, append)

    return abandon_witnessed


def _begin_cut(witness: Witness, begin: Callable[..., None]) -> Callable[..., None]:
    def begin_witnessed(self: Log, number: int) -> None:
        dropped = len(self.segments) - number - 1
        witness.aiming.truncating_files(self.context.files, self.directory, dropped)
        begin(self, number)

    return begin_witnessed


def _retire(witness: Witness, retire: Callable[..., None]) -> Callable[..., None]:
    def retire_witnessed(self: Log, segments: Sequence[Segment]) -> None:
        if segments:
            calls = 3 * len(segments)
            witness.aiming.renaming(self.context.files, self.directory, "retention", calls)
        retire(self, segments)

    return retire_witnessed


def _retire_log(witness: Witness, retire: Callable[..., None]) -> Callable[..., None]:
    def retire_witnessed(self: LogDirectory, *given: Any, **named: Any) -> None:
        witness.aiming.deleting(self.files)
        retire(self, *given, **named)

    return retire_witnessed


def _save(witness: Witness, start: Callable[..., None]) -> Callable[..., None]:
    def start_witnessed(self: OffsetSaver) -> None:
        witness.aiming.saving(self._context.files)
        start(self)

    return start_witnessed


def _plan_flush(witness: Witness, plan: Callable[..., Any]) -> Callable[..., Any]:
    def plan_witnessed(files: object, path: str, jobs: Sequence[FlushJob]) -> Any:
        witness.aiming.flushing(jobs)
        return plan(files, path, jobs)

    return plan_witnessed


def _begin_loading(witness: Witness, begin: Callable[..., None]) -> Callable[..., None]:
    def begin_witnessed(self: OffsetsLoader, partition: Partition) -> None:
        is_cut = partition.log.is_truncating and partition.key.partition not in self._led
        is_loaded = partition.key.topic == OFFSETS_TOPIC
        if partition.key.partition not in self._led:
            witness.loading(partition)
        witness.count("coordinator loads while its log is truncated", is_cut and is_loaded)
        begin(self, partition)

    return begin_witnessed


def _write_all(witness: Witness, write: Callable[..., Any]) -> Callable[..., Any]:
    async def write_witnessed(self: FencedWriter, multis: Iterable[Sequence[Operation]]) -> None:
        given = list(multis)
        try:
            await write(self, given)
        except (ConnectionLoss, asyncio.CancelledError):  # a lost connection ends the term
            paths = (each.path for multi in given for each in multi)
            if any(znodes.PARTITION_STATE.names(path) for path in paths):
                witness.count("a term ended while it wrote states")
            raise

    return write_witnessed


def _read(witness: Witness, read: Callable[..., Any]) -> Callable[..., Any]:
    def read_witnessed(self: Any, cached: Any) -> Any:
        partition, result = read(self, cached)
        is_diverging = isinstance(result, FetchPartitionResult) and result.diverging_epoch
        if is_diverging and self._follower_id >= 0:
            witness.aiming.diverging(partition._context.broker_id, self._follower_id)
        return partition, result

    return read_witnessed
