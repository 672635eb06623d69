"""Finds the bootstrap brokers: those given, or those registered in a ZooKeeper ensemble."""

from __future__ import annotations

from collections.abc import Sequence

from kdist.client.cluster import Address, parse_addresses
from kdist.errors import UserError


def given_brokers(servers: Sequence[str], zk_connect: str) -> Sequence[Address]:
    """The given addresses; none with `zk_connect`. `UserError` unless exactly one is given."""
    if servers and zk_connect:
        raise UserError("zk_connect says where the brokers are, and so do the others: give one")
    if not servers and not zk_connect:
        raise UserError("say where the brokers are: bootstrap_servers, or zk_connect")
    return parse_addresses(",".join(servers)) if servers else ()


async def find_brokers(
    servers: Sequence[str], zk_connect: str, protocol: str = "PLAINTEXT"
) -> Sequence[Address]:
    """The given or registered addresses; `UserError` also if no broker is registered.

    `protocol` is that of the listeners to find, as `security_protocol`.
    """
    known = given_brokers(servers, zk_connect)
    if known:
        return known
    from kdist.client.zookeeper_session import registered_brokers  # here, as kazoo loads slowly

    found = await registered_brokers(zk_connect, protocol)
    if not found:
        raise UserError(f"no broker with a {protocol} listener is registered at {zk_connect}")
    return found
