"""A broker's candidacy for controller, and where its request handlers create and delete topics.

Each broker runs one. Once registered, it claims `/controller` whenever that is free, and reigns
while its session is CONNECTED. SUSPENDED already ends the reign, since from then on another broker
may be elected without this one noticing. If the session survives, the broker finds its claim still
in place and starts a new reign, which loads the cluster again.

While it is unknown whether this broker is the controller, handlers wait, up to their requests'
timeouts. Without a connection to ZooKeeper they wait at most the session timeout: after that the
session has expired, and another broker may have claimed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from kdist.controller.cluster import Cluster, OutOfDate
from kdist.controller.commands import (
    Command,
    CommandResult,
    CreateTopics,
    DeleteTopics,
    GrowTopics,
    Outcome,
)
from kdist.controller.outlook import Outlook
from kdist.controller.reign import Reign, World
from kdist.controller.states import ONLINE
from kdist.controller.writing import Writer
from kdist.errors import ApiError, Error
from kdist.metrics.declare import Reading
from kdist.protocol.create_partitions import GrownTopic
from kdist.protocol.create_topics import NewTopic
from kdist.protocol.delete_topics import DoomedTopic
from kdist.zk import znodes
from kdist.zk.client import SessionState, WatchEvent, WatchKind
from kdist.zk.election import Leadership, claim, resign
from kdist.zk.errors import ZooKeeperError

logger = logging.getLogger(__name__)

RETRY_MS = 200  # between a reign that ended in doubt and the next claim
NOT_LOADED = "The controller has not loaded the cluster in time."


class Controller:
    """Owner: the loop. The broker runs `run` as a task, and `resign` before it closes ZooKeeper."""

    def __init__(self, context: World) -> None:
        self.on_loss: list[Callable[[], None]] = []  # called once it is surely not the controller
        self._context = context
        self._outlook = Outlook()
        self._giving_up: asyncio.TimerHandle | None = None  # while ZooKeeper cannot be reached
        self._leadership: Leadership | None = None
        self._reign: Reign | None = None
        self._reigning: asyncio.Task[None] | None = None
        self._is_standing = True
        self._watches_registration = False  # one watch is enough for all the elections of a session
        self._changed = asyncio.Event()  # the session's state, or who is controller
        metrics = context.metrics
        metrics.brokers = self._reading(lambda cluster: len(cluster.brokers))
        metrics.topics = self._reading(lambda cluster: sum(1 for _ in cluster.living_topics()))
        metrics.partitions = self._reading(lambda cluster: sum(1 for _ in cluster.partitions()))
        metrics.offline_partitions = self._reading(_count_offline)
        metrics.doomed_topics = self._reading(lambda cluster: len(cluster.doomed))

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows; it may still be loading."""
        return self._reign is not None

    @property
    def listener(self) -> str:
        """The name of the inter-broker listener."""
        return self._context.listener

    def broker_epoch(self, broker_id: int) -> int | None:
        """The epoch of a registered broker; None for any other, and while not active."""
        live = self._reign.cluster.brokers.get(broker_id) if self._reign else None
        return None if live is None else live.epoch

    # The life of a candidate

    async def run(self) -> None:
        """Stand for election, and reign when elected, until cancelled. Raises bugs only."""
        remove_listener = self._context.zk.add_listener(self._hear_session)
        try:
            while True:
                self._changed.clear()
                if self._is_standing and self._context.zk.state is SessionState.CONNECTED:
                    await self._try_campaign()
                await self._changed.wait()
        finally:
            remove_listener()
            self._is_standing = False
            self._lose()

    async def resign(self) -> None:
        """Stop acting as controller and stop standing, so that another broker is elected now.

        `ZooKeeperError` if the claim cannot be deleted now; it goes when the session ends.
        """
        self._is_standing = False
        self._lose()
        if self._leadership is not None:
            await resign(self._context.zk, self._leadership)

    async def _try_campaign(self) -> None:
        try:
            await self._campaign()
        except (ZooKeeperError, OutOfDate) as error:
            logger.warning("not the controller; will try again: %s", error)
            await asyncio.sleep(RETRY_MS / 1000)
            self._changed.set()

    async def _campaign(self) -> None:
        """Claim, and reign until that ends; return at once if another broker is the controller."""
        context = self._context
        if not await self._is_registered():
            return  # `_hear_registration` starts the next try
        leadership = await claim(context.zk, context.broker_id, context.clock.now_ms())
        stat = await context.zk.exists(znodes.CONTROLLER.path(), self._hear_controller)
        if stat is None:
            self._changed.set()  # deleted between the two requests: try again
        elif leadership is not None and not self._is_standing:
            await resign(
                context.zk, leadership
            )  # `resign` was called while the claim was under way
        elif leadership is not None and stat.ephemeral_owner == context.zk.session_id:
            await self._reign_with(leadership)
        else:
            self._lose()

    async def _is_registered(self) -> bool:
        """Only a registered broker stands; otherwise it would place topics without itself."""
        zk = self._context.zk
        path = znodes.BROKER.path(self._context.broker_id)
        watch = None if self._watches_registration else self._hear_registration
        self._watches_registration = True  # before the request: the watch may have fired by its end
        try:
            stat = await zk.exists(path, watch)
        except ZooKeeperError:
            self._watches_registration = False
            raise
        return stat is not None and stat.ephemeral_owner == zk.session_id

    async def _reign_with(self, leadership: Leadership) -> None:
        context = self._context
        self._leadership = leadership
        self._reign = reign = Reign(context, Writer(context.zk, leadership))
        task = self._reigning = asyncio.create_task(self._rule(reign), name="controller")
        context.metrics.is_active, context.metrics.epoch = 1, leadership.epoch
        logger.info("broker %d is the controller of epoch %d", context.broker_id, leadership.epoch)
        try:
            await asyncio.wait([task])
        finally:
            self._end_reign()
        if not task.cancelled():
            task.result()

    async def _rule(self, reign: Reign) -> None:
        await reign.take_up()
        self._outlook.settle(reign)
        await reign.run()

    def _end_reign(self) -> None:
        """End the reign at once, whatever is under way; whether another follows is not known."""
        if self._is_standing:
            self._outlook.open()
        if self._reign is not None and self._reigning is not None:
            self._reigning.cancel()
            self._reign.close()
            self._reign = None
            self._context.metrics.is_active = 0

    def _lose(self) -> None:
        """Another broker is the controller, or nobody."""
        self._end_reign()
        self._outlook.settle(None)
        self._tell_loss()

    def _tell_loss(self) -> None:
        for hear in self.on_loss:
            hear()

    def _hear_session(self, state: SessionState) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
        if state is SessionState.CONNECTED:
            self._end_reign()
        elif self._reign is not None or not self._outlook.is_known:  # else another is controller
            self._end_reign()
            timeout_s = self._context.config().zookeeper.session_timeout_ms / 1000
            self._giving_up = asyncio.get_running_loop().call_later(timeout_s, self._lose)
        if state is SessionState.EXPIRED:
            self._tell_loss()
        self._changed.set()

    def _hear_controller(self, event: WatchEvent) -> None:
        """`/controller` is gone: another broker's, or our own, which an operator may delete."""
        if event.kind is not WatchKind.LOST:  # a lost connection is `_hear_session`'s business
            self._end_reign()
        self._changed.set()

    def _hear_registration(self, _: WatchEvent) -> None:
        """The registration changed: this session's was made, or the previous one's is gone."""
        self._watches_registration = False
        self._changed.set()

    # What handlers ask for

    async def create_topics(
        self, topics: Sequence[NewTopic], timeout_ms: int, validate_only: bool = False
    ) -> list[Outcome]:
        """Create topics and wait, at most `timeout_ms`, until all live brokers know them.

        Outcomes are in the order of `topics`. REQUEST_TIMED_OUT: created but not yet known to every
        broker, or the controller was not ready; the sentence says which. NOT_CONTROLLER: ask the
        controller; the topics may have been created all the same.
        """
        return await self._ask(CreateTopics(topics, validate_only, {}), timeout_ms)

    async def create_partitions(
        self, topics: Sequence[GrownTopic], timeout_ms: int, validate_only: bool = False
    ) -> list[Outcome]:
        """Add partitions; waits and answers as `create_topics` does."""
        return await self._ask(GrowTopics(topics, validate_only, {}), timeout_ms)

    async def delete_topics(self, topics: Sequence[DoomedTopic], timeout_ms: int) -> list[Outcome]:
        """Delete topics and wait, at most `timeout_ms`, until they are gone.

        A deletion is not finished while a broker with replicas is down, but this does not wait for
        such a broker. Outcomes are as for `create_topics`.
        """
        return await self._ask(DeleteTopics(topics), timeout_ms)

    async def _ask(self, command: Command, timeout_ms: int) -> list[Outcome]:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_ms / 1000
        try:
            outcomes, settling = await self._carry_out(command, end_s)
        except TimeoutError:
            return _all_failed(command, Error.REQUEST_TIMED_OUT, NOT_LOADED)
        except ApiError as failure:
            return _all_failed(command, failure.error)
        if settling:
            _, late = await asyncio.wait(settling, timeout=max(0.0, end_s - loop.time()))
            if late:
                return [_timed_out(outcome) for outcome in outcomes]
        return outcomes

    async def _carry_out(self, command: Command, end_s: float) -> CommandResult:
        """Have the reign carry it out. ApiError NOT_CONTROLLER; `TimeoutError` if unknown in time.

        If the reign ends meanwhile, a creation or growth is tried again in this broker's next one.
        """
        loop = asyncio.get_running_loop()
        while True:
            reign = await self._outlook.reign((end_s - loop.time()) * 1000)
            if reign is None:
                raise ApiError(Error.NOT_CONTROLLER)
            try:
                return await reign.ask(command)
            except ApiError:
                if isinstance(command, DeleteTopics):
                    raise

    def _reading(self, count: Callable[[Cluster], int]) -> Reading:
        """A metric counted from the picture; NaN while this broker is not the controller."""
        return lambda: float("nan") if self._reign is None else count(self._reign.cluster)


def _all_failed(command: Command, error: Error, sentence: str = "") -> list[Outcome]:
    return [Outcome(name, error, sentence or error.sentence) for name in command.names]


def _timed_out(outcome: Outcome) -> Outcome:
    if outcome.error is not Error.NONE:
        return outcome
    sentence = "The change is made, but some brokers have not confirmed it yet."
    return outcome._replace(error=Error.REQUEST_TIMED_OUT, sentence=sentence)


def _count_offline(cluster: Cluster) -> int:
    return sum(cluster.partition_state(each) is not ONLINE for each in cluster.partitions())
