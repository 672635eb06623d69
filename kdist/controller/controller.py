"""A broker's candidacy for controller, and where its request handlers create and delete topics.

Each broker runs one. Once registered, it claims `/controller` whenever that is free, and serves
while its session is CONNECTED. SUSPENDED already ends the term, since from then on another broker
may be elected without this one noticing. If the session survives, the broker finds its claim still
in place and starts a new term, which loads the cluster again.

While it is unknown whether this broker is the controller, handlers wait, up to their requests'
timeouts. Without a connection to ZooKeeper they wait at most the session timeout: after that the
session has expired, and another broker may have claimed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from kdist.controller.commands import (
    AlterReassignments,
    Command,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    ListReassignments,
    PartitionErrors,
    ShutDownBroker,
    TopicOutcome,
    TopicsCommand,
)
from kdist.controller.context import Assigned, ControllerContext, OutOfDate, TermCrashed
from kdist.controller.elections import imbalanced
from kdist.controller.isr_proposals import AlterPartition
from kdist.controller.reassignments import Target
from kdist.controller.term import ControllerDependencies, ControllerTerm
from kdist.controller.writing import FencedWriter
from kdist.errors import ApiError, Error
from kdist.metrics.declare import Reading
from kdist.model import TopicPartition
from kdist.protocol.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kdist.protocol.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from kdist.protocol.create_partitions import GrownTopic
from kdist.protocol.create_topics import NewTopic
from kdist.protocol.delete_topics import TopicToDelete
from kdist.zk import znodes
from kdist.zk.client import SessionState, WatchEvent, WatchKind
from kdist.zk.election import Leadership, claim, resign
from kdist.zk.errors import ZooKeeperError

logger = logging.getLogger(__name__)

RETRY_MS = 200  # between a term that ended in doubt and the next claim
CRASHED_MS = 5_000  # likewise after a bug, which the next term may meet again
NOT_LOADED = "The controller has not loaded the cluster in time."
UNDER_WAY = "The change is under way: it may be made yet."
UNCONFIRMED = "The change is made, but some brokers have not confirmed it yet."

Result = TypeVar("Result")


class ControllerStatus:
    """Whether this broker is the controller: yes, with its term; no; or not known yet.

    Owner: the `Controller`. It is not known until the claim is answered, until an elected
    controller has loaded the cluster, and while a controller whose session is in doubt has not
    heard from ZooKeeper. Callers wait meanwhile: this may be the right broker, and they know of no
    better one.
    """

    def __init__(self) -> None:
        self._term: ControllerTerm | None = None
        self._known = asyncio.Event()

    @property
    def is_known(self) -> bool:
        """Whether `term` answers without waiting."""
        return self._known.is_set()

    def forget(self) -> None:
        """Forget the answer: callers wait until the next `set`."""
        self._term = None
        self._known.clear()

    def set(self, term: ControllerTerm | None) -> None:
        """Set the answer: this broker's term, or None if it is not the controller."""
        self._term = term
        self._known.set()

    async def term(self, timeout_ms: float) -> ControllerTerm | None:
        """The term, or None if this is not the controller; `TimeoutError` if not known in time.

        With 0 ms or less it does not wait.
        """
        async with asyncio.timeout(max(0, timeout_ms) / 1000):
            while not self._known.is_set():  # it may be forgotten again by the time we are woken
                await self._known.wait()
        return self._term


