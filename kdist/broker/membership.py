"""A broker in ZooKeeper: its cluster, and its registration, `/brokers/ids/<id>`, in each session.

When a session expires, its ephemeral registration goes with it. The broker opens another session,
registers again and carries on; the controller sends it what changed. It refuses to register if
ZooKeeper now holds another cluster, as after its data was removed: the logs belong to the old one.

An existing registration may be from this broker's last run, whose session has not expired yet: then
it is deleted at once, together with that session's `/controller`. Otherwise the broker waits out
the session timeout; if the registration is still there, another broker has this id, which is an
error.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from kdist.broker.session_file import SessionFile
from kdist.errors import UserError
from kdist.metrics.broker import BrokerMetrics
from kdist.model import format_uuid
from kdist.zk import znodes
from kdist.zk.client import Delete, Operation, SessionState, ZooKeeper
from kdist.zk.errors import (
    ConnectionLoss,
    CorruptZnode,
    MultiFailed,
    NoAuth,
    NodeExists,
    NoNode,
    SessionExpired,
    ZooKeeperError,
)
from kdist.zk.registration import BrokerRegistration
from kdist.zk.values import ClusterId

logger = logging.getLogger(__name__)

_POLL_MS = 100
_RETRY_MS = 500


class Membership:
    """Owner: the broker. `epoch_known` is called with the broker epoch of each registration.

    `blocking` runs work that may block.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        broker_id: int,
        session_timeout_ms: int,
        metrics: BrokerMetrics,
        epoch_known: Callable[[int], None],
        session_file: SessionFile,
        blocking: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._zk = zk
        self._broker_id = broker_id
        self._path = znodes.BROKER.path(broker_id)
        self._timeout_ms = session_timeout_ms
        self._metrics = metrics
        self._epoch_known = epoch_known
        self._registration: BrokerRegistration | None = None
        self._cluster_id = ""
        self._session_file = session_file
        self._blocking = blocking
        self._last_session = 0  # the last run's, by id
        self._kept_session = 0  # that the file has
        self._registered_in = 0  # the session's id
        self._changed = asyncio.Event()

    async def register(self, registration: BrokerRegistration, cluster_id: str) -> None:
        """Register in this session.

        Raises `UserError` if another broker has the id or ZooKeeper holds another cluster; on
        `ConnectionLoss` and `SessionExpired` call it again.
        """
        self._registration, self._cluster_id = registration, cluster_id
        await require_cluster_id(self._zk, cluster_id)
        await self._keep_session()
        loop = asyncio.get_running_loop()
        end_s = math.inf
        while not await self._try_register(registration):
            end_s = min(end_s, loop.time() + 1.5 * self._timeout_ms / 1000)
            if loop.time() > end_s:
                raise UserError(
                    f"broker.id {self._broker_id} is taken: another broker is registered as"
                    f" {self._path}"
                )
            await asyncio.sleep(_POLL_MS / 1000)

    async def _keep_session(self) -> None:
        """Before anything is registered in a session, so that whatever dies with it is known."""
        key = self._zk.session_key
        if self._kept_session == key.id:
            return
        if not self._kept_session:
            last = self._session_file.load()
            self._last_session = last.id if last else 0
        await self._blocking(partial(self._session_file.save, key))
        self._kept_session = key.id

    async def _try_register(self, registration: BrokerRegistration) -> bool:
        data = znodes.BROKER.encode(registration)
        try:
            await self._zk.create(self._path, data, ephemeral=True)
        except NodeExists:
            pass  # perhaps by us, if the answer to an earlier attempt was lost
        stat = await self._zk.exists(self._path)
        if stat is None:
            return False
        if stat.ephemeral_owner != self._zk.session_id:
            await self._maybe_remove(registration)
            return False
        self._registered_in = self._zk.session_id
        self._epoch_known(stat.czxid)
        logger.info("broker %d is registered, with epoch %d", self._broker_id, stat.czxid)
        return True

    async def _maybe_remove(self, registration: BrokerRegistration) -> None:
        """Remove the registration if it can be nobody's but this broker's last run's.

        It can if its session is the one that the last run kept beside its logs, whatever the host
        is called now; or if it names this host and the very disk whose lock this process holds, as
        after a boot. Host and ports would not tell: cloned machines share them, and would delete
        each other's live registrations. Nor would the disk alone: a cloned disk has its original's
        id.
        """
        try:
            data, stat = await self._zk.get(self._path)
            found = znodes.BROKER.decode(self._path, data)
        except (NoNode, CorruptZnode):
            return
        disk = registration.disk  # None if it could not be noted on a full disk
        is_of_disk = disk is not None and (found.disk, found.host) == (disk, registration.host)
        if not is_of_disk and stat.ephemeral_owner != self._last_session:
            return
        operations: list[Operation] = [Delete(self._path, stat.version)]
        controller = await self._zk.exists(znodes.CONTROLLER.path())
        if controller is not None and controller.ephemeral_owner == stat.ephemeral_owner:
            operations.append(Delete(znodes.CONTROLLER.path()))
        logger.info("removing what the last run of this broker left in ZooKeeper")
        try:
            await self._zk.multi(operations)
        except MultiFailed:
            pass  # it went by itself meanwhile

    # Sessions

    async def keep(self) -> None:
        """Register anew in every new session, until cancelled. Raises UserError."""
        remove_listener = self._zk.add_listener(self._session_changed)
        try:
            while True:
                self._changed.clear()
                await self._maybe_register_again()
                await self._changed.wait()
        finally:
            remove_listener()

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._metrics.expired_sessions += 1
        self._changed.set()

    async def _maybe_register_again(self) -> None:
        assert self._registration is not None, "register comes first"
        try:
            if self._zk.state is SessionState.EXPIRED:
                await self._zk.reconnect()
            is_connected = self._zk.state is SessionState.CONNECTED
            if is_connected and self._registered_in != self._zk.session_id:
                await self.register(self._registration, self._cluster_id)
        except (ConnectionLoss, SessionExpired, NoAuth) as error:
            logger.warning("not registered: %s", error)
            await asyncio.sleep(_RETRY_MS / 1000)
            self._changed.set()

    async def leave(self) -> None:
        """Delete the registration, if ZooKeeper can be reached.

        An earlier session's is gone already, and another broker may have taken the id since.
        """
        if not self._registered_in or self._registered_in != self._zk.session_id:
            return
        try:
            await self._zk.delete(self._path)
        except ZooKeeperError as error:
            logger.warning("could not deregister; the session will expire instead: %s", error)
            return
        await self._blocking(self._session_file.remove)


