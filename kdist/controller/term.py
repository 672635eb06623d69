"""A controller term: what a broker does from its election as controller until it no longer is.

It loads the controller context from ZooKeeper, finishes what its predecessor left half done, and
then handles one event at a time: a watch has fired, a broker has deleted replicas, a client has
sent a request.
A watch only says where to look; what to do follows from what is found there, so that a missed or
repeated event does no harm, and starting up takes the same code as keeping up. Partition states
that someone else has written are taken in. The term ends when another controller was elected, or
the connection is lost; and where topics are not as expected, a new one loads everything again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from kdist.config.broker_config import BrokerConfig
from kdist.controller.channels import (
    SENT_AT_ONCE,
    ChannelContext,
    Connect,
    ControllerChannelManager,
)
from kdist.controller.commands import Command, CommandContext, ElectLeaders
from kdist.controller.context import (
    ControllerContext,
    LiveBroker,
    OutOfDate,
    SettingsOf,
    TermCrashed,
    Topic,
)
from kdist.controller.elections import choose_imbalanced, plan_for_broker_change
from kdist.controller.executor import Executor
from kdist.controller.loading import Loader
from kdist.controller.requests import ControllerIdAndEpoch
from kdist.controller.topics import Planned, new_topic_id
from kdist.controller.writing import FencedWriter
from kdist.errors import ApiError, DiskFailed, Error
from kdist.metrics.controller import ControllerMetrics
from kdist.model import ZERO_UUID, TopicPartition
from kdist.protocol.elect_leaders import PREFERRED
from kdist.runtime.clock import Clock
from kdist.runtime.steps import parted
from kdist.zk import znodes
from kdist.zk.client import Watch, WatchEvent, ZooKeeper
from kdist.zk.errors import ZooKeeperError

logger = logging.getLogger(__name__)

WATCH_CREATED_MS = 250
STATES_AT_ONCE = 500  # taken in, in some 3 ms
FIRST_BALANCE_S = 5  # after the election of a controller; brokers may be starting still
BROKER_CHANGE_MS = 20  # a host is twelve brokers: those that go or come within this are one event

_ENDS_BROKER = (DiskFailed, MemoryError)

Result = TypeVar("Result")
Event = Callable[[], Awaitable[None]]
Process = Callable[["ControllerTerm"], Awaitable[None]]


LoadSettings = Callable[[Mapping[str, uuid.UUID]], Awaitable[None]]
"""Read the settings of topics, given with their ids, that are not known yet; `ZooKeeperError`."""


class ControllerDependencies(NamedTuple):
    """What the broker passes in to its controller. What `config` returns may change over time."""

    zk: ZooKeeper
    clock: Clock
    broker_id: int
    config: Callable[[], BrokerConfig]
    connect: Connect
    listener: str  # the name of the inter-broker listener
    rng: random.Random
    metrics: ControllerMetrics
    on_planned: Callable[[Planned], None]  # called for each topic that is about to be written
    load_settings: LoadSettings
    settings_of: SettingsOf  # of topics that were loaded, as they are now


class ControllerTerm:
    """Owns the controller context and its dependents; only one task, `run`, changes them.

    A bug that a client's command meets costs that command, as long as nothing was begun to be
    written: the context is then what it was. Any other ends the term. Neither costs the broker: an
    order that a client repeats, or a znode that a tool wrote, would end one controller after the
    other.
    """

    def __init__(self, context: ControllerDependencies, writer: FencedWriter) -> None:
        self.cluster = ControllerContext(context.settings_of)
        self._context = context
        self._writer = writer
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._submitted: dict[asyncio.Future[Any], None] = {}  # in their order
        self._watched: set[str] = set()  # topics whose znode has a watch of ours
        self._modified: set[str] = set()  # those of them whose watch has fired: to be read again
        self._loader = Loader(context.zk, context.listener)
        self._channels = ControllerChannelManager(
            ChannelContext(
                cluster=self.cluster,
                controller=ControllerIdAndEpoch(context.broker_id, writer.controller_epoch),
                connect=context.connect,
                metrics=context.metrics,
                on_replicas_deleted=self._on_replicas_deleted,
                on_newer_controller=self._on_newer_controller,
            )
        )
        self._executor = Executor(
            self.cluster, writer, self._loader, self._channels, context.metrics, context.on_planned
        )

    async def run(self) -> None:
        """Handle events until cancelled, after `on_controller_failover`.

        `ZooKeeperError` or `OutOfDate` ends the term.
        """
        while True:
            await self.handle(await self._events.get())

    async def handle(self, event: Event) -> None:
        """Handle one event. Raises what `run` raises."""
        try:
            await event()
        except (ZooKeeperError, OutOfDate, *_ENDS_BROKER):
            raise
        except Exception as bug:
            self._note_bug("the term ends", bug)
            raise TermCrashed(f"the term met a bug: {bug!r}") from bug

    def _note_bug(self, cost: str, bug: Exception) -> None:
        self._context.metrics.crashed += 1
        logger.error("the controller met a bug: %s", cost, exc_info=bug)

    def close(self) -> None:
        """Stop acting at once; unanswered commands fail with NOT_CONTROLLER."""
        self._channels.close()
        self._executor.deletions.close()
        for answer in list(self._submitted):
            if not answer.done():
                answer.set_exception(ApiError(Error.NOT_CONTROLLER))

    def count_ineligible(self) -> int:
        """How many replicas of topics that are being deleted wait for their brokers."""
        return self._executor.deletions.count_left_without(self.cluster.alive)

    def submit(self, command: Command[Result]) -> asyncio.Future[Result]:
        """Queue a command for its turn; ApiError NOT_CONTROLLER if the term ends before that.

        A command is carried out even if its answer is no longer waited for.
        """
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._submitted[answer] = None
        answer.add_done_callback(self._drop_answer)
        self._events.put_nowait(partial(self._carry_out, command, answer))
        return answer

    def _drop_answer(self, answer: asyncio.Future[Any]) -> None:
        self._submitted.pop(answer, None)
        if not answer.cancelled():
            answer.exception()  # retrieved here, as the caller may have given up

    async def _carried_out(self, command: Command[Result]) -> Result:
        context = CommandContext(self._executor, self._context.config(), self._context.rng)
        return await command.carry_out(context)

    async def _carry_out(self, command: Command[Result], answer: asyncio.Future[Result]) -> None:
        written = self._writer.begun
        try:
            result = await self._carried_out(command)
        except (ZooKeeperError, OutOfDate, *_ENDS_BROKER):
            raise
        except Exception as bug:
            if not answer.done():
                answer.set_exception(ApiError(Error.UNKNOWN_SERVER_ERROR))
            if isinstance(bug, AssertionError) or self._writer.begun > written:
                raise  # the context may be wrong
            self._note_bug(f"{type(command).__name__} fails", bug)
            return
        if not answer.done():  # cancelled if the caller has given up
            answer.set_result(result)

    # What has changed

    async def on_controller_failover(self) -> None:
        """Load the controller context, and finish what is half done. Raises what `run` raises."""
        cluster = self.cluster
        # What an earlier controller wrote may not have come to this server yet.
        await self._context.zk.sync(znodes.CONTROLLER_EPOCH.path())
        cluster.brokers = await self._loader.brokers(self._watch_brokers())
        cluster.vetted_disks = await self._loader.vetted_disks()
        deletions = await self._read_deletion_requests()
        names = await self._loader.topic_names(self._watch(ControllerTerm._process_topic_change))
        await self._load_topics(names)
        # Before elections: these get no leader.
        for name in sorted(cluster.topics.keys() & deletions):
            cluster.queue_for_deletion(name)
        logger.info("controller of %d brokers and %d topics", len(cluster.brokers), len(names))
        await self._executor.elect(cluster.partitions(), plan_for_broker_change)
        await self._executor.note_disks()
        for _, broker in sorted(cluster.brokers.items()):
            self._channels.add_broker(broker)
            self._executor.delete_moved(broker.id)
        await self._begin_deletions(deletions)
        await self._executor.resume_moves()
        await self._process_reassignment()
        await self._process_preferred_election()
        self._check_balance_in(FIRST_BALANCE_S)

    async def _process_broker_change(self) -> None:
        """Brokers have registered, gone, or re-registered."""
        before = self.cluster.brokers
        after = await self._loader.brokers(self._watch_brokers())
        gone = {i for i, broker in before.items() if after.get(i) != broker}
        come = {i for i, broker in after.items() if before.get(i) != broker}
        if not gone | come:
            return
        logger.info("brokers gone: %s; registered: %s", sorted(gone), sorted(come))
        self.cluster.brokers = after
        for broker_id in sorted(gone):
            self._channels.remove_broker(broker_id)
        concerned = self.cluster.tally.concerning(gone | come)
        await self._executor.elect(concerned, plan_for_broker_change)
        await self._executor.note_disks()
        self._channels.update_brokers(has_new=bool(come))
        for some in parted(concerned, SENT_AT_ONCE):
            self._channels.update_metadata(some)
            if len(some) == SENT_AT_ONCE:
                await asyncio.sleep(0)
        for broker_id in sorted(come):
            self._channels.add_broker(after[broker_id])
            self._executor.delete_replicas(broker_id)
            self._executor.delete_moved(broker_id)
        await self._executor.complete_moves()
        self._executor.deletions.release_blocked(self.cluster.alive)

    async def _process_topic_change(self) -> None:
        """Topics were created, by us or by someone else, or are gone.

        Those that we created are known already and lack only a watch. Setting it is put off by
        `WATCH_CREATED_MS`, so that the client that created them is answered first.
        """
        names = set(
            await self._loader.topic_names(self._watch(ControllerTerm._process_topic_change))
        )
        for name in sorted(self.cluster.topics.keys() - names):
            self._executor.forget(self.cluster.topics[name])
        self._watched &= names
        self.cluster.unreadable &= names
        unwatched = names - self._watched
        await self._load_and_elect(sorted(unwatched - self.cluster.topics.keys()))
        if unwatched & self.cluster.topics.keys():
            loop = asyncio.get_running_loop()
            loop.call_later(
                WATCH_CREATED_MS / 1000, self._events.put_nowait, self._watch_created_topics
            )

    async def _watch_created_topics(self) -> None:
        """Read and watch the topics that we created, to learn if someone else writes them.

        Not those that are being deleted: their deletion would have to wait for it.
        """
        kept = self.cluster.topics.keys() - self.cluster.queued_for_deletion
        await self._load_and_elect(sorted(kept - self._watched))

    async def _process_topic_modifications(self) -> None:
        """Topics' znodes were written or removed, by us or by someone else."""
        unreadable = self.cluster.unreadable
        names, self._modified = self._modified & (self._watched | unreadable), set()
        self._watched -= names
        left = names & (self.cluster.topics.keys() | unreadable)  # others we removed ourselves
        await self._load_and_elect(sorted(left))

    async def _process_topic_deletions(self) -> None:
        """Somebody asked for topics to be deleted."""
        new = await self._read_deletion_requests() - self.cluster.queued_for_deletion
        await self._load_topics(sorted(new - self.cluster.topics.keys()))
        await self._begin_deletions(new)

    def note_settings_change(self, topic: str | None) -> None:
        """A topic's settings have changed; None: the brokers' defaults for all topics."""
        self._events.put_nowait(partial(self._process_settings_change, topic))

    async def _process_settings_change(self, name: str | None) -> None:
        """What may be elected, and who is eligible, depends on settings."""
        cluster = self.cluster
        topic = None if name is None else cluster.topics.get(name)
        if name is None:
            await self._executor.elect(cluster.partitions(), plan_for_broker_change)
        elif topic is not None and name not in cluster.queued_for_deletion:
            await self._executor.elect(topic.partitions, plan_for_broker_change)

    async def _process_preferred_election(self) -> None:
        """An old tool asks for preferred leaders."""
        watch = self._watch(ControllerTerm._process_preferred_election)
        asked = await self._loader.preferred_election(watch)
        if asked is not None:
            result = await self._carried_out(ElectLeaders(asked.partitions, PREFERRED))
            for partition, fault in result.outcomes.items():
                if fault is not None and fault.error is not Error.ELECTION_NOT_NEEDED:
                    logger.warning("%s has no preferred leader: %s", partition, fault.detail)
            await self._executor.complete_preferred_election()

    async def _process_reassignment(self) -> None:
        """An old tool asks for partitions to be moved."""
        watch = self._watch(ControllerTerm._process_reassignment)
        asked = await self._loader.reassignment(watch)
        if asked is not None:
            await self._executor.request_moves(asked.targets)

    # The balance of leaders

    def _check_balance_in(self, delay_s: float) -> None:
        term, loop = weakref.ref(self), asyncio.get_running_loop()

        def due() -> None:
            if (this := term()) is not None:
                this._events.put_nowait(this._process_balance_check)

        loop.call_later(delay_s, due)

    async def _process_balance_check(self) -> None:
        """Give some partitions back to their preferred replicas, as far as settings say."""
        settings = self._context.config().broker
        if settings.auto_leader_rebalance_enable:
            chosen = choose_imbalanced(
                self.cluster,
                settings.leader_imbalance_per_broker_percentage,
                settings.leader_imbalance_elections_per_check,
            )
            await self._carried_out(ElectLeaders(chosen, PREFERRED))
        self._check_balance_in(settings.leader_imbalance_check_interval_seconds)

    async def _process_deleted_replicas(
        self, broker_id: int, partitions: Collection[TopicPartition]
    ) -> None:
        self._executor.deletions.complete_replicas(broker_id, partitions)
        await self._executor.complete_deletions()
        await self._executor.complete_removals(broker_id, partitions)

    # What follows

    async def _load_and_elect(self, names: list[str]) -> None:
        """Load topics that are new or were written; give new partitions their first state."""
        topics, deleted = self.cluster.topics, self.cluster.queued_for_deletion
        with_state = await self._load_topics(names)
        self._channels.update_states([each for each in with_state if each.topic not in deleted])
        living = [topics[name] for name in names if name in topics and name not in deleted]
        partitions = (each for topic in living for each in topic.partitions)
        await self._executor.elect(partitions, plan_for_broker_change)
        await self._executor.complete_moves()

    async def _load_topics(self, names: Collection[str]) -> list[TopicPartition]:
        """Take topics over from ZooKeeper, and watch them.

        Returns the partitions of topics new to the controller context that have a state already.
        """
        cluster = self.cluster
        found, unreadable = await self._loader.topics(names, self._watch_topic)
        new = [topic for topic in found if topic.name not in cluster.topics]
        partitions = (each for topic in new for each in topic.partitions)
        states, stateless = await self._loader.states(partitions)
        unreadable |= stateless
        readable = {topic.name: topic for topic in found if topic.name not in unreadable}
        await self._context.load_settings({name: topic.id for name, topic in readable.items()})
        cluster.unreadable -= readable.keys()
        cluster.unreadable |= unreadable
        taken = 0
        for topic in readable.values():
            await self._put_topic(topic)
            taken += len(topic.assignment)
            if taken >= STATES_AT_ONCE:
                taken = 0
                await asyncio.sleep(0)
        for some in parted(states, STATES_AT_ONCE):
            for each in some:
                if each.partition.topic in cluster.topics:
                    cluster.put_state(each.partition, each.state, each.mzxid)
            if len(some) == STATES_AT_ONCE:
                await asyncio.sleep(0)
        return [each.partition for each in states]

    async def _put_topic(self, found: Topic) -> None:
        """Take one topic over. If an old tool wrote it without an id, it keeps its last or gets a
        new one."""
        self._watched.add(found.name)
        known = self.cluster.topics.get(found.name)
        if found.id == ZERO_UUID:
            topic_id = known.id if known else new_topic_id(self._context.rng)
            await self._executor.assign([found._replace(id=topic_id)])
        elif known is not None and known.id != found.id:
            raise OutOfDate(f"topic {found.name} was re-created by someone else")
        else:
            self.cluster.put_topic(found)

    async def _read_deletion_requests(self) -> set[str]:
        """The topics whose deletion was asked for; while deletion is off, refuses them all."""
        watch = self._watch(ControllerTerm._process_topic_deletions)
        names = set(await self._loader.deletion_requests(watch))
        if self._context.config().broker.delete_topic_enable:
            return names
        for name in sorted(names):
            await self._executor.refuse_deletion(name, "deleting topics is off")
        return set()

    async def _begin_deletions(self, names: Iterable[str]) -> None:
        found = {name: self.cluster.topics.get(name) for name in sorted(names)}
        for name, topic in found.items():
            if topic is None:
                is_there = name in self.cluster.unreadable
                why = "its znodes are corrupt" if is_there else "there is no such topic"
                await self._executor.refuse_deletion(name, why)
        living = [topic for topic in found.values() if topic]
        if living:
            await self._executor.delete(living)

    # Where events come from

    def _watch_brokers(self) -> Watch:
        return self._watch(ControllerTerm._process_broker_change, BROKER_CHANGE_MS)

    def _watch(self, process: Process, delay_ms: float = 0) -> Watch:
        term = weakref.ref(self)  # a watch stays until it fires, and may outlive the term by days
        loop = asyncio.get_running_loop()

        def fired(_: WatchEvent) -> None:
            if (this := term()) is not None:
                loop.call_later(delay_ms / 1000, this._events.put_nowait, partial(process, this))

        return fired

    def _watch_topic(self, name: str) -> Watch:
        """One event covers all topics written before it is handled."""
        term = weakref.ref(self)

        def fired(_: WatchEvent) -> None:
            if (this := term()) is not None:
                if not this._modified:
                    this._events.put_nowait(this._process_topic_modifications)
                this._modified.add(name)

        return fired

    def _on_replicas_deleted(
        self, broker: LiveBroker, partitions: Collection[TopicPartition]
    ) -> None:
        self._events.put_nowait(partial(self._process_deleted_replicas, broker.id, partitions))

    def _on_newer_controller(self) -> None:
        self._events.put_nowait(self._process_newer_controller)

    async def _process_newer_controller(self) -> None:
        raise OutOfDate("a broker knows a newer controller")
