"""A consumer in its group: registers, claims the partitions assigned to it, releases the others.

    something changed: members, topics, brokers, a release
      -> read the registry, compute the assignment (Algorithm 1)
      -> partitions no longer ours: stop delivering, commit, release
      -> partitions newly ours: claim, start at the committed offset; retry while another owns them

Partitions that stay ours are read throughout; the paper releases everything first, to the same end.

When the connection to ZooKeeper is lost, the session lives on for a while. Messages are delivered
for another third of the session timeout that the servers granted. After that another consumer may
own our partitions, so nothing is delivered until the connection is back. If the session has ended
by then, nothing is owned any more, and the consumer registers again. Messages delivered but not
committed are delivered again by the next owner. A process that was paused for longer than its
session may deliver messages before it learns of that, but it cannot commit them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from kdist.classic.connector.feed import Feed
from kdist.classic.connector.ownership import Ownership
from kdist.classic.connector.registry import Lost, Registry
from kdist.classic.connector.settings import ConnectorSettings
from kdist.classic.connector.stream import Streams
from kdist.errors import KdistError, UserError
from kdist.model import TopicPartition
from kdist.zk.client import SessionState, ZooKeeper
from kdist.zk.errors import ConnectionLoss, CorruptZnode, Refused, SessionExpired, ZooKeeperError

logger = logging.getLogger(__name__)

Tell = Callable[..., Awaitable[object]]
"""Calls an application's function, in a thread where it may block."""

_LEAVE_S = 5.0
_RECONNECT_S = 0.1
_GRACE = 1 / 3  # of the session; a silent server is noticed after two thirds of it at the latest


class ConsumerRebalanceListener:
    """Called on rebalances, in a thread of the connector's. Override the methods you need."""

    def before_releasing_partitions(self, partitions: Mapping[str, set[int]]) -> None:
        """Streams deliver no more messages of these partitions, given as numbers by topic."""

    def before_starting_fetchers(
        self, consumer_id: str, partitions: Mapping[str, Mapping[int, str]]
    ) -> None:
        """These are now owned: by topic and partition number, the stream that delivers them."""


