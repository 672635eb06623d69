"""The processes of a `kdist standalone`: ZooKeeper, then brokers; stopped in the reverse order.

Each broker is `kdist broker --config FILE` in a session of its own, so that a Ctrl-C in the
terminal reaches only the parent. Who creates a `Children` must stop it; `broker_death` and
`zookeeper_death` report a child that ends before that.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Iterable
from typing import NamedTuple

from kdist.cli.standalone.home import BrokerPlan, Home
from kdist.cli.standalone.zookeeper_server import ZooKeeperServer

STOP_TIMEOUT_S = 30.0
_POLL_S = 0.2
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
