"""Keeps the brokers of a `kdist standalone` running: one that died is started again.

First its ZooKeeper session is ended, so that others lead its partitions at once. A broker that dies
again and again is started ever later. One that ends by itself before it is ready cannot start: that
is for the caller to report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from kdist.broker.session_file import end_last_session
from kdist.cli.standalone.children import Children, Death
from kdist.cli.standalone.home import HOST, BrokerPlan, Home
from kdist.client.cluster import Address, Cluster, NoBroker
from kdist.config.load import load_broker
from kdist.errors import ApiError, KdistError
from kdist.network.client import ClientSettings
from kdist.network.network import Network
from kdist.runtime.files import Files
from kdist.runtime.linux import boot_id

_BACK_OFF_S = (1.0, 30.0)  # after a first death, and at most; doubled from one to the next
_FORGIVEN_S = 60.0  # a broker that has been ready for so long begins anew
_POLL_S = 0.1


class Supervision:
    """Owner: the command, for one run."""

    def __init__(
        self,
        children: Children,
        home: Home,
        files: Files,
        network: Network,
        connections: ClientSettings,
    ) -> None:
        """`connections`: by which brokers are asked whether they are ready."""
        self._connections = connections
        self._children = children
        self._home = home
        self._files = files
        self._network = network

    async def first_end(self, plans: Sequence[BrokerPlan]) -> Death:
        """Keep the brokers running until one cannot start, or ZooKeeper has ended."""
        kept = [asyncio.ensure_future(self._keep(plan)) for plan in plans]
        kept.append(asyncio.ensure_future(self._children.zookeeper_death()))
        try:
            done, _ = await asyncio.wait(kept, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for each in kept:
                each.cancel()

    async def _keep(self, plan: BrokerPlan) -> Death:
        first_s, most_s = _BACK_OFF_S
        pause_s = first_s
        while True:
            death, ready_s = await self._life(plan)
            if ready_s is None and death.status >= 0:
                return death
            if ready_s is not None and ready_s >= _FORGIVEN_S:
                pause_s = first_s
            await self._bury(plan, death, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, most_s)
            await self._children.start_broker(plan)

    async def _life(self, plan: BrokerPlan) -> tuple[Death, float | None]:
        """A started broker's death, and for how many seconds it had been ready; None: never."""
        loop = self._network.loop
        ready = asyncio.ensure_future(self._await_ready(plan))
        try:
            death = await self._children.broker_death(plan)
            return death, loop.time() - ready.result() if ready.done() else None
        finally:
            ready.cancel()

    async def _await_ready(self, plan: BrokerPlan) -> float:
        """Wait until the broker tells of itself; when that was, on the loop's clock."""
        while not await self._knows_itself(plan):
            await asyncio.sleep(_POLL_S)
        return self._network.loop.time()

    async def _knows_itself(self, plan: BrokerPlan) -> bool:
        """Ask this very broker: one that has heard of others might ask those the next time."""
        cluster = Cluster(self._network, [Address(HOST, plan.port)], self._connections)
        try:
            await cluster.metadata()
            return plan.id in cluster.brokers
        except (NoBroker, ApiError):
            return False
        finally:
            cluster.close()

    async def _bury(self, plan: BrokerPlan, death: Death, pause_s: float) -> None:
        """End its session, and say what has happened and what comes next."""
        told = self._children.forget(plan, death)
        config = load_broker(self._files.read(plan.config).decode(), plan.config)
        try:
            await end_last_session(config, self._files, boot_id())
            ended = ""
        except KdistError as error:
            ended = f" (its ZooKeeper session has to expire: {error})"
        click.echo(f"kdist: {told}; it starts again in {pause_s:g} s{ended}", err=True)
