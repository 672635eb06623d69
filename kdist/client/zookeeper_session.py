"""A ZooKeeper session for the time being, for who looks up there where brokers are, or how."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kdist.errors import UserError
from kdist.zk.client import ZooKeeper
from kdist.zk.connect_string import ConnectString
from kdist.zk.errors import ConnectionLoss
from kdist.zk.kazoo_client import KazooZooKeeper

_TIMEOUT_MS = 6_000


@asynccontextmanager
async def zookeeper_at(address: str) -> AsyncIterator[ZooKeeper]:
    """A session for the time being; `address` is as `zookeeper.connect`. `UserError`."""
    keeper = KazooZooKeeper(ConnectString.parse(address), _TIMEOUT_MS, _TIMEOUT_MS)
    try:
        await keeper.connect()
    except ConnectionLoss:
        raise UserError(f"no ZooKeeper answers at {address}") from None
    try:
        yield keeper
    finally:
        await keeper.close()
