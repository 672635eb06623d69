"""Temporary ZooKeeper sessions, to look up brokers and the cluster's state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from kdist.client.cluster import Address
from kdist.config.addresses import ConnectString
from kdist.config.broker import ZooKeeperSettings
from kdist.config.load import load_broker
from kdist.errors import UserError
from kdist.runtime.disk import Disk
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import ConnectionLoss, NoNode, Untrusted
from kdist.zk.kazoo_client import KazooZooKeeper
from kdist.zk.security import IN_CLEAR, ZooKeeperSecurity, read_security

_TIMEOUT_MS = 6_000


@asynccontextmanager
async def zookeeper_at(address: str) -> AsyncIterator[ZooKeeper]:
    """A session for the `async with` block; `UserError`.

    `address` is as `zookeeper.connect`, or the absolute path of a broker's settings, by which the
    session is secured.
    """
    if address.startswith("/"):
        text = _read_settings(address)
        session = zookeeper_by(load_broker(text, address).zookeeper, Disk().read)
    else:
        session = _session(address, IN_CLEAR)
    async with session as keeper:
        yield keeper


def _read_settings(path: str) -> str:
    try:
        return Disk().read(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


@asynccontextmanager
async def zookeeper_by(
    settings: ZooKeeperSettings, read: Callable[[str], bytes]
) -> AsyncIterator[ZooKeeper]:
    """As `zookeeper_at`, by a broker's settings, with its credentials."""
    async with _session(settings.connect, read_security(settings, read)) as keeper:
        yield keeper


@asynccontextmanager
async def _session(address: str, security: ZooKeeperSecurity) -> AsyncIterator[ZooKeeper]:
    connect = ConnectString.parse(address)
    keeper = KazooZooKeeper(connect, _TIMEOUT_MS, _TIMEOUT_MS, security)
    try:
        await keeper.connect()
    except Untrusted as error:
        raise UserError(f"ZooKeeper at {address}: {error}") from None
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