class Controller:
    """Owner: the loop. The broker runs `run` as a task, and `resign` before it closes ZooKeeper."""

    def __init__(self, context: ControllerDependencies) -> None:
        self.on_loss: list[Callable[[], None]] = []  # called once it is surely not the controller
        self._context = context
        self._status = ControllerStatus()
        self._giving_up: asyncio.TimerHandle | None = None  # while ZooKeeper cannot be reached
        self._leadership: Leadership | None = None
        self._term: ControllerTerm | None = None
        self._running: asyncio.Task[None] | None = None
        self._is_standing = True
        self._watches_registration = False  # one watch is enough for all the elections of a session
        self._changed = asyncio.Event()  # the session's state, or who is controller
        metrics = context.metrics
        metrics.brokers = self._reading(lambda cluster: len(cluster.brokers))
        metrics.fenced_brokers = self._reading(_count_fenced)
        metrics.topics = self._reading(
            lambda cluster: len(cluster.topics) - len(cluster.queued_for_deletion)
        )
        metrics.partitions = self._reading(lambda cluster: cluster.tally.partitions)
        metrics.offline_partitions = self._reading(lambda cluster: len(cluster.tally.offline))
        metrics.offline_replicas = self._reading(_count_offline_replicas)
        metrics.replicas_ineligible_for_deletion = lambda: (
            float("nan") if self._term is None else self._term.count_ineligible()
        )
        metrics.imbalanced_partitions = self._reading(lambda cluster: len(imbalanced(cluster)))
        metrics.recovering_partitions = self._reading(lambda cluster: cluster.tally.recovering)
        metrics.reassigning_partitions = self._reading(lambda cluster: len(cluster.tally.moving))
        metrics.replicas_left_behind = self._reading(
            lambda cluster: sum(map(len, cluster.tally.removed.values()))
        )
        metrics.topics_queued_for_deletion = self._reading(
            lambda cluster: len(cluster.queued_for_deletion)
        )

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows; it may still be loading."""
        return self._term is not None

    @property
    def listener(self) -> str:
        """The name of the inter-broker listener."""
        return self._context.listener

    # The life of a candidate

    async def run(self) -> None:
        """Stand for election, and serve when elected, until cancelled.

        Raises only what ends the broker: bugs outside of a term, a failed disk.
        """
        remove_listener = self._context.zk.add_listener(self._on_session_state)
        try:
            while True:
                self._changed.clear()
                if self._is_standing and self._context.zk.state is SessionState.CONNECTED:
                    await self._try_campaign()
                await self._changed.wait()
        finally:
            remove_listener()
            self._is_standing = False
            self._on_controller_resignation()

    async def resign(self) -> None:
        """Stop acting as controller and stop standing, so that another broker is elected now.

        `ZooKeeperError` if the claim cannot be deleted now; it goes when the session ends.
        """
        self._is_standing = False
        self._on_controller_resignation()
        if self._leadership is not None:
            await resign(self._context.zk, self._leadership)

    async def _try_campaign(self) -> None:
        try:
            await self._campaign()
        except (ZooKeeperError, OutOfDate) as error:
            logger.warning("not the controller; will try again: %s", error)
            retry_ms = CRASHED_MS if isinstance(error, TermCrashed) else RETRY_MS
            await asyncio.sleep(retry_ms / 1000)
            self._changed.set()

    async def _campaign(self) -> None:
        """Claim, and serve until the term ends; return at once if another broker has claimed."""
        context = self._context
        if not await self._is_registered():
            return  # `_on_registration_change` starts the next try
        leadership = await claim(context.zk, context.broker_id, context.clock.now_ms())
        stat = await context.zk.exists(znodes.CONTROLLER.path(), self._on_controller_deleted)
        if leadership is not None and not self._is_standing:
            # `resign` was called while the claim was under way.
            await resign(context.zk, leadership)
        elif stat is None or self._changed.is_set():
            self._changed.set()  # deleted between the two requests, or since the second: try again
        elif leadership is not None and stat.ephemeral_owner == context.zk.session_id:
            await self._run_term(leadership)
        else:
            self._on_controller_resignation()

    async def _is_registered(self) -> bool:
        """Only a registered broker stands; otherwise it would place topics without itself."""
        zk = self._context.zk
        path = znodes.BROKER.path(self._context.broker_id)
        watch = None if self._watches_registration else self._on_registration_change
        self._watches_registration = True  # before the request: the watch may have fired by its end
        try:
            stat = await zk.exists(path, watch)
        except ZooKeeperError:
            self._watches_registration = False
            raise
        return stat is not None and stat.ephemeral_owner == zk.session_id

    async def _run_term(self, leadership: Leadership) -> None:
        context = self._context
        self._leadership = leadership
        self._term = term = ControllerTerm(context, FencedWriter(context.zk, leadership))
        task = self._running = asyncio.create_task(self._rule(term), name="controller")
        context.metrics.is_active, context.metrics.epoch = 1, leadership.epoch
        logger.info("broker %d is the controller of epoch %d", context.broker_id, leadership.epoch)
        try:
            await asyncio.wait([task])
        finally:
            self._end_term()
        if not task.cancelled():
            task.result()

    async def _rule(self, term: ControllerTerm) -> None:
        await term.handle(term.on_controller_failover)
        self._status.set(term)
        await term.run()

    def _end_term(self) -> None:
        """End the term at once, whatever is under way; whether another follows is not known."""
        if self._is_standing:
            self._status.forget()
        if self._term is not None and self._running is not None:
            self._running.cancel()
            self._term.close()
            self._term = None
            self._context.metrics.is_active = 0

    def _on_controller_resignation(self) -> None:
        """Another broker is the controller, or nobody."""
        self._end_term()
        self._status.set(None)
        self._report_resignation()

    def _report_resignation(self) -> None:
        for listener in self.on_loss:
            listener()

    def _on_session_state(self, state: SessionState) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
        if state is SessionState.CONNECTED:
            self._end_term()
        elif self._term is not None or not self._status.is_known:  # else another is controller
            self._end_term()
            timeout_s = self._context.config().zookeeper.session_timeout_ms / 1000
            self._giving_up = asyncio.get_running_loop().call_later(
                timeout_s, self._on_controller_resignation
            )
        if state is SessionState.EXPIRED:
            self._report_resignation()
        self._changed.set()

    def _on_controller_deleted(self, event: WatchEvent) -> None:
        """`/controller` is gone: another broker's, or our own, which an operator may delete."""
        if event.kind is not WatchKind.LOST:  # a lost connection is `_on_session_state`'s business
            self._end_term()
        self._changed.set()

    def _on_registration_change(self, _: WatchEvent) -> None:
        """The registration changed: this session's was made, or the previous one's is gone."""
        self._watches_registration = False
        self._changed.set()

    def note_settings_change(self, topic: str | None = None) -> None:
        """A topic's settings have changed; None: the brokers' defaults for all topics."""
        if self._term is not None:
            self._term.note_settings_change(topic)

    # What handlers ask for

    async def create_topics(
        self, topics: Sequence[NewTopic], timeout_ms: int, validate_only: bool = False
    ) -> list[TopicOutcome]:
        """Create topics and wait, at most `timeout_ms`, until all live brokers know them.

        Outcomes are in the order of `topics`. REQUEST_TIMED_OUT: created but not yet known to every
        broker, or under way, or the controller was not ready; the sentence says which.
        NOT_CONTROLLER: ask the
        controller; the topics may have been created all the same.
        """
        return await self._submit(CreateTopics(topics, validate_only, {}), timeout_ms)

    async def create_partitions(
        self, topics: Sequence[GrownTopic], timeout_ms: int, validate_only: bool = False
    ) -> list[TopicOutcome]:
        """Add partitions; waits and answers as `create_topics` does."""
        return await self._submit(CreatePartitions(topics, validate_only, {}), timeout_ms)

    async def delete_topics(
        self, topics: Sequence[TopicToDelete], timeout_ms: int
    ) -> list[TopicOutcome]:
        """Delete topics and wait, at most `timeout_ms`, until they are gone.

        A deletion is not finished while a broker with replicas is down, but this does not wait for
        such a broker. Outcomes are as for `create_topics`.
        """
        return await self._submit(DeleteTopics(topics), timeout_ms)

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, election_type: int, timeout_ms: int
    ) -> PartitionErrors:
        """Elect leaders, and wait, at most `timeout_ms`, until all live brokers know them.

        `partitions` None: all; the outcomes are then of those that needed one. ApiError
        NOT_CONTROLLER; REQUEST_TIMED_OUT if the controller was not ready, or is still at it.
        """
        end_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        command = ElectLeaders(partitions, election_type)
        outcomes, acknowledgements = await self._carry_out(command, end_s)
        if await _are_done(acknowledgements, end_s):
            return outcomes
        late = ApiError(Error.REQUEST_TIMED_OUT, UNCONFIRMED)
        return {each: fault or late for each, fault in outcomes.items()}

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, Target | None], timeout_ms: int
    ) -> PartitionErrors:
        """Begin to move partitions, or cancel that (None for a target); the moves go on after it.

        ApiError NOT_CONTROLLER; REQUEST_TIMED_OUT if the controller was not ready, or is at it.
        """
        end_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        return await self._carry_out(AlterReassignments(targets, set()), end_s)

    async def list_reassignments(
        self, partitions: Sequence[TopicPartition] | None, timeout_ms: int
    ) -> dict[TopicPartition, Assigned]:
        """The moves under way, of these partitions or of all. ApiError as above."""
        end_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        return await self._carry_out(ListReassignments(partitions), end_s)

    async def _submit(self, command: TopicsCommand, timeout_ms: int) -> list[TopicOutcome]:
        end_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        try:
            outcomes, acknowledgements = await self._carry_out(command, end_s)
        except ApiError as failure:
            return _all_failed(command, failure)
        if not await _are_done(acknowledgements, end_s):
            return [_timed_out(outcome) for outcome in outcomes]
        return outcomes

    async def _carry_out(self, command: Command[Result], end_s: float) -> Result:
        """Have the term carry it out. ApiError NOT_CONTROLLER, or UNKNOWN_SERVER_ERROR for a bug.

        At the deadline ApiError REQUEST_TIMED_OUT, while the work goes on: whoever asked may send
        other requests. If the term ends meanwhile, all but a deletion is tried again in this
        broker's next one.
        """
        loop = asyncio.get_running_loop()
        sentence = NOT_LOADED
        while True:
            try:
                term = await self._status.term((end_s - loop.time()) * 1000)
            except TimeoutError:
                raise ApiError(Error.REQUEST_TIMED_OUT, sentence) from None
            if term is None:
                raise ApiError(Error.NOT_CONTROLLER)
            answer, sentence = term.submit(command), UNDER_WAY
            await asyncio.wait([answer], timeout=max(0.0, end_s - loop.time()))
            if not answer.done():
                raise ApiError(Error.REQUEST_TIMED_OUT, UNDER_WAY)
            try:
                return answer.result()
            except ApiError as failure:
                if failure.error is not Error.NOT_CONTROLLER or isinstance(command, DeleteTopics):
                    raise

    # What brokers ask for

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Answer a leader's proposals of ISRs."""
        try:
            return await self._current_term.submit(AlterPartition(request))
        except ApiError as failure:
            return AlterPartitionResponse(error_code=failure.error)

    async def controlled_shutdown(
        self, request: ControlledShutdownRequest
    ) -> ControlledShutdownResponse:
        """Move the leaders of a broker that is about to stop; answers which it still leads."""
        try:
            return await self._current_term.submit(ShutDownBroker(request))
        except ApiError as failure:
            return ControlledShutdownResponse(error_code=failure.error, remaining_partitions=[])

    def check_registration(self, broker_id: int, broker_epoch: int) -> Error:
        """NOT_CONTROLLER, or why a broker is not the one that is registered; NONE if it is."""
        if self._term is None:
            return Error.NOT_CONTROLLER
        live = self._term.cluster.brokers.get(broker_id)
        if live is None:
            return Error.BROKER_ID_NOT_REGISTERED
        return Error.NONE if live.epoch == broker_epoch else Error.STALE_BROKER_EPOCH

    @property
    def _current_term(self) -> ControllerTerm:
        if self._term is None:
            raise ApiError(Error.NOT_CONTROLLER)
        return self._term

    def _reading(self, count: Callable[[ControllerContext], int]) -> Reading:
        """A metric counted from the controller context; NaN while another is the controller."""
        return lambda: float("nan") if self._term is None else count(self._term.cluster)


def _all_failed(command: TopicsCommand, failure: ApiError) -> list[TopicOutcome]:
    sentence = failure.detail or failure.error.sentence
    return [TopicOutcome(each.name, failure.error, sentence) for each in command.topics]


def _timed_out(outcome: TopicOutcome) -> TopicOutcome:
    if outcome.error is not Error.NONE:
        return outcome
    return outcome._replace(error=Error.REQUEST_TIMED_OUT, sentence=UNCONFIRMED)


async def _are_done(acknowledgements: Sequence[asyncio.Future[None]], end_s: float) -> bool:
    """Whether all are done in time."""
    if not acknowledgements:
        return True
    left_s = max(0.0, end_s - asyncio.get_running_loop().time())
    _, late = await asyncio.wait(acknowledgements, timeout=left_s)
    return not late


def _count_fenced(cluster: ControllerContext) -> int:
    return len(cluster.tally.replicas_by_broker().keys() - cluster.brokers.keys())


def _count_offline_replicas(cluster: ControllerContext) -> int:
    by_broker = cluster.tally.replicas_by_broker().items()
    return sum(count for each, count in by_broker if not cluster.is_electable(each))
