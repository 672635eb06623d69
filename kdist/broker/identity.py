"""What a broker does in ZooKeeper before it registers: the cluster's paths, the cluster's id."""

from __future__ import annotations

import random
import uuid

from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.cluster_values import ClusterId
from kdist.zk.errors import NodeExists, NoNode
from kdist.zk.topic_values import id_text


async def make_starting_paths(zk: ZooKeeper) -> None:
    """Create what is missing of the znodes that everybody counts on."""
    for path in (znodes.BROKERS.path(), *znodes.STARTING_PATHS):
        if await zk.exists(path) is None:
            try:
                await zk.create(path, make_parents=True)
            except NodeExists:
                pass  # another broker starts too


async def find_cluster_id(zk: ZooKeeper, chance: random.Random) -> str:
    """The cluster's id; the first broker of all makes it up, once and for good."""
    path = znodes.CLUSTER_ID.path()
    while True:
        try:
            data, _ = await zk.get(path)
            return znodes.CLUSTER_ID.decode(path, data).id
        except NoNode:
            made = ClusterId(id_text(uuid.UUID(int=chance.getrandbits(128), version=4)))
            try:
                await zk.create(path, znodes.CLUSTER_ID.encode(made), make_parents=True)
            except NodeExists:
                pass  # another broker was faster: its id it is
