"""One partition that is read: its reader's position, and what is fetched and not yet given.

    position ......... what was given .......... | ready ............ | fetch_position

`Shelf` holds what all partitions have ready, and gives it out, partition by partition. It is filled
by the loop and emptied by whoever asks for records, which in the blocking front is another thread,
without a lock: each counter here has one writer, and deques do the rest. All other changes (seeks,
assignments) are made by the loop while whoever asks for records waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sized
from typing import Any

from kdist.client.consumer.batch import Batch, ConsumedRecord, CorruptFetch, NotDecoded
from kdist.client.consumer.batch_run import BatchRun
from kdist.client.consumer.opening import Ready
from kdist.errors import ApiError
from kdist.model import NO_EPOCH, NO_OFFSET, TopicPartition

_NEVER = float("-inf")


class Partition:
    """What is known of one. `position` is None until it is found out where to begin."""

    def __init__(self, key: TopicPartition) -> None:
        self.key = key
        self.position: int | None = None
        self.position_epoch = NO_EPOCH  # of the record before it, so far as that is known
        self.reset_to: str | None = None  # where a position is to be looked up; None: committed
        self.is_paused = False
        self.is_revoked = False  # being given back: nothing more of it is given
        self.fetch_position = NO_OFFSET
        self.fetch_epoch = NO_EPOCH
        self.reset_offset = NO_OFFSET  # where it was reset to, by the broker's own word
        self.checked_epoch = NO_EPOCH  # the leader's, when the log was last what we have read
        self.ready: deque[Ready] = deque()
        self.is_shelved = False
        self.is_faulty = False  # what is ready ends with what is wrong with the next
        self.received_bytes = 0  # written by the loop
        self.given_bytes = 0  # written by who takes
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.preferred_replica: int | None = None  # KIP-392
        self.retry_at_s = _NEVER
        self.starved_above_bytes = 0  # it is fetched again once less is ready
        # The first batch's values as `take_records` decoded them, and the next of them to give.
        # Records are made when they are given: ten thousand at once, which live for long, cost the
        # garbage collector 100 ns each.
        self.decoded: list[Any] = []
        self.decoded_index = 0

    def seek(self, offset: int, epoch: int = NO_EPOCH) -> None:
        """Go on from `offset`; what was fetched is dropped, and what is being fetched will be."""
        self.position = self.fetch_position = offset
        self.position_epoch = self.fetch_epoch = epoch
        self.reset_offset = NO_OFFSET
        self.checked_epoch = NO_EPOCH
        self.reset_to = None
        self.retry_at_s = _NEVER
        self.drop_ready()

    def reset(self, to: str) -> None:
        """Go on from a place that is to be looked up: `earliest` or `latest`."""
        self.position = None
        self.fetch_position = NO_OFFSET
        self.reset_to = to
        self.drop_ready()

    def drop_ready(self) -> None:
        """Forget what was fetched and not given."""
        self.ready.clear()
        self.is_faulty = False
        self.decoded = []
        self.given_bytes = self.received_bytes

    @property
    def ready_bytes(self) -> int:
        """How much was fetched and not given."""
        return self.received_bytes - self.given_bytes

    @property
    def may_be_fetched(self) -> bool:
        """Whether there is a position to fetch from, and a wish for what is there."""
        return self.position is not None and self.may_give and not self.is_faulty

    @property
    def may_give(self) -> bool:
        """Whether its records are wanted now."""
        return not self.is_paused and not self.is_revoked

    def take_batches(self, count: int) -> list[Batch]:
        """Up to `count` batches; raises what is wrong with the next, if it is the first."""
        taken: list[Batch] = []
        while self.ready and len(taken) < count:
            next_ready = self.ready[0]
            batch = next_ready.batch
            if next_ready.error is not None:
                if taken:
                    break
                raise next_ready.error  # again and again, until someone seeks past it
            if isinstance(batch, BatchRun):
                several = batch.batches(self._start_of(batch))
                if len(several) > count - len(taken):
                    self._part(next_ready, several)
                    continue
                taken += several
            elif batch is not None:
                start = self._start_of(batch)
                taken.append(batch if start == batch.start else batch.part(start, batch.end))
            self.ready.popleft()
            self._pass(next_ready)
        return taken

    def _start_of(self, batch: Batch) -> int:
        """Where what was not given begins, of the batch that is next."""
        if not self.decoded:
            return batch.start
        assert self.position is not None
        return self.position

    def take_records(self, count: int) -> list[ConsumedRecord]:
        """Up to `count` records of the next batch; none if there is none."""
        while self.ready:
            next_ready = self.ready[0]
            if next_ready.error is not None:
                raise next_ready.error
            if next_ready.batch is not None:
                return self._take_decoded(next_ready, next_ready.batch, count)
            self._pass(self.ready.popleft())
        return []

    def _take_decoded(self, ready: Ready, batch: Batch, count: int) -> list[ConsumedRecord]:
        if not self.decoded:
            self.decoded_index = 0  # first: where it is interrupted, no other batch's is left
            try:
                self.decoded = batch.checked_values()
            except (NotDecoded, CorruptFetch) as refused:
                if isinstance(batch, BatchRun):
                    self._part(ready, batch.batches(batch.start))
                    return self.take_records(count)
                if refused.offset == batch.start:
                    raise
                self._split(ready, batch, refused.offset)  # what is before it can be given
                return self.take_records(count)
        start = self.decoded_index
        end = start + count
        is_whole = not start and end >= len(self.decoded)
        taken = batch.records_of(self.decoded if is_whole else self.decoded[start:end], start)
        if end >= len(self.decoded):
            self.ready.popleft()
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
        """Have the batches that a run is of, so far as they were not given, be ready themselves."""
        parts = [Ready(each.end, ready.leader_epoch, each.header.size, each) for each in several]
        self.given_bytes += ready.size_bytes - sum(each.size_bytes for each in parts)
        self.decoded = []
        self.ready[0] = parts.pop()  # so it is never empty
        self.ready.extendleft(reversed(parts))

    def _pass(self, ready: Ready) -> None:
        self.decoded = []
        self.given_bytes += ready.size_bytes
        self.position = ready.next_offset
        self.position_epoch = ready.leader_epoch


class Shelf:
    """The partitions that have something ready, those first that had it first."""

    def __init__(self) -> None:
        self._partitions: deque[Partition] = deque()
        self.is_hungry = False  # whether there is room for more, where there was none
        self.begun: dict[Partition, int | None] = {}  # positions before what was taken last

    def put(self, partition: Partition, found: Iterable[Ready]) -> None:
        """Called by the loop: `found` is ready, behind what was."""
        for ready in found:
            partition.received_bytes += ready.size_bytes
            partition.fetch_position = ready.next_offset
            if ready.leader_epoch != NO_EPOCH:
                partition.fetch_epoch = ready.leader_epoch
            partition.is_faulty = ready.error is not None
            partition.ready.append(ready)
        self.offer(partition)

    def offer(self, partition: Partition) -> None:
        """Have it in the row if it has something to give; also after it was paused."""
        if partition.ready and not partition.is_shelved:
            partition.is_shelved = True
            self._partitions.append(partition)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to give, for now."""
        return not any(each.ready and each.may_give for each in list(self._partitions))

    def take_batches(self, count: int) -> list[Batch]:
        """Up to `count` batches."""
        taken: list[Batch] = []

        def take(partition: Partition) -> bool:
            taken.extend(partition.take_batches(count - len(taken)))
            return len(taken) < count

        self._take_each(take, taken)
        return taken

    def take_records(self, count: int) -> list[ConsumedRecord]:
        """Up to `count` records."""
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
            records = partition.take_records(count)
            if records:
                found.append((partition, records))
            return not found

        self._take_each(take, found)
        return found[0] if found else (None, [])

    def take_back(self) -> None:
        """On the loop: what was being taken did not come to who asked, and is fetched again."""
        for partition, position in self.begun.items():
            if position is not None and not partition.is_revoked:
                partition.seek(position)

    def _take_each(self, take: Callable[[Partition], bool], taken: Sized) -> None:
        """Call `take` with the first in the row until it wants no more, or there is no more.

        Where it stopped goes to the end of the row, so that each has its turn. What it raises is
        raised, unless something was taken: then it will be the next time.
        """
        row = self._partitions
        begun = self.begun = {}
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
                partition.is_shelved = False  # first: interrupted here, it is only there twice
                row.popleft()
                if partition.may_give:
                    self.offer(partition)  # the loop may have put something there meanwhile
