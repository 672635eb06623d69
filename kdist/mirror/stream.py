"""One partition on its way: batches of the source go to the target, in order, each exactly once.

    FINDING -- the target says where we stand --> FLOWING -- anything fails --> FINDING
    FINDING, FLOWING -- records are gone, or are refused for good --> STOPPED

Where the source cannot be read on, what it gave before is sent first: it may be gone from there.

There is one way back from every doubt (a lost answer, a new leader, a sequence that does not
follow, a restart): forget what is under way, ask the target's log where it stands, read on from
there. The first batch of a run flies alone, since a broker that does not know a producer id takes
whatever sequence comes first; so does the first one after a doubt, and after a silence, in which
the broker may have forgotten the id. After a long one, in which this process may have been frozen,
the target's log is asked first whether another mirror has gone on. An answer that says that a batch
lies where the log had others before stops the stream: it is another log, which takes any sequence.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kdist.client.cluster import NoBroker
from kdist.client.consumer.batch import Batch, CorruptFetch
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import ApiError, CorruptRecords, Error, KdistError, UserError
from kdist.metrics.mirror import FlowMetrics
from kdist.mirror.parcel import Parcel
from kdist.mirror.source import Source
from kdist.mirror.standing import copy_made_anew, find_end, find_standing, note_of
from kdist.mirror.target import Target, result_of
from kdist.mirror.trace import Run, run_for
from kdist.mirror.trouble import FROM_TARGET, Trouble, may_pass
from kdist.model import NO_EPOCH, TopicPartition
from kdist.runtime.tasks import raise_bug

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 5  # so many batches of a producer a broker remembers
_PAUSE_S = 0.2
_PAUSE_S_MAX = 5.0
_SILENCE_S = 1.0  # brokers may forget a producer whose records are old at any time it is idle
_PROOF_S = 60.0  # well under the 10 minutes after which brokers look what to forget


class State(enum.Enum):
    """What a stream does."""

    FINDING = "finding its position"
    FLOWING = "flowing"
    STOPPED = "stopped"


class Route(NamedTuple):
    """From where to where, and the mark on the way."""

    source: TopicPartition
    target: TopicPartition
    mark: int


class _Flight(NamedTuple):
    """A parcel that was posted, and when: its answer tells of no later moment, however late."""

    parcel: Parcel
    answered: asyncio.Future[Any]
    posted_at_s: float


class Stream:
    """Owner: the loop. `start` it, `put` what was read, and in the end `stop` it."""

    def __init__(
        self,
        route: Route,
        source: Source,
        target: Target,
        metrics: FlowMetrics,
        on_change: Callable[[Stream], None],
    ) -> None:
        """`on_change` is called when less is held, and when the stream has stopped."""
        self.route = route
        self.state = State.FINDING
        self.position: int | None = None  # all before it is in the target
        self.target_end = 0
        self.leader_epoch = NO_EPOCH
        self.held_bytes = 0  # what waits and flies
        self.failure: KdistError | None = None  # why it is stopped, or is to be once all is sent
        self.trouble = Trouble(str(route.source))
        self._source = source
        self._target = target
        self._metrics = metrics
        self._on_change = on_change
        self._waiting: deque[Parcel] = deque()
        self._flying: deque[_Flight] = deque()
        self._run: Run | None = None
        self._is_alone = True  # whether the next batch is to fly alone
        self._is_ahead = False  # `position` is further than the target's log says
        self._read_to = -1  # where the next batch is to begin; -1: none is wanted
        self._proven_at_s = 0.0  # when the question was asked that the target last answered
        self._news = asyncio.Event()
        self._is_draining = False
        self._is_doubted = False  # whether the target's log may be another than it was
        self._task: asyncio.Task[None] | None = None

    # From outside

    def start(self) -> None:
        """Find the position, and send what comes."""
        self._task = asyncio.get_running_loop().create_task(self._live())
        self._task.add_done_callback(raise_bug)

    def put(self, batches: Iterable[Batch]) -> None:
        """The next batches of the source. What was read before a doubt is passed over."""
        if self._read_to < 0:
            return
        for batch in batches:
            try:
                if batch.start < self._read_to or not len(batch):  # compaction may have left none
                    continue
                parcel = Parcel(batch)
            except CorruptRecords as error:
                self.fail(CorruptFetch(batch.partition, batch.start, error.detail))
                return
            self._read_to = parcel.end
            self._waiting.append(parcel)
            self.held_bytes += len(parcel)
        self._news.set()

    @property
    def wants_more(self) -> bool:
        """Whether the source is to be read on."""
        return self._read_to >= 0

    @property
    def oldest(self) -> Parcel | None:
        """The first that was read and is not acknowledged, if there is one."""
        if self._flying:
            return self._flying[0].parcel
        return self._waiting[0] if self._waiting else None

    @property
    def is_idle(self) -> bool:
        """Whether all that was read is acknowledged."""
        return self.state is State.FLOWING and not self._waiting and not self._flying

    @property
    def note(self) -> str:
        """What a commit of `position` is to say beside it."""
        stopped = self.failure if self.state is State.STOPPED else None
        return note_of(self.target_end, wins=self._is_ahead, stopped=stopped)

    def note_position(self, position: int) -> None:
        """The source has nothing for us before `position`: markers, or what compaction left."""
        if self.is_idle and self.position is not None and self._read_to == self.position:
            self.trouble.end()
            self._is_ahead |= position > self.position
            self.position = self._read_to = max(position, self.position)

    async def drain(self, timeout_s: float) -> None:
        """Send nothing more, and wait until what flies is answered."""
        self._is_draining = True
        self._news.set()
        if self._task is not None and self._flying:
            await asyncio.wait([each.answered for each in self._flying], timeout=timeout_s)
            await asyncio.sleep(0)  # its task takes the answers in
            self._settle_quietly()

    async def stop(self) -> None:
        """End at once; what flies is not waited for."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._forget()

    def fail(self, error: KdistError) -> None:
        """The source cannot be read on; the stream stops once all that it gave is in the target."""
        if self.state is State.FLOWING:
            self.failure = error
            self._read_no_more()
            self._news.set()

    def doubt(self) -> None:
        """Ask the target where we stand, before anything more is sent."""
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
        """Ask where we stand, and have the source give what comes behind it."""
        route, asked_at_s, self._is_doubted = self.route, _now_s(), False
        committed = await self._source.committed(route.source)
        standing = await find_standing(self._target.cluster, route.target, route.mark, committed)
        position = standing.position
        if position is None:
            position = await self._source.start_offset(route.source)
        if committed is None:
            # Before the first batch: with others' batches behind ours, it says where to look.
            first = OffsetAndMetadata(position, note_of(standing.target_end))
            await self._source.commit({route.source: first})
        self._run = run = standing.run
        self._is_ahead = run is None or run.next_offset < position
        self._proven_at_s = asked_at_s
        self._is_alone = True
        self.position = self._read_to = position
        self.target_end = standing.target_end
        self.leader_epoch = standing.leader_epoch
        if (fault := self._source.fault_of(route.source)) is not None:
            raise fault
        self.state = State.FLOWING
        self._source.read_from(route.source, position, standing.leader_epoch)

    async def _flow(self) -> KdistError:
        """Send and take in answers until something is wrong; what is wrong with the source."""
        connection = await self._target.connection(self.route.target)
        while self.failure is None or self.oldest is not None:
            await self._news.wait()
            self._news.clear()
            self._settle()
            if self._is_doubted:
                raise ApiError(
                    Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"topic {self.route.target.topic} of the target is another than it was",
                )
            while self._waiting and not self._flying and self._silence_s() > _PROOF_S:
                await self._prove()
            while (parcel := self._next()) is not None:
                self._waiting.popleft()
                posted_at_s = _now_s()
                answered = connection.post(self.route.target, parcel.data)
                answered.add_done_callback(lambda _: self._news.set())
                self._flying.append(_Flight(parcel, answered, posted_at_s))
        return self.failure

    def _silence_s(self) -> float:
        return _now_s() - self._proven_at_s

    async def _prove(self) -> None:
        """Ask the target whether we still stand where we stood. `ApiError` if we do not."""
        route, asked_at_s = self.route, _now_s()
        known = (self._run, self.target_end)
        self.target_end = await find_end(self._target.cluster, route.target, route.mark, *known)
        self._proven_at_s = asked_at_s
        self._is_alone = True

    def _next(self) -> Parcel | None:
        """The parcel to be sent now, stamped; None while none may be."""
        if not self._waiting or len(self._flying) >= IN_FLIGHT_MAX or self._is_draining:
            return None
        silence_s = self._silence_s()
        if silence_s > _PROOF_S:
            return None  # not before it is proven where we stand
        if not self._flying and silence_s > _SILENCE_S:
            self._is_alone = True
        parcel = self._waiting[0]
        run = run_for(self.route.mark, self._run, parcel.start, parcel.end)
        if run is not self._run:
            self._is_alone = True
        if self._is_alone and self._flying:
            return None
        parcel.stamp(run)
        self._run = run._replace(next_offset=parcel.end)
        return parcel

    def _settle(self) -> None:
        """Take in the answers that are there, in order. `ApiError` for the first that is bad.

        `UserError` if the log is another than it was.
        """
        while self._flying and self._flying[0].answered.done():
            parcel, answered, posted_at_s = self._flying[0]
            try:
                result = result_of(answered, self.route.target, parcel)
            except ApiError as error:
                if error.error is not Error.DUPLICATE_SEQUENCE_NUMBER:
                    raise
            else:
                if 0 <= (base := result.base_offset) < self.target_end:
                    raise copy_made_anew(self.route.target, base, self.target_end, has_ours=True)
                self.target_end = base + parcel.count
            self._flying.popleft()
            self._proven_at_s = posted_at_s
            self._acknowledge(parcel)

    def _settle_quietly(self) -> None:
        try:
            self._settle()
        except ApiError:
            pass  # whoever has the partition next asks the target
        except UserError as error:
            self._halt(error)

    def _acknowledge(self, parcel: Parcel) -> None:
        self.held_bytes -= len(parcel)
        self.position = parcel.end
        self._is_ahead = False
        self.leader_epoch = parcel.leader_epoch
        self._is_alone = False
        self.trouble.end()
        metrics = self._metrics
        metrics.passed_batches += 1
        metrics.passed_records += parcel.count
        metrics.passed_bytes += len(parcel)
        metrics.rebuilt_batches += parcel.is_rebuilt
        self._on_change(self)

    # What goes wrong

    def _doubt(self, error: Exception) -> None:
        if isinstance(error, ApiError) and error.error in FROM_TARGET:
            self._metrics.contested_batches += 1
        self._metrics.doubts += 1
        self._target.forget_leader(self.route.target)
        self._forget()
        self.state = State.FINDING
        self.trouble.begin(error)

    def _forget(self) -> None:
        """Nothing is under way any more; what the source gives is not wanted until `_find`."""
        for flight in self._flying:
            flight.answered.add_done_callback(_retrieve)
        self._flying.clear()
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
        logger.error("%s is mirrored no more: %s", self.route.source, error)
        self._on_change(self)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _retrieve(answered: asyncio.Future[Any]) -> None:
    """Look at an answer that nobody waits for, so that asyncio does not complain."""
    if not answered.cancelled():
        answered.exception()
