"""A consumer in its group: it registers, claims its partitions, and releases those of others.

    something changed: members, topics, brokers, a release
      -> read the registry, work out who is to own what (Algorithm 1)
      -> what is not ours any more: stop giving it, commit, release
      -> what is ours: claim it, and begin at its offset; while another owns it, wait and try again

What stays ours is read on meanwhile; the paper releases all of it first, to the same end. When the
connection to ZooKeeper goes, the session lives on for a while: all is given as before, for a third
of the timeout that the servers granted. Then another may own what we have, so nothing is given
until the connection is back. If the session has ended by then, all claims are void and it begins
anew. What was given and not committed is given again, by whoever owns it next. A process that stood
still for longer than its session may give messages before it hears of that; it commits none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from kdist.client.connector.claim import Claim
from kdist.client.connector.feed import Feed
from kdist.client.connector.registry import Lost, Registry
from kdist.client.connector.settings import ConnectorSettings
from kdist.client.connector.streams import Streams
from kdist.errors import KdistError, UserError
from kdist.model import TopicPartition
from kdist.zk.client import SessionState, ZooKeeper
from kdist.zk.errors import (
    ConnectionLoss,
    CorruptZnode,
    Refused,
    SessionExpired,
    ZooKeeperError,
)

logger = logging.getLogger(__name__)

Tell = Callable[..., Awaitable[object]]
"""Calls an application's function with arguments, where it may take its time."""

_LEAVE_S = 5.0
_RECONNECT_S = 0.1
_GRACE = 1 / 3  # silence is noticed after two thirds of a session's time at the latest


class ConsumerRebalanceListener:
    """Told of rebalances, in a thread of the connector's; to be derived from."""

    def before_releasing_partitions(self, partitions: Mapping[str, set[int]]) -> None:
        """Nothing more is given of these, by topic, but for what is given already."""

    def before_starting_fetchers(
        self, consumer_id: str, partitions: Mapping[str, Mapping[int, str]]
    ) -> None:
        """These are ours now: by topic and number, the stream that gives them."""


