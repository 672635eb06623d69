"""A topic's own settings in ZooKeeper, where the brokers watch for changes.

No API that this release speaks tells or changes them, so whoever does needs the ensemble's address.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

from kdist.config.broker_config import resolve_topic
from kdist.errors import UserError
from kdist.zk.client import Create, Set, ZooKeeper
from kdist.zk.cluster_values import EntitySettings, SettingsChange
from kdist.zk.connect_string import ConnectString
from kdist.zk.errors import BadVersion, ConnectionLoss, MultiFailed, NodeExists, NoNode
from kdist.zk.kazoo_client import KazooZooKeeper
from kdist.zk.znodes import SETTINGS_CHANGE, TOPIC, TOPIC_SETTINGS

_ATTEMPTS = 5
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


async def topic_settings(zookeeper: ZooKeeper, topic: str) -> dict[str, str]:
    """What a topic has of its own."""
    return (await _read(zookeeper, topic))[0]


async def _read(zookeeper: ZooKeeper, topic: str) -> tuple[dict[str, str], int | None]:
    """The settings, and the version of their znode; None if there is none."""
    path = TOPIC_SETTINGS.path(topic)
    try:
        znode = await zookeeper.get(path)
    except NoNode:
        return {}, None
    return dict(TOPIC_SETTINGS.decode(path, znode.data).settings), znode.stat.version


async def change_topic_settings(
    zookeeper: ZooKeeper, topic: str, given: Mapping[str, str], removed: Collection[str]
) -> dict[str, str]:
    """Set some and take others away, then tell the brokers; what the topic has afterwards.

    `ConfigError` with every fault of what it would have. `UserError` if there is no such topic.
    """
    if await zookeeper.exists(TOPIC.path(topic)) is None:
        raise UserError(f"there is no topic {topic}")
    for _ in range(_ATTEMPTS):
        old, version = await _read(zookeeper, topic)
        new = {name: old[name] for name in old if name not in removed} | dict(given)
        resolve_topic((), new)
        path, data = TOPIC_SETTINGS.path(topic), EntitySettings(new).encode()
        change = SettingsChange(f"topics/{topic}").encode()
        try:
            await zookeeper.multi(
                [
                    Create(path, data) if version is None else Set(path, data, version),
                    Create(SETTINGS_CHANGE.path(), change, sequential=True),
                ]
            )
        except MultiFailed as failed:
            if not isinstance(failed.error, BadVersion | NodeExists | NoNode):
                raise
        else:
            return new
    raise UserError(f"others keep changing the settings of {topic}: try again")
