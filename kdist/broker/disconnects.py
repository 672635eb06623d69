"""Ends the connections of a principal on all brokers, when a notification in ZooKeeper says so.

For who is to go at once: an open connection outlives the right to open another, as of a revoked
certificate, a token that has not expired, or a user of PLAIN. A broker that has been without a
session for longer than notifications are kept does not hear of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kdist.broker.change_follower import ChangeFollower
from kdist.model import Principal
from kdist.runtime.clock import Clock
from kdist.security.principals import format_principal, parse_principal
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import CorruptZnode

logger = logging.getLogger(__name__)


class Disconnects(ChangeFollower):
    """Owner: the broker."""

    noun = "disconnects"

    def __init__(self, zk: ZooKeeper, clock: Clock, disconnect: Callable[[Principal], int]) -> None:
        """`disconnect` ends a principal's connections, and says how many there were."""
        super().__init__(zk, clock, znodes.DISCONNECTS.path())
        self._disconnect = disconnect

    async def _load_all(self) -> None:
        """Nobody is connected yet."""

    async def _reload_all(self) -> None:
        """What is still told of is read as new."""

    async def _reload(self, path: str, data: bytes) -> None:
        try:
            principal = parse_principal(znodes.DISCONNECT.decode(path, data))
        except ValueError as error:
            raise CorruptZnode(path, str(error)) from None
        count = self._disconnect(principal)
        logger.info("%s was disconnected by command: %d connections", principal, count)


async def order_disconnect(zk: ZooKeeper, principal: Principal) -> None:
    """Have all brokers end the principal's connections."""
    data = znodes.DISCONNECT.encode(format_principal(principal))
    await zk.create(znodes.DISCONNECT.path(), data, sequential=True, make_parents=True)
