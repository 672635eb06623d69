"""A broker with an authorizer, clients that are somebody, and ACLs that change."""

from __future__ import annotations

import asyncio

from kdist.broker.broker import Broker
from kdist.config.security import ACL_AUTHORIZER
from kdist.model import Principal
from kdist.network.client import Client
from kdist.network.connection import Connection
from kdist.security.acls import (
    CLUSTER_NAME,
    Acl,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from tests.simulator.cluster import Cluster
from tests.unit.broker.test_broker_dispatch import Raw, raw

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
SETTINGS = {"authorizer.class.name": ACL_AUTHORIZER, "super.users": "User:ANONYMOUS"}


async def started(cluster: Cluster, **settings: str) -> Broker:
    """A broker on which those who have not authenticated, such as brokers, may do everything."""
    return await cluster.started(**{**SETTINGS, **settings})


def grant(
    broker: Broker,
    *operations: Operation,
    to: Principal = ALICE,
    on: ResourceType = ResourceType.TOPIC,
    name: str = "clicks",
    host: str = "*",
) -> None:
    """Replace the ACLs of a resource by what this allows."""
    acls = {Acl(f"User:{to.name}", host, each, Permission.ALLOW) for each in operations}
    name = CLUSTER_NAME if on is ResourceType.CLUSTER else name
    broker.authorizer.table.set(Pattern(on, name, PatternType.LITERAL), acls)
    broker.authorizer.changed()


def newest(broker: Broker) -> Connection:
    (listener,) = broker._gateway._listeners
    return max(listener.connections, key=lambda each: each.number)


def become(broker: Broker, principal: Principal, host: str = "") -> Connection:
    """Authenticate the newest connection."""
    connection = newest(broker)
    connection.subject = broker.authorizer.subject(principal, host or connection.host)
    connection.context = None
    return connection


async def client_of(cluster: Cluster, principal: Principal = ALICE, host: str = "") -> Client:
    client = await cluster.client()
    await asyncio.sleep(0.1)
    become(cluster.brokers[1], principal, host)
    return client


async def raw_of(cluster: Cluster, principal: Principal = ALICE, host: str = "") -> Raw:
    way = await raw(cluster)
    await asyncio.sleep(0.1)
    become(cluster.brokers[1], principal, host)
    return way
