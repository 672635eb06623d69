"""The first brokers to ask: as they are given, or as a ZooKeeper ensemble has them registered."""

from __future__ import annotations

from collections.abc import Sequence

from kdist.client.cluster import Address, parse_addresses
from kdist.client.producer.settings import ProducerSettings
from kdist.client.topic_settings import zookeeper_at
from kdist.errors import UserError
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import NoNode


async def find_brokers(settings: ProducerSettings) -> Sequence[Address]:
    """Their addresses; `UserError` if the settings name none, or the ensemble has none."""
    given = (*settings.bootstrap_servers, *settings.broker_list)
    if given and settings.zk_connect:
        raise UserError("zk_connect says where the brokers are, and so do the others: give one")
    if given:
        return parse_addresses(",".join(given))
    if not settings.zk_connect:
        raise UserError("say where the brokers are: bootstrap_servers, broker_list or zk_connect")
    async with zookeeper_at(settings.zk_connect) as zookeeper:
        found = await _registered(zookeeper)
    if not found:
        raise UserError(f"no broker is registered at {settings.zk_connect}")
    return found


async def _registered(zookeeper: ZooKeeper) -> list[Address]:
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
        found += [Address(e.listener.host, e.listener.port) for e in registration.endpoints]
    return found