class Rebalancer:
    """Owner: the loop. Call `start` once, and `close` when done."""

    def __init__(
        self,
        zk: ZooKeeper,
        registry: Registry,
        settings: ConnectorSettings,
        streams: Streams,
        feed: Feed,
        tell: Tell,
        listener: ConsumerRebalanceListener | None,
    ) -> None:
        self.owned: dict[TopicPartition, Ownership] = {}
        self._zk = zk
        self._registry = registry
        self._settings = settings
        self._consumer = registry.consumer
        self._streams = streams
        self._feed = feed
        self._tell = tell
        self._listener = listener
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._untold: list[Ownership] = []  # closed, and the listener was not told yet
        self._doubtful: set[TopicPartition] = set()  # our owner znode may or may not exist
        self._tasks: set[asyncio.Task[None]] = set()
        self._hold_timer: asyncio.TimerHandle | None = None
        self._tries = 0
        self._remove_listener = zk.add_listener(self._hear)

    async def start(self) -> None:
        """Join the group; returns once the first rebalance has claimed what is free."""
        self._keep(self._run())
        self._keep(self._feed.run())
        if self._settings.auto_commit_enable:
            self._keep(self._commit_regularly())
        await self._settled.wait()

    def look(self) -> None:
        """Rebalance soon, as something has changed."""
        self._changed.set()

    # -- the session

    def _hear(self, state: SessionState) -> None:
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        if state is SessionState.SUSPENDED:
            delay_s = self._zk.session_timeout_ms / 1000 * _GRACE
            loop = asyncio.get_running_loop()
            self._hold_timer = loop.call_later(delay_s, self._hold, True)
        elif state is SessionState.CONNECTED:
            self._registry.forget_watches()
            self._hold(is_held=False)
            self.look()
        elif state is SessionState.EXPIRED:
            logger.warning("the ZooKeeper session of %s expired: rejoining", self._consumer)
            self._drop(list(self.owned.values()))
            self.look()

    def _hold(self, is_held: bool) -> None:
        for ownership in self.owned.values():
            ownership.hold(is_held=is_held)
        self._streams.look()

    def _drop(self, owned: list[Ownership]) -> None:
        """Give up what ended with its session."""
        self._stop_giving(owned)
        for ownership in owned:
            del self.owned[ownership.partition]

    # -- rebalancing

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            wait_s: float | None = self._settings.retry_s
            try:
                if await self._settle():
                    self._tries = 0
                    wait_s = None
                self._settled.set()
            except SessionExpired:
                wait_s = _RECONNECT_S  # `_settle` opens another
            except (ConnectionLoss, Refused) as error:
                logger.info("rebalancing is retried: %s", error)
            except (CorruptZnode, UserError) as error:
                self._streams.fail(error)
                self._settled.set()
                wait_s = None  # until the registry changes
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass  # time to retry

    async def _settle(self) -> bool:
        """Do one rebalance; False if it has to be retried later."""
        if self._zk.state is SessionState.EXPIRED:
            self._doubtful.clear()  # the znodes are gone with the session
            await self._zk.reconnect()
        group = await self._registry.read()
        if self._consumer not in group.members:
            if not await self._registry.register():
                logger.warning("another session is registered as %s", self._consumer)
                return False
            group = await self._registry.read()
        self._feed.note_brokers(group.brokers)
        owners = group.owners(self._settings.assignment_strategy)
        mine = {key: owner for key, owner in owners.items() if self._streams.has(owner)}
        await self._release([c for c in self.owned.values() if mine.get(c.partition) != c.owner])
        for partition in self._doubtful - mine.keys():
            await self._registry.disown(partition)
            self._doubtful.discard(partition)
        return await self._claim({key: mine[key] for key in mine.keys() - self.owned.keys()})

    async def _release(self, owned: list[Ownership]) -> None:
        """Release these, and those that were closed before."""
        closed = [ownership for ownership in self.owned.values() if not ownership.is_open]
        owned = list(dict.fromkeys((*owned, *closed)))
        self._stop_giving(owned)
        told, self._untold = self._untold, []
        if told and self._listener is not None:
            await self._tell(self._listener.before_releasing_partitions, _numbers(told))
        await asyncio.gather(*map(self._release_one, owned))

    async def _release_one(self, ownership: Ownership) -> None:
        try:
            commit = self._settings.auto_commit_enable
            await self._registry.save(ownership, release=True, commit=commit)
        except Lost as error:
            logger.warning("a position was not committed: %s", error)
            with contextlib.suppress(Lost):  # it is not ours any more, so there is no release to do
                await self._registry.save(ownership, release=True, commit=False)
        if self.owned.get(ownership.partition) is ownership:
            del self.owned[ownership.partition]

    async def _claim(self, wanted: Mapping[TopicPartition, str]) -> bool:
        """Claim these partitions, and start reading them; False if some are not ours yet."""
        owned = [Ownership(partition, wanted[partition]) for partition in sorted(wanted)]
        session = self._zk.session_id
        self._doubtful |= wanted.keys()
        got = await asyncio.gather(*map(self._registry.claim, owned))
        if self._zk.state is SessionState.EXPIRED or self._zk.session_id != session:
            raise SessionExpired("what was claimed is gone with its session")
        self._doubtful -= wanted.keys()
        new = [ownership for ownership, is_ours in zip(owned, got, strict=True) if is_ours]
        self.owned.update({ownership.partition: ownership for ownership in new})
        if new:
            logger.info("%s owns %d more partitions", self._consumer, len(new))
        if new and self._listener is not None:
            await self._tell(self._listener.before_starting_fetchers, self._consumer, _owners(new))
        for ownership in new:
            self._keep(self._begin(ownership))
        if len(new) < len(owned):
            await self._complain(owned[got.index(False)].partition)
        return len(new) == len(owned)

    async def _complain(self, partition: TopicPartition) -> None:
        self._tries += 1
        if self._tries > self._settings.rebalance_retries_max:
            owner = await self._registry.owner(partition)
            logger.warning(
                "%s should own %s, but %s still owns it: tried %d times",
                *(self._consumer, partition, owner, self._tries),
            )

    # -- one partition

    async def _begin(self, ownership: Ownership) -> None:
        """Look up where to start, and have the partition fetched from there."""
        while ownership.is_open:
            try:
                start = await self._registry.load_offset(ownership)
                if start is None:
                    start = await self._feed.first_offset(ownership.partition)
                    await self._registry.begin_at(ownership, start)
            except ConnectionLoss as error:
                logger.info("starting %s is retried: %s", ownership.partition, error)
                await asyncio.sleep(self._settings.retry_s)
            except SessionExpired:
                return  # the ownership ended with the session
            except Lost as error:
                self._give_up(ownership, error)
            except KdistError as error:
                self._streams.of(ownership).fail(error)
                return
            else:
                if ownership.is_open:
                    ownership.start = start
                    self._feed.add(ownership)
                return

    def _give_up(self, ownership: Ownership, error: Lost) -> None:
        """Somebody else wrote the partition's offset: claim it again, from that offset."""
        logger.warning("giving up a partition: %s", error)
        self._stop_giving([ownership])
        self.look()

    def _stop_giving(self, owned: list[Ownership]) -> None:
        self._untold += [ownership for ownership in owned if ownership.is_open]
        for ownership in owned:
            ownership.close()
        if owned:
            self._feed.remove(owned)
            self._streams.look()

    # -- commits

    async def commit(self) -> None:
        """Commit the processed positions; raises `ConnectionLoss` and `SessionExpired`."""
        owned = [ownership for ownership in self.owned.values() if ownership.is_open]
        await asyncio.gather(*map(self._commit_one, owned))

    async def _commit_one(self, ownership: Ownership) -> None:
        try:
            await self._registry.save(ownership)
        except Lost as error:
            if ownership.is_open:
                self._give_up(ownership, error)

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.auto_commit_interval_ms / 1000)
            try:
                await self.commit()
            except ZooKeeperError as error:
                logger.warning("an auto-commit failed, the next one will retry: %s", error)

    # -- the end

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a bug, or a listener's error: deliver nothing from here on
            self._stop_giving(list(self.owned.values()))
            self._streams.fail(error)
            self._settled.set()

    async def close(self) -> None:
        """Stop delivering, commit if auto-commit is on, release everything, and leave the group."""
        self._remove_listener()
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        self._stop_giving(list(self.owned.values()))
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._leave()
        except (TimeoutError, ConnectionLoss, SessionExpired) as error:
            logger.warning("%s could not leave its group: %r", self._consumer, error)

    async def _leave(self) -> None:
        await self._release([])
        await self._registry.unregister()


def _numbers(owned: Iterable[Ownership]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for ownership in owned:
        found.setdefault(ownership.partition.topic, set()).add(ownership.partition.partition)
    return found


def _owners(owned: Iterable[Ownership]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for ownership in owned:
        found.setdefault(ownership.partition.topic, {})[ownership.partition.partition] = (
            ownership.owner
        )
    return found
