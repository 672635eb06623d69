"""The state of one partition that is read, and the completed fetches of all.

    ... returned to the application ... position | ready ............ | fetch_position

`CompletedFetches` holds what is ready of all partitions, and returns it partition by partition. The
loop fills it and the consuming thread, another one in the blocking front, empties it. They need no
lock: each counter here has a single writer, and deques are thread-safe. All other changes (seeks,
assignments) are made on the loop, while the consuming thread waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

from kdist.client.committed import Offsets
from kdist.client.consumer.batch import Batch, BatchRun, ConsumedRecord, CorruptFetch, NotDecoded
from kdist.client.consumer.opening import Ready
from kdist.errors import ApiError
from kdist.metrics.clients import ConsumerTopicMetrics
from kdist.model import NO_EPOCH, NO_OFFSET, TopicPartition

_NEVER = float("-inf")


class Partition:
    """The state of one partition. `position` is None until the offset to start at is known."""

    def __init__(self, key: TopicPartition, consumed: ConsumerTopicMetrics | None = None) -> None:
        self.key = key
        self._consumed = consumed or ConsumerTopicMetrics()  # counted by the consuming thread
        self.position: int | None = None
        self.position_epoch = NO_EPOCH  # the leader epoch of the record before it, if known
        self.reset_to: str | None = None  # which position to look up; None: the committed offset
        self.is_paused = False
        self.is_revoked = False  # being revoked: no more of its records are returned
        self.is_told = False  # the listener has heard, or is hearing, that it is revoked
        self.is_former = False  # the position is of a former topic of that name
        self.is_new = False  # the listener is yet to hear of it: none of its records is returned
        self.is_lent = False  # iteration has records of it, and may not have yielded all
        self.fetch_position = NO_OFFSET
        self.fetch_epoch = NO_EPOCH
        self.reset_offset = NO_OFFSET  # the offset that a broker gave for the last reset
        self.checked_epoch = NO_EPOCH  # the leader epoch last checked for truncation
        self.ready: deque[Ready] = deque()
        self.is_queued = False
        self.is_faulty = False  # `ready` ends with an error
        self.received_bytes = 0  # written by the loop
        self.given_bytes = 0  # written by the consuming thread
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.preferred_replica: int | None = None  # to read from, as the leader said (KIP-392)
        self.preferred_until_s = _NEVER  # then the leader is asked again
        self.retry_at_s = _NEVER
        self.failures = 0  # fetches put off in a row
        self.starved_above_bytes = 0  # it is fetched again once fewer bytes are ready
        # The first batch's values as `take_records` decoded them, and the index of the next one to
        # return. Records are created when they are returned: ten thousand at once, which live for
        # long, cost the garbage collector 100 ns each.
        self.decoded: list[Any] = []
        self.decoded_index = 0

    def seek(self, offset: int, epoch: int = NO_EPOCH) -> None:
        """Continue from `offset`; drops what was fetched, and the answer to a fetch in flight."""
        self.position = self.fetch_position = offset
        self.position_epoch = self.fetch_epoch = epoch
        self.reset_offset = NO_OFFSET
        self.checked_epoch = NO_EPOCH
        self.reset_to = None
        self.retry_at_s = _NEVER
        self.is_former = False
        self.drop_ready()

    def reset(self, to: str) -> None:
        """Continue from a position that is yet to be looked up: `earliest` or `latest`."""
        self.position = None
        self.fetch_position = NO_OFFSET
        self.reset_to = to
        self.is_former = False
        self.drop_ready()

    def give_back(self, rest: Sequence[ConsumedRecord]) -> None:
        """Have the last records that were taken returned again, without another fetch."""
        batch = rest[0].batch
        assert isinstance(batch, Batch)
        self.position, epoch = rest[0].offset, rest[0].leader_epoch
        if self.ready and self.ready[0].batch is batch:
            self.decoded_index -= len(rest)
            return
        if isinstance(batch, BatchRun):
            parts = batch.batches(self.position)
        else:
            parts = [batch.part(self.position, batch.end)]
        again = [Ready(each.end, epoch, each.header.size, each) for each in parts]
        self.given_bytes -= sum(each.size_bytes for each in again)
        self.ready.extendleft(reversed(again))

    def drop_ready(self) -> None:
        self.is_lent = False  # also if whoever took a run was interrupted before it began
        self.ready.clear()
        self.is_faulty = False
        self.decoded = []
        self.given_bytes = self.received_bytes

    @property
    def ready_bytes(self) -> int:
        """How many bytes were fetched and not yet returned."""
        return self.received_bytes - self.given_bytes

    @property
    def may_be_fetched(self) -> bool:
        """Whether it has a position, its records are wanted, and no error is ready."""
        return self.may_give and not (self.is_missing or self.is_faulty or self.is_former)

    @property
    def has_ready(self) -> bool:
        """Whether records before `fetch_position` are to be returned yet, so it must not change."""
        return bool(self.ready) or self.is_lent

    @property
    def is_missing(self) -> bool:
        """Whether the position is yet to be looked up.

        Also if it is set: a consuming thread that had begun to pass a batch when the loop called
        `reset` sets it once more, to what the reset has replaced.
        """
        return self.position is None or self.reset_to is not None

    @property
    def may_give(self) -> bool:
        """Whether its records may be returned now: it is neither paused, nor new or revoked."""
        return not (self.is_paused or self.is_revoked or self.is_new)

    def take_batches(self, count: int) -> list[Batch]:
        """Up to `count` batches; raises the next item's error if there is nothing before it."""
        taken: list[Batch] = []
        while self.ready and len(taken) < count:
            next_ready = self.ready[0]
            batch = next_ready.batch
            if next_ready.error is not None:
                if taken:
                    break
                raise next_ready.error  # on every call, until the application seeks past it
            if isinstance(batch, BatchRun):
                several = batch.batches(self._start_of(batch))
                if len(several) > count - len(taken):
                    self._part(next_ready, several)
                    continue
                taken += several
            elif batch is not None:
                start = self._start_of(batch)
                taken.append(batch if start == batch.start else batch.part(start, batch.end))
            self._pass(next_ready)
        return taken

    def _start_of(self, batch: Batch) -> int:
        """The offset of the next batch's first record that was not returned yet."""
        if not self.decoded:
            return batch.start
        assert self.position is not None
        return self.position

    def take_records(self, count: int) -> list[ConsumedRecord]:
        """Up to `count` records of the next batch; an empty list if there is none."""
        while self.ready:
            next_ready = self.ready[0]
            if next_ready.error is not None:
                raise next_ready.error
            if next_ready.batch is not None:
                return self._take_decoded(next_ready, next_ready.batch, count)
            self._pass(next_ready)
        return []

    def _take_decoded(self, ready: Ready, batch: Batch, count: int) -> list[ConsumedRecord]:
        if not self.decoded:
            self.decoded_index = 0  # first, so that an interruption leaves no stale index
            try:
                self.decoded = batch.checked_values()
            except (NotDecoded, CorruptFetch) as refused:
                if isinstance(batch, BatchRun):
                    self._part(ready, batch.batches(batch.start))
                    return self.take_records(count)
                if refused.offset == batch.start:
                    raise
                self._split(ready, batch, refused.offset)  # return the records before it first
                return self.take_records(count)
        start = self.decoded_index
        end = start + count
        is_whole = not start and end >= len(self.decoded)
        taken = batch.records_of(self.decoded if is_whole else self.decoded[start:end], start)
        if end >= len(self.decoded):
            self._pass(ready)
        else:
            self.decoded_index = end
            self.position = batch.offset_at(end)
            self.position_epoch = ready.leader_epoch
        return taken

    def _split(self, ready: Ready, batch: Batch, offset: int) -> None:
        head = ready._replace(
            batch=batch.part(batch.start, offset), next_offset=offset, size_bytes=0
        )
        self.ready[0] = ready._replace(batch=batch.part(offset, batch.end))
        self.ready.appendleft(head)

    def _part(self, ready: Ready, several: list[Batch]) -> None:
        """Replace a run at the front of `ready` by its batches that were not returned yet."""
        parts = [Ready(each.end, ready.leader_epoch, each.header.size, each) for each in several]
        self.given_bytes += ready.size_bytes - sum(each.size_bytes for each in parts)
        self.decoded = []
        self.ready[0] = parts.pop()  # so it is never empty
        self.ready.extendleft(reversed(parts))

    def _pass(self, ready: Ready) -> None:
        """Move the position past the first of `ready`, which is removed last: while there is
        anything ready, the loop resets no position.
        """
        if ready.batch is not None:
            self._consumed.records_consumed += len(self.decoded) or ready.batch.header.record_count
            self._consumed.bytes_consumed += ready.size_bytes
        self.decoded = []
        self.given_bytes += ready.size_bytes
        self.position = ready.next_offset
        self.position_epoch = ready.leader_epoch
        self.ready.popleft()