class Rebalancer:
    """Owner: the loop. `start` it once, `close` it in the end."""

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
        self.claims: dict[TopicPartition, Claim] = {}
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
        self._untold: list[Claim] = []  # closed, and the listener has not heard of it
        self._doubtful: set[TopicPartition] = set()  # whether our znode is there
        self._tasks: set[asyncio.Task[None]] = set()
        self._hold_timer: asyncio.TimerHandle | None = None
        self._tries = 0
        self._remove_listener = zk.add_listener(self._hear)

    async def start(self) -> None:
        """Be in the group; returns once all was claimed that is free."""
        self._keep(self._run())
        self._keep(self._feed.run())
        if self._settings.auto_commit_enable:
            self._keep(self._commit_regularly())
        await self._settled.wait()

    def look(self) -> None:
        """Something has changed."""
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
            logger.warning("the ZooKeeper session of %s expired: it joins anew", self._consumer)
            self._drop(list(self.claims.values()))
            self.look()

    def _hold(self, is_held: bool) -> None:
        for claim in self.claims.values():
            claim.hold(is_held=is_held)
        self._streams.look()

    def _drop(self, claims: list[Claim]) -> None:
        """They are not ours any more, whatever we do."""
        self._stop_giving(claims)
        for claim in claims:
            del self.claims[claim.partition]

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
                logger.info("rebalancing goes on in a while: %s", error)
            except (CorruptZnode, UserError) as error:
                self._streams.fail(error)
                self._settled.set()
                wait_s = None  # until someone mends it
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass  # it is tried again

    async def _settle(self) -> bool:
        """One rebalance; False if something is in the way."""
        if self._zk.state is SessionState.EXPIRED:
            self._doubtful.clear()  # gone with the session
            await self._zk.reconnect()
        group = await self._registry.read()
        if self._consumer not in group.members:
            if not await self._registry.register():
                logger.warning("another session has our id, %s", self._consumer)
                return False
            group = await self._registry.read()
        self._feed.note_brokers(group.brokers)
        owners = group.owners(self._settings.assignment_strategy)
        mine = {key: owner for key, owner in owners.items() if self._streams.has(owner)}
        await self._release([c for c in self.claims.values() if mine.get(c.partition) != c.owner])
        for partition in self._doubtful - mine.keys():
            await self._registry.disown(partition)
            self._doubtful.discard(partition)
        return await self._claim({key: mine[key] for key in mine.keys() - self.claims.keys()})

    async def _release(self, claims: list[Claim]) -> None:
        """These, and those that were closed before."""
        closed = [claim for claim in self.claims.values() if not claim.is_open]
        claims = list(dict.fromkeys((*claims, *closed)))
        self._stop_giving(claims)
        told, self._untold = self._untold, []
        if told and self._listener is not None:
            await self._tell(self._listener.before_releasing_partitions, _numbers(told))
        await asyncio.gather(*map(self._release_one, claims))

    async def _release_one(self, claim: Claim) -> None:
        try:
            commit = self._settings.auto_commit_enable
            await self._registry.save(claim, release=True, commit=commit)
        except Lost as error:
            logger.warning("a position is not committed: %s", error)
            with contextlib.suppress(Lost):  # nobody is its owner: that is what we want
                await self._registry.save(claim, release=True, commit=False)
        if self.claims.get(claim.partition) is claim:
            del self.claims[claim.partition]

    async def _claim(self, wanted: Mapping[TopicPartition, str]) -> bool:
        """Whether all of these are ours now."""
        claims = [Claim(partition, wanted[partition]) for partition in sorted(wanted)]
        session = self._zk.session_id
        self._doubtful |= wanted.keys()
        got = await asyncio.gather(*map(self._registry.claim, claims))
        if self._zk.state is SessionState.EXPIRED or self._zk.session_id != session:
            raise SessionExpired("what was claimed is gone with its session")
        self._doubtful -= wanted.keys()
        new = [claim for claim, is_ours in zip(claims, got, strict=True) if is_ours]
        self.claims.update({claim.partition: claim for claim in new})
        if new:
            logger.info("%s owns %d more partitions", self._consumer, len(new))
        if new and self._listener is not None:
            await self._tell(self._listener.before_starting_fetchers, self._consumer, _owners(new))
        for claim in new:
            self._keep(self._begin(claim))
        if len(new) < len(claims):
            await self._complain(claims[got.index(False)].partition)
        return len(new) == len(claims)

    async def _complain(self, partition: TopicPartition) -> None:
        self._tries += 1
        if self._tries > self._settings.rebalance_retries_max:
            owner = await self._registry.owner(partition)
            logger.warning(
                "%s is to own %s, and %s still owns it: tried %d times",
                *(self._consumer, partition, owner, self._tries),
            )

    # -- one partition

    async def _begin(self, claim: Claim) -> None:
        """Find out where, and have it fetched from there."""
        while claim.is_open:
            try:
                start = await self._registry.load_offset(claim)
                if start is None:
                    start = await self._feed.first_offset(claim.partition)
                    await self._registry.begin_at(claim, start)
            except ConnectionLoss as error:
                logger.info("%s begins in a while: %s", claim.partition, error)
                await asyncio.sleep(self._settings.retry_s)
            except SessionExpired:
                return  # and the claim with it
            except Lost as error:
                self._give_up(claim, error)
            except KdistError as error:
                self._streams.of(claim).fail(error)
                return
            else:
                if claim.is_open:
                    claim.start = start
                    self._feed.add(claim)
                return

    def _give_up(self, claim: Claim, error: Lost) -> None:
        """Somebody else wrote what is its owner's to write: begin anew, where that says."""
        logger.warning("giving up a claim: %s", error)
        self._stop_giving([claim])
        self.look()

    def _stop_giving(self, claims: list[Claim]) -> None:
        self._untold += [claim for claim in claims if claim.is_open]
        for claim in claims:
            claim.close()
        if claims:
            self._feed.remove(claims)
            self._streams.look()

    # -- commits

    async def commit(self) -> None:
        """Commit what is done with. `ConnectionLoss` and `SessionExpired` if it cannot be."""
        claims = [claim for claim in self.claims.values() if claim.is_open]
        await asyncio.gather(*map(self._commit_one, claims))

    async def _commit_one(self, claim: Claim) -> None:
        try:
            await self._registry.save(claim)
        except Lost as error:
            if claim.is_open:
                self._give_up(claim, error)

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.auto_commit_interval_ms / 1000)
            try:
                await self.commit()
            except ZooKeeperError as error:
                logger.warning("nothing is lost if the next commit succeeds: %s", error)

    # -- the end

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a bug, or a listener's error: nothing is given from here on
            self._stop_giving(list(self.claims.values()))
            self._streams.fail(error)
            self._settled.set()

    async def close(self) -> None:
        """Give nothing more, commit with auto-commit, release all, leave."""
        self._remove_listener()
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        self._stop_giving(list(self.claims.values()))
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._leave()
        except (TimeoutError, ConnectionLoss, SessionExpired) as error:
            logger.warning("%s could not leave its group: %r", self._consumer, error)

    async def _leave(self) -> None:
        await self._release([])
        await self._registry.unregister()


def _numbers(claims: Iterable[Claim]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for claim in claims:
        found.setdefault(claim.partition.topic, set()).add(claim.partition.partition)
    return found


def _owners(claims: Iterable[Claim]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for claim in claims:
        found.setdefault(claim.partition.topic, {})[claim.partition.partition] = claim.owner
    return found
