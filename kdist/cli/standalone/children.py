"""The processes of a `kdist standalone`: ZooKeeper, then brokers; stopped in the reverse order.

Each broker is `kdist broker --config FILE` in a session of its own, so that a Ctrl-C in the
terminal reaches only the parent. Who creates a `Children` must stop it; `broker_death` and
`zookeeper_death` report a child that ends before that.

`Supervision` starts a broker again that died. First its ZooKeeper session is ended, so that others
lead its partitions at once. A broker that dies again and again is started ever later. One that ends
by itself before it is ready cannot start: that is for the caller to report.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Iterable, Sequence
from typing import NamedTuple

import click

from kdist.broker.session_file import end_last_session
from kdist.cli.standalone.home import HOST, BrokerPlan, Home
from kdist.cli.standalone.zookeeper_server import ZooKeeperServer
from kdist.client.cluster import Address, Cluster, NoBroker
from kdist.config.load import load_broker
from kdist.errors import ApiError, KdistError
from kdist.network.client import ClientSettings
from kdist.network.network import Network
from kdist.runtime.files import Files
from kdist.runtime.linux import boot_id

STOP_TIMEOUT_S = 30.0
_POLL_S = 0.1
_BY_SIGNAL = 128  # a shell's exit status for a process killed by a signal: 128 plus its number

# A broker that gets SIGTERM before it is ready ends in one of the latter two ways.
_ORDERLY = (0, -signal.SIGTERM, _BY_SIGNAL + signal.SIGTERM)


class Death(NamedTuple):
    """A child that ended: its name, its status as in `subprocess`, its log and what that says."""

    name: str
    status: int
    log: str
    last_words: str

    @property
    def exit_status(self) -> int:
        """The status that the command exits with; never 0."""
        if not self.status:
            return 1
        return self.status if self.status > 0 else _BY_SIGNAL - self.status

    def __str__(self) -> str:
        said = f": {self.last_words}" if self.last_words else ""
        return f"{self.name} {self._how()} (log: {self.log}){said}"

    def _how(self) -> str:
        if self.status < 0:
            return f"was ended by {signal.Signals(-self.status).name}"
        return f"ended with status {self.status}"


class Children:
    """The started processes. Owner: the command."""

    def __init__(self, home: Home, count: int, zookeeper: ZooKeeperServer) -> None:
        """`count` is how many brokers there are to be."""
        self.zookeeper = zookeeper
        self._home = home
        self._count = count
        self._brokers: dict[BrokerPlan, asyncio.subprocess.Process] = {}
        home.record(count, self.pids)

    @property
    def pids(self) -> dict[str, int]:
        """The started processes' ids, by name."""
        brokers = {plan.name: process.pid for plan, process in self._brokers.items()}
        return {"zookeeper": self.zookeeper.pid, **brokers}

    async def start_broker(self, plan: BrokerPlan) -> None:
        """Start a broker, without waiting; `broker_death` reports if it ends."""
        log = self._home.new_log(plan)
        try:
            self._brokers[plan] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "kdist.cli", "broker", "--config", plan.config),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log.fileno(),
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                umask=self._home.umask,
            )
        finally:
            log.close()
        self._home.record(self._count, self.pids)

    async def broker_death(self, plan: BrokerPlan) -> Death:
        """Wait until a broker that was started has ended."""
        status = await self._brokers[plan].wait()
        # After a signal the log's last words would be unrelated.
        words = self._home.last_words(plan.log) if status >= 0 else ""
        return Death(f"broker {plan.name}", status, plan.log, words)

    def forget(self, plan: BrokerPlan, death: Death) -> Death:
        """Take a dead broker out, which is to be started again; its log's name is another then."""
        del self._brokers[plan]
        self._home.record(self._count, self.pids)
        return death._replace(log=self._home.put_away(plan.log))

    async def zookeeper_death(self) -> Death:
        """Wait until ZooKeeper has ended."""
        while self.zookeeper.is_running:
            await asyncio.sleep(_POLL_S)
        status = self.zookeeper.status or 0
        words = self.zookeeper.log_tail() if status >= 0 else ""
        return Death("ZooKeeper", status, self.zookeeper.settings.log_path, words)

    async def stop(self, hurry: Awaitable[object]) -> list[Death]:
        """Stop the brokers together, then ZooKeeper; returns the brokers that did not end orderly.

        Brokers still running after `STOP_TIMEOUT_S`, or when `hurry` is done, are killed.
        """
        processes = self._brokers.values()
        _signal(processes, signal.SIGTERM)
        ended = asyncio.gather(*(process.wait() for process in processes))
        hurried = asyncio.ensure_future(hurry)
        await asyncio.wait(
            (ended, hurried), timeout=STOP_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        hurried.cancel()
        _signal(processes, signal.SIGKILL)
        await ended
        await self.zookeeper.stop()
        deaths = [await self.broker_death(plan) for plan in self._brokers]
        return [death for death in deaths if death.status not in _ORDERLY]


def _signal(processes: Iterable[asyncio.subprocess.Process], how: signal.Signals) -> None:
    for process in processes:
        if process.returncode is None:
            process.send_signal(how)


_BACK_OFF_S = (1.0, 30.0)  # after a first death, and at most; doubled from one to the next
_FORGIVEN_S = 60.0  # a broker that has been ready for so long begins anew


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
