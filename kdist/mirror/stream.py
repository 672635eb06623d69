"""Mirrors one partition: sends the source's batches to the target, in order, each exactly once.

    FINDING -- the target's log gives the position --> FLOWING -- anything fails --> FINDING
    FINDING, FLOWING -- records are gone, or are refused for good --> STOPPED

Every doubt (a lost answer, a new leader, a sequence that does not follow, a restart) ends the same
way: drop what is in flight, find the position in the target's log, read on from it.

While a broker may not know the producer id it accepts whatever sequence comes first, so then only
one batch is in flight: for the first of a run, the first after a doubt, and the first after a
silence, in which the id may have been forgotten. After a long silence, in which this process may
have been frozen, the target's log is first checked for batches of another mirror. A batch appended
at an offset that the log had already reached stops the stream: the topic has been recreated.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from kdist.client.cluster import NoBroker
from kdist.client.consumer.batch import Batch, CorruptFetch
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import ApiError, CorruptRecords, Error, KdistError, UserError
from kdist.metrics.mirror import FlowMetrics
from kdist.mirror.position_lookup import check_end, copy_recreated, look_up_position, note_of
from kdist.mirror.position_marker import Run, read_run, run_for
from kdist.mirror.rewritten_batch import RewrittenBatch
from kdist.mirror.target import Target, result_of
from kdist.mirror.trouble import FROM_TARGET, Loss, Trouble, lost_since, may_pass
from kdist.model import NO_EPOCH, TopicPartition
from kdist.runtime.tasks import raise_bug

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 5  # a broker remembers that many batches of a producer
_PAUSE_S = 0.2
_PAUSE_S_MAX = 5.0
_SILENCE_S = 1.0  # brokers may forget an idle producer at any time if its records are old
_PROOF_S = 60.0  # well under the 10 minutes at which brokers expire producer ids


class State(enum.Enum):
    """A stream's state."""

    FINDING = "finding its position"
    FLOWING = "flowing"
    STOPPED = "stopped"


class Route(NamedTuple):
    """A partition's source and target, and the mark of its batches.

    `returning_mark` is that of batches of the source that the target has already, as they were
    mirrored from there; None if there are none.
    """

    source: TopicPartition
    target: TopicPartition
    mark: int
    returning_mark: int | None = None


class _Flight(NamedTuple):
    """A batch in flight. Its answer, however late, proves our position as of `posted_at_s`."""

    rewritten: RewrittenBatch
    answered: asyncio.Future[Any]
    posted_at_s: float


