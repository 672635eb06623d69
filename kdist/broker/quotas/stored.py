"""Clients' quotas as stored in `/config/clients`: read at start, and as they change.

While ZooKeeper is lost, those that were read last stay in force. What is stored and is no quota,
or has no possible value, is ignored.
"""

from __future__ import annotations

import logging

from kdist.broker.quotas.limits import Limits, usable
from kdist.broker.quotas.quotas import Quotas
from kdist.broker.settings.stored import Overrides, decode_stored
from kdist.zk import znodes
from kdist.zk.client import Znode, ZooKeeper
from kdist.zk.znodes import DEFAULT_ENTITY

logger = logging.getLogger(__name__)

_READS_AT_ONCE = 200
_ROW = znodes.CLIENT_SETTINGS


class StoredQuotas:
    """Owner: the broker. Has `quotas` follow what is stored."""

    def __init__(self, zk: ZooKeeper, quotas: Quotas) -> None:
        self._zk = zk
        self.quotas = quotas

    async def load_all(self) -> None:
        """Read all quotas that there are."""
        stored = await read_all(self._zk)
        self.quotas.replace({name: _limits(name, each) for name, each in stored.items()})

    reload_all = load_all

    async def reload(self, *nodes: str) -> None:
        """Re-read the quotas of clients, by the names of their znodes."""
        for node in nodes:
            client_id = client_of(node)
            if client_id is not None:
                await self.reload_client(client_id)

    async def reload_client(self, client_id: str) -> None:
        """Re-read the quotas of a client, or of `DEFAULT_ENTITY`."""
        (znode,) = await self._zk.get_many([_ROW.path(client_id)])
        self.quotas.set(client_id, _limits(client_id, _decoded(client_id, znode)))


async def read_all(zk: ZooKeeper) -> dict[str, Overrides]:
    """What is stored, by client id, and by `DEFAULT_ENTITY` for the default."""
    nodes = await zk.children(_ROW.parent)
    names = [name for node in nodes if (name := client_of(node)) is not None]
    found: dict[str, Overrides] = {}
    for start in range(0, len(names), _READS_AT_ONCE):
        some = names[start : start + _READS_AT_ONCE]
        znodes_read = await zk.get_many([_ROW.path(name) for name in some])
        for name, znode in zip(some, znodes_read, strict=True):
            found[name] = _decoded(name, znode)
    return found


def client_of(node: str) -> str | None:
    """The client id that a znode's name stands for; None for one that kdist would not write."""
    names = _ROW.names(f"{_ROW.parent}/{node}")
    if names is None or (names[0] == DEFAULT_ENTITY) != (node == DEFAULT_ENTITY):
        return None
    return names[0]


def _decoded(name: str, znode: Znode | None) -> Overrides:
    return decode_stored(_ROW, _ROW.path(name), znode)


def _limits(name: str, stored: Overrides) -> Limits:
    limits, faults = usable(stored)
    for fault in faults:
        logger.warning("ignored a quota of client %r: %s", name, fault)
    return limits
