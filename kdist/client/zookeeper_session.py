"""Temporary ZooKeeper sessions, to look up brokers and the cluster's state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kdist.client.cluster import Address
from kdist.config.addresses import ConnectString
from kdist.errors import UserError
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import ConnectionLoss, NoNode
from kdist.zk.kazoo_client import KazooZooKeeper

_TIMEOUT_MS = 6_000


@asynccontextmanager
async def zookeeper_at(address: str) -> AsyncIterator[ZooKeeper]:
    """A session for the `async with` block; `address` is as `zookeeper.connect`. `UserError`."""
    keeper = KazooZooKeeper(ConnectString.parse(address), _TIMEOUT_MS, _TIMEOUT_MS)
    try:
        await keeper.connect()
    except ConnectionLoss:
        raise UserError(f"no ZooKeeper answers at {address}") from None
    try:
        yield keeper
    finally:
        await keeper.close()


async def registered_brokers(address: str, protocol: str = "PLAINTEXT") -> list[Address]:
    """The addresses of the brokers registered in an ensemble; `UserError`."""
    async with zookeeper_at(address) as zookeeper:
        return await read_addresses(zookeeper, protocol)


async def read_addresses(zookeeper: ZooKeeper, protocol: str = "PLAINTEXT") -> list[Address]:
    """As `registered_brokers`, in an open session."""
    try:
        names = await zookeeper.children(znodes.BROKERS.path())
    except NoNode:
        return []
    found = []
    for name in sorted(names, key=int):
        path = znodes.BROKER.path(int(name))
        try:
            data = (await zookeeper.get(path)).data
        except NoNode:
            continue  # gone since
        registration = znodes.BROKER.decode(path, data)
        found += [Address(each.host, each.port) for each in registration.speaking(protocol)]
    return found