class Source(Protocol):
    """How a stream uses its flow's source. `MirrorFlow` implements it."""

    async def committed(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """The offset that the flow's group has committed, if any."""
        ...

    async def begin(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """Commit where to begin with a partition that has no commit, and return it.

        None if that cannot be said before the target is asked: it may have been mirrored before, or
        begins with its earliest record.
        """
        ...

    async def start_offset(self, partition: TopicPartition, *, is_emptied: bool) -> int:
        """The first offset to mirror of a partition that was never mirrored.

        `is_emptied`: the target's partition had records once. `Loss` if they may have been ours.
        """
        ...

    def fault_of(self, partition: TopicPartition) -> KdistError | None:
        """Why the source's records do not continue those that were mirrored; None if they do."""
        ...

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit these offsets for the flow's group."""
        ...

    def read_from(self, partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Pass the partition's batches from `offset` on to `Stream.put`."""
        ...

    def read_no_more(self, partition: TopicPartition) -> None:
        """Pass no more batches until the next `read_from`."""
        ...


class Stream:
    """One partition's stream: `start`, then `put` what was read, `stop`. Owner: the loop."""

    def __init__(
        self,
        route: Route,
        source: Source,
        target: Target,
        metrics: FlowMetrics,
        on_change: Callable[[Stream], None],
    ) -> None:
        """`on_change` is called when a batch is acknowledged, and when the stream has stopped."""
        self.route = route
        self.state = State.FINDING
        self.position: int | None = None  # the source offset before which all is in the target
        self.target_end = 0
        self.leader_epoch = NO_EPOCH
        self.held_bytes = 0  # waiting and in flight
        self.failure: KdistError | None = None  # why it has stopped, or will once all is sent
        self.trouble = Trouble(str(route.source))
        self._troubled_at_s = 0.0  # since when
        self._source = source
        self._target = target
        self._metrics = metrics
        self._on_change = on_change
        self._waiting: deque[RewrittenBatch] = deque()
        self._in_flight: deque[_Flight] = deque()
        self._run: Run | None = None
        self._is_alone = True  # whether the next batch must be the only one in flight
        self._is_ahead = False  # whether `position` is beyond what the target's log says
        self._read_to = -1  # where the next batch read should begin; -1: none is wanted
        self._proven_at_s = 0.0  # when the last request that the target answered was sent
        self._news = asyncio.Event()
        self._is_draining = False
        self._is_doubted = False  # whether the target's topic may have been recreated
        self._task: asyncio.Task[None] | None = None

    # What the flow calls

    def start(self) -> None:
        """Start the task that finds the position, and then sends what is `put`."""
        self._task = asyncio.get_running_loop().create_task(self._live())
        self._task.add_done_callback(raise_bug)

    def put(self, batches: Iterable[Batch]) -> None:
        """Queue the next batches of the source; those before the wanted offset are ignored."""
        if self._read_to < 0:
            return
        for batch in batches:
            try:
                if batch.start < self._read_to or not len(batch):  # compaction may have left none
                    continue
                if self._came_from_target(batch):
                    self._read_to = batch.end
                    continue
                rewritten = RewrittenBatch(batch)
            except CorruptRecords as error:
                self.fail(CorruptFetch(batch.partition, batch.start, error.detail))
                return
            except Loss as error:
                self.fail(error)
                return
            self._read_to = rewritten.end
            self._waiting.append(rewritten)
            self.held_bytes += len(rewritten)
        self._news.set()

    def _came_from_target(self, batch: Batch) -> bool:
        """Whether the target has the batch, as it was mirrored from there; `Loss` if no longer."""
        mark = self.route.returning_mark
        run = None if mark is None else read_run(batch.header, mark)
        if run is not None and run.next_offset > self.target_end:
            raise lost_since(self.route.target, run.next_offset, self.target_end)
        return run is not None

    @property
    def wants_more(self) -> bool:
        """Whether the source should be read further."""
        return self._read_to >= 0

    @property
    def oldest(self) -> RewrittenBatch | None:
        """The first batch that was read and is not acknowledged, if there is one."""
        if self._in_flight:
            return self._in_flight[0].rewritten
        return self._waiting[0] if self._waiting else None

    @property
    def is_idle(self) -> bool:
        """Whether all that was read is acknowledged."""
        return self.state is State.FLOWING and not self._waiting and not self._in_flight

    @property
    def troubled_s(self) -> float:
        """For how long nothing has passed, as each attempt failed; 0 if all is well."""
        return _now_s() - self._troubled_at_s if self.trouble.said else 0.0

    @property
    def note(self) -> str:
        """The metadata to commit with `position`."""
        stopped = self.failure if self.state is State.STOPPED else None
        return note_of(self.target_end, overrides=self._is_ahead, stopped=stopped)

    def note_position(self, position: int) -> None:
        """Move to `position`, up to which the source has nothing that the target lacks."""
        if self.is_idle and self.position is not None and self._read_to >= self.position:
            self.trouble.end()
            self._is_ahead |= position > self.position
            self.position = self._read_to = max(position, self.position)

    async def drain(self, timeout_s: float) -> None:
        """Send nothing more, and wait for the answers to batches in flight."""
        self._is_draining = True
        self._news.set()
        if self._task is not None and self._in_flight:
            await asyncio.wait([each.answered for each in self._in_flight], timeout=timeout_s)
            await asyncio.sleep(0)  # lets the stream's task handle the answers
            self._settle_quietly()

    async def stop(self) -> None:
        """Stop at once, without waiting for batches in flight."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._forget()

    def fail(self, error: KdistError) -> None:
        """Stop with `error`, but first send what was read: the source may no longer have it."""
        if self.state is State.FLOWING:
            self.failure = error
            self._read_no_more()
            self._news.set()

    def doubt(self) -> None:
        """Find the position in the target again, before anything more is sent."""
        self._is_doubted = True
        self._news.set()

    # Its life

    async def _live(self) -> None:
        pause_s = _PAUSE_S
        while True:
            try:
                before = self.position
                await self._find()
                failure = await self._flow()
                self._halt(failure)
                return
            except (ApiError, NoBroker) as error:
                if not may_pass(error):
                    self._halt(error)
                    return
                pause_s = _PAUSE_S if self.position != before else min(2 * pause_s, _PAUSE_S_MAX)
                self._doubt(error)
            except KdistError as error:
                self._halt(error)
                return
            await asyncio.sleep(pause_s)

    async def _find(self) -> None:
        """Find the position in the target, and read the source from there."""
        route, asked_at_s, self._is_doubted = self.route, _now_s(), False
        committed = await self._source.committed(route.source)
        if committed is None:
            committed = await self._source.begin(route.source)
        offsets = await self._target.offsets(route.target)
        found = await look_up_position(
            self._target.cluster, route.target, route.mark, committed, offsets
        )
        position = found.position
        if position is None:
            is_emptied = found.target_start > 0
            position = await self._source.start_offset(route.source, is_emptied=is_emptied)
        if committed is None or not committed.metadata:
            # Before the first batch is sent: its note says where to search for our batches, if
            # others write behind them.
            first = OffsetAndMetadata(position, note_of(found.target_end))
            await self._source.commit({route.source: first})
        self._run = run = found.run
        self._is_ahead = run is None or run.next_offset < position
        self._proven_at_s = asked_at_s
        self._is_alone = True
        self.position = self._read_to = position
        self.target_end = found.target_end
        self.leader_epoch = found.leader_epoch
        if (fault := self._source.fault_of(route.source)) is not None:
            raise fault
        self.state = State.FLOWING
        self._source.read_from(route.source, position, found.leader_epoch)

    async def _flow(self) -> KdistError:
        """Send batches and handle answers; returns the source's failure once all is sent.

        `ApiError` for a doubt.
        """
        connection = await self._target.connection(self.route.target)
        while self.failure is None or self.oldest is not None:
            await self._news.wait()
            self._news.clear()
            self._settle()
            if self._is_doubted:
                raise ApiError(
                    Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"topic {self.route.target.topic} of the target was recreated",
                )
            while self._waiting and not self._in_flight and self._silence_s() > _PROOF_S:
                await self._prove()
            while (rewritten := self._next()) is not None:
                self._waiting.popleft()
                posted_at_s = _now_s()
                answered = connection.post(self.route.target, rewritten.data)
                answered.add_done_callback(lambda _: self._news.set())
                self._in_flight.append(_Flight(rewritten, answered, posted_at_s))
        return self.failure

    def _silence_s(self) -> float:
        return _now_s() - self._proven_at_s

    async def _prove(self) -> None:
        """Check in the target's log that our position is still right. `ApiError` if it is not."""
        route, asked_at_s = self.route, _now_s()
        known = (self._run, self.target_end)
        offsets = await self._target.offsets(route.target)
        await check_end(self._target.cluster, route.target, route.mark, known, offsets)
        self.target_end = offsets.end
        self._proven_at_s = asked_at_s
        self._is_alone = True

    def _next(self) -> RewrittenBatch | None:
        """The batch to send now, stamped; None if none may be sent yet."""
        if not self._waiting or len(self._in_flight) >= IN_FLIGHT_MAX or self._is_draining:
            return None
        silence_s = self._silence_s()
        if silence_s > _PROOF_S:
            return None  # not before `_prove`
        if not self._in_flight and silence_s > _SILENCE_S:
            self._is_alone = True
        rewritten = self._waiting[0]
        run = run_for(self.route.mark, self._run, rewritten.start, rewritten.end)
        if run is not self._run:
            self._is_alone = True
        if self._is_alone and self._in_flight:
            return None
        rewritten.stamp(run)
        self._run = run._replace(next_offset=rewritten.end)
        return rewritten

    def _settle(self) -> None:
        """Handle the answers that have arrived, in order. `ApiError` for the first refusal.

        `UserError` if the target's topic was recreated.
        """
        while self._in_flight and self._in_flight[0].answered.done():
            rewritten, answered, posted_at_s = self._in_flight[0]
            try:
                result = result_of(answered, self.route.target, rewritten)
            except ApiError as error:
                if error.error is not Error.DUPLICATE_SEQUENCE_NUMBER:
                    raise
            else:
                if 0 <= (base := result.base_offset) < self.target_end:
                    raise copy_recreated(self.route.target, base, self.target_end, has_ours=True)
                self.target_end = base + rewritten.count
            self._in_flight.popleft()
            self._proven_at_s = posted_at_s
            self._acknowledge(rewritten)

    def _settle_quietly(self) -> None:
        try:
            self._settle()
        except ApiError:
            pass  # the partition's next owner finds the position in the target
        except UserError as error:
            self._halt(error)

    def _acknowledge(self, rewritten: RewrittenBatch) -> None:
        self.held_bytes -= len(rewritten)
        self.position = rewritten.end
        self._is_ahead = False
        self.leader_epoch = rewritten.leader_epoch
        self._is_alone = False
        self.trouble.end()
        metrics = self._metrics
        metrics.passed_batches += 1
        metrics.passed_records += rewritten.count
        metrics.passed_bytes += len(rewritten)
        metrics.rebuilt_batches += rewritten.is_rebuilt
        self._on_change(self)

    # Failures

    def _doubt(self, error: Exception) -> None:
        if isinstance(error, ApiError) and error.error in FROM_TARGET:
            self._metrics.contested_batches += 1
        self._metrics.doubts += 1
        self._target.forget_leader(self.route.target)
        self._forget()
        self.state = State.FINDING
        if not self.trouble.said:
            self._troubled_at_s = _now_s()
        self.trouble.begin(error)

    def _forget(self) -> None:
        """Drop what is waiting and in flight, and read no more until `_find`."""
        for flight in self._in_flight:
            flight.answered.add_done_callback(_retrieve)
        self._in_flight.clear()
        self._waiting.clear()
        self.held_bytes = 0
        self.failure = None
        self._read_no_more()

    def _read_no_more(self) -> None:
        self._read_to = -1
        self._source.read_no_more(self.route.source)

    def _halt(self, error: KdistError) -> None:
        self.state = State.STOPPED
        self._forget()
        self.failure = error
        logger.error("mirroring of %s has stopped: %s", self.route.source, error)
        self._on_change(self)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _retrieve(answered: asyncio.Future[Any]) -> None:
    """Retrieve the error of an answer that nobody awaits, so that asyncio does not log it."""
    if not answered.cancelled():
        answered.exception()
