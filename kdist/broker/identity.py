"""What a broker does in ZooKeeper before it registers: create basic znodes, find the cluster id."""

from __future__ import annotations

import random
import uuid

from kdist.errors import UserError
from kdist.model import format_uuid
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.cluster_values import ClusterId
from kdist.zk.errors import NodeExists


async def make_starting_paths(zk: ZooKeeper) -> None:
    """Create those persistent znodes that every broker relies on and that are missing."""
    for path in (znodes.BROKERS.path(), *znodes.STARTING_PATHS):
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