# The cluster that it belongs to


async def make_starting_paths(zk: ZooKeeper) -> None:
    """Create those persistent znodes that every broker relies on and that are missing."""
    await make_paths(zk, (znodes.BROKERS.path(), *znodes.STARTING_PATHS))


async def make_paths(zk: ZooKeeper, paths: Iterable[str]) -> None:
    """Create those of these znodes that are missing, persistent and empty."""
    for path in paths:
        if await zk.exists(path) is None:
            try:
                await zk.create(path, make_parents=True)
            except NodeExists:
                pass  # another broker is starting too


async def find_cluster_id(zk: ZooKeeper, rng: random.Random) -> str:
    """The cluster id, which the cluster's very first broker generates."""
    path = znodes.CLUSTER_ID.path()
    while True:
        if (found := await znodes.CLUSTER_ID.read(zk)) is not None:
            return found.id
        made = ClusterId(format_uuid(uuid.UUID(int=rng.getrandbits(128), version=4)))
        try:
            await zk.create(path, znodes.CLUSTER_ID.encode(made), make_parents=True)
        except NodeExists:
            pass  # another broker was faster: use its id


async def require_cluster_id(zk: ZooKeeper, cluster_id: str) -> None:
    """Raise `UserError` if ZooKeeper does not hold this cluster any more.

    Its data may have been removed, or replaced by another ensemble's. A broker that registered
    there would be told to create topics of the same names, and delete its logs as those of
    earlier topics.
    """
    found = await znodes.CLUSTER_ID.read(zk)
    if found is None:
        raise UserError(
            f"ZooKeeper does not know cluster {cluster_id!r} any more: {znodes.CLUSTER_ID.path()}"
            " is gone, so its data was removed, or this is another ensemble"
        )
    if found.id != cluster_id:
        raise UserError(
            f"ZooKeeper is that of cluster {found.id!r} now, but this broker belongs to"
            f" {cluster_id!r}: its data was removed, or this is another ensemble"
        )
