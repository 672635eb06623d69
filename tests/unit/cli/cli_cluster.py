"""A cluster for tests of the commands: real brokers on real sockets, in a thread of their own.

Disk and sockets are real; ZooKeeper is the in-memory one, so a cluster is up in a tenth of a second
without Java. The commands run in the test's thread, on their own loops, as in a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import MappingProxyType
from unittest.mock import patch

from click.testing import CliRunner, Result

from kdist.broker.broker import Broker
from kdist.broker.context import BrokerContext
from kdist.cli.main import kdist
from kdist.client import zookeeper_session
from kdist.config.load import broker_from
from kdist.network.network import AsyncioNetwork
from kdist.runtime.clock import SystemClock
from kdist.runtime.disk import Disk
from kdist.runtime.process import AsyncioProcess
from kdist.runtime.tick_loop import TickLoop
from kdist.testing.memory_zookeeper import MemoryEnsemble
from kdist.zk.client import ZooKeeper

SESSION_TIMEOUT_MS = 10_000
ZOOKEEPER = "memory:2181"
_real_zookeeper_at = zookeeper_session.zookeeper_at


class CliCluster:
    """Brokers, and a way to run `kdist` against them. Owner: the test's thread."""

    def __init__(self, directory: Path, brokers: int, settings: Mapping[str, str]) -> None:
        self._directory = directory
        self._count = brokers
        self._settings = settings
        self._starts = 0
        self._loop = TickLoop()
        self._ensemble = MemoryEnsemble(SystemClock(), random.Random(1))
        self.brokers: list[Broker] = []
        # Of the commands alone, whose loops are others than the brokers': for kdist's own locks.
        self.locks = MemoryEnsemble(SystemClock(), random.Random(1))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.brokers[0].port}"

    def run(self, *arguments: object, text: str | bytes = "") -> Result:
        """Run a command: its output and exit status; a bug in it fails the test."""
        environment = {
            "KDIST_BROKER": self.address,
            "KDIST_PROFILE": None,
            "KDIST_ZOOKEEPER": None,
            "XDG_CONFIG_HOME": str(self._directory),
        }
        words = [str(argument) for argument in arguments]
        result = CliRunner().invoke(kdist, words, input=text, env=environment)
        expected = result.exception is None or isinstance(result.exception, SystemExit)
        assert expected, result.exception
        return result

    def done(self, *arguments: object, text: str | bytes = "") -> str:
        """The output of a command that must succeed."""
        result = self.run(*arguments, text=text)
        assert result.exit_code == 0, result.output
        return result.stdout

    def refused(self, *arguments: object, text: str | bytes = "") -> str:
        """The one-sentence error of a command that must exit with 1."""
        result = self.run(*arguments, text=text)
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith("kdist: ")
        assert result.stderr.count("\n") == 1
        return result.stderr.removeprefix("kdist: ").rstrip("\n")

    @contextlib.asynccontextmanager
    async def zookeeper_at(self, address: str) -> AsyncIterator[ZooKeeper]:
        """A command's session; with the brokers' own at their address.

        The cluster of these tests lasts as long as pytest's process, which may run others after it.
        """
        if address != ZOOKEEPER:
            async with _real_zookeeper_at(address) as elsewhere:
                yield elsewhere
            return
        client = self.locks.client()
        await client.connect()
        try:
            yield client
        finally:
            await client.close()

    def stop_broker(self, number: int) -> None:
        """Stop one of the brokers cleanly; the others hear of it a moment later."""
        broker = self.brokers.pop(number - 1)
        asyncio.run_coroutine_threadsafe(broker.stop(), self._loop).result(30)

    def start_broker(self, number: int, *, is_disk_new: bool = False) -> None:
        """Start one that was stopped, as the last of `brokers`; on an empty disk perhaps."""
        if is_disk_new:
            shutil.rmtree(self._directory / f"d{number:02d}")
        asyncio.run_coroutine_threadsafe(self._start_one(number), self._loop).result(30)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds."""
        end_s = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end_s, "it did not happen in time"
            time.sleep(0.05)

    def serve(self, started: Future[None], ending: threading.Event) -> None:
        """The thread's work: start the brokers, serve until the end, stop them."""
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._start())
            started.set_result(None)
            self._loop.run_until_complete(asyncio.to_thread(ending.wait))
            self._loop.run_until_complete(self._stop())
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _start(self) -> None:
        for number in range(1, self._count + 1):
            await self._start_one(number)

    async def _start_one(self, number: int) -> None:
        directory = self._directory / f"d{number:02d}"
        directory.mkdir(exist_ok=True)
        self._starts += 1
        settings = {
            "broker.id": str(number),
            "broker.host": directory.name,
            "log.dir": str(directory),
            "zookeeper.connect": ZOOKEEPER,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "4",
            "controlled.shutdown.retry.backoff.ms": "50",  # they stop together
            **self._settings,
        }
        world = BrokerContext(
            config=broker_from(settings),
            files=Disk(),
            process=AsyncioProcess(self._loop, random.Random(self._starts)),
            network=AsyncioNetwork(self._loop),
            zk=self._ensemble.client("", session_timeout_ms=SESSION_TIMEOUT_MS),
            host="host",
        )
        broker = Broker(world)
        await broker.start()
        self.brokers.append(broker)

    async def _stop(self) -> None:
        await asyncio.gather(*(broker.stop() for broker in self.brokers))


@contextlib.contextmanager
def cli_cluster(
    directory: Path, brokers: int = 2, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[CliCluster]:
    """A running cluster, stopped in the end; `settings` are all brokers'."""
    cluster = CliCluster(directory, brokers, settings)
    started: Future[None] = Future()
    ending = threading.Event()
    sessions = patch.object(zookeeper_session, "zookeeper_at", cluster.zookeeper_at)
    with sessions, ThreadPoolExecutor(1) as thread:
        served = thread.submit(cluster.serve, started, ending)
        try:
            done, _ = wait((started, served), timeout=30, return_when=FIRST_COMPLETED)
            assert done, "the brokers did not start"
            done.pop().result()
            yield cluster
        finally:
            ending.set()
        served.result(timeout=30)