class CompletedFetches:
    """The partitions that have something ready, in the order in which they take turns."""

    def __init__(self) -> None:
        self._partitions: deque[Partition] = deque()
        self.is_hungry = False  # a partition that was full enough has room for another fetch
        self.begun: dict[Partition, int | None] = {}  # positions before the last take
        self._done: dict[TopicPartition, int] = {}  # what of that take was committed by hand

    def put(self, partition: Partition, found: Iterable[Ready]) -> None:
        """On the loop: append what was fetched of a partition."""
        for ready in found:
            partition.received_bytes += ready.size_bytes
            partition.fetch_position = ready.next_offset
            if ready.leader_epoch != NO_EPOCH:
                partition.fetch_epoch = ready.leader_epoch
            partition.is_faulty = ready.error is not None
            partition.ready.append(ready)
        self.offer(partition)

    def offer(self, partition: Partition) -> None:
        """Put the partition in the queue if it has anything ready; also when it is resumed."""
        if partition.ready and not partition.is_queued:
            partition.is_queued = True
            self._partitions.append(partition)

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be returned now."""
        return not any(each.ready and each.may_give for each in list(self._partitions))

    def take_batches(self, count: int) -> list[Batch]:
        taken: list[Batch] = []

        def take(partition: Partition) -> bool:
            taken.extend(partition.take_batches(count - len(taken)))
            return len(taken) < count

        self._take_each(take, taken)
        return taken

    def take_records(self, count: int) -> list[ConsumedRecord]:
        taken: list[ConsumedRecord] = []

        def take(partition: Partition) -> bool:
            taken.extend(partition.take_records(count - len(taken)))
            return len(taken) < count

        self._take_each(take, taken)
        return taken

    def take_run(self, count: int) -> tuple[Partition | None, list[ConsumedRecord]]:
        """Up to `count` records of one batch, and their partition: for iteration."""
        found: list[tuple[Partition, list[ConsumedRecord]]] = []

        def take(partition: Partition) -> bool:
            partition.is_lent = True  # first: while it is ready or lent, no position is reset
            try:
                records = partition.take_records(count)
                if records:
                    found.append((partition, records))
            finally:
                partition.is_lent = bool(found)
            return not found

        self._take_each(take, found)
        return found[0] if found else (None, [])

    def take_back(self) -> None:
        """On the loop, after an interrupted take: fetch again what did not reach the caller."""
        for partition, position in self.begun.items():
            if position is not None and not partition.is_revoked:
                partition.seek(position)

    def go_on(self, partition: Partition) -> None:
        """Count as a take that more of what was taken of this partition is returned."""
        self.begun, self._done = {partition: None}, {}

    def note_done(self, offsets: Offsets) -> None:
        """The application has committed these offsets: that much is done."""
        self._done = self._done | {key: each.offset for key, each in offsets.items()}

    def step_back(self, last: Mapping[Partition, int]) -> None:
        """Move positions back to before the last take, which the application has not finished.

        But not before what it committed. `last` has closer positions, where records are iterated.
        """
        for partition, before in {**self.begun, **last}.items():
            if before is not None and partition.position is not None:
                position = max(before, self._done.get(partition.key, 0))
                if position < partition.position:
                    partition.position, partition.position_epoch = position, NO_EPOCH

    def _take_each(self, take: Callable[[Partition], bool], taken: Sized) -> None:
        """Call `take` with the first partition in the queue until it is satisfied, or all is taken.

        The partition it stopped at goes to the end of the queue, so that each has its turn. An
        error is raised now if nothing was taken, else by the next call.
        """
        row = self._partitions
        begun = self.begun = {}
        self._done = {}
        while row:
            partition = row[0]
            if partition.ready and partition.may_give:
                begun.setdefault(partition, partition.position)
                try:
                    wants_more = take(partition)
                    if partition.ready_bytes < partition.starved_above_bytes:
                        self.is_hungry = True
                except ApiError:
                    if not taken:
                        raise
                    wants_more = False
                if not wants_more:
                    row.rotate(-1)
                    return
            else:
                # First: an interruption here leaves it queued twice, which does no harm.
                partition.is_queued = False
                row.popleft()
                if partition.may_give:
                    self.offer(partition)  # in case the loop has added something meanwhile
