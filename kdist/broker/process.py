"""One broker as a process: the real world around it, signals, systemd, exit statuses.

    0    stopped cleanly                   74   the disk failed; systemd does not restart on it
    1    could not start, or go on         78   the disk is not this broker's, or missing: likewise
    70   a bug, out of memory, or a file   143  stopped at once, by a second signal
         that was removed; the traceback
         is in the log

The first SIGTERM or SIGINT stops cleanly; after a second one the next start has to recover.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from kdist.broker.broker import Broker
from kdist.broker.context import BrokerContext
from kdist.config.addresses import ConnectString
from kdist.config.broker import DiskSettings
from kdist.config.broker_config import BrokerConfig
from kdist.errors import DiskFailed, KdistError, UserError
from kdist.network.network import AsyncioNetwork
from kdist.runtime.disk import Disk
from kdist.runtime.files import Files
from kdist.runtime.linux import boot_id
from kdist.runtime.process import AsyncioProcess
from kdist.runtime.sd_notify import ServiceManager
from kdist.runtime.tick_loop import TickLoop
from kdist.runtime.unix import raise_limit
from kdist.zk.kazoo_client import KazooZooKeeper
from kdist.zk.security import read_security

logger = logging.getLogger(__name__)

DONE, NOT_POSSIBLE, BUG = 0, 1, 70
FORCED = 128 + signal.SIGTERM

_START_STEP_USEC = 120_000_000  # asked of systemd each time, while logs are opened
_START_SIGN_S = 10.0

# The garbage collector took 10% of a busy broker's time, and caused most of its tail latency
# (design D2). Few objects are in cycles, so those alive after the start are frozen, and the rest is
# collected seldom.
_GC_THRESHOLDS = (50_000, 50, 100)


class WrongDisk(UserError):
    """The disk is missing, or not this broker's. A restart is of no use: systemd makes none."""

    EXIT_STATUS = 78  # sysexits.h EX_CONFIG


def check_marker(settings: DiskSettings, broker_id: int, files: Files) -> None:
    """Raise `WrongDisk` if `disk.marker` is set and the file is missing or not this broker's.

        /data/d01/disk.json    {"cluster": "prod-dc1", "broker": 201, "disk": "d01"}

    Checked before anything on the disk is touched: a broker whose disk is not mounted would create
    an empty log on the root filesystem.
    """
    path = settings.marker
    if path is None:
        return
    marker = _read_marker(path, files)
    wanted = {"cluster": settings.cluster, "broker": broker_id, "disk": settings.id}
    for name, value in wanted.items():
        if value is not None and marker.get(name) != value:
            raise WrongDisk(
                f"{path} names {name} {marker.get(name)!r}, but this is {name} {value!r}:"
                " check which disk is mounted here"
            )


def _read_marker(path: str, files: Files) -> Mapping[str, object]:
    try:
        marker = json.loads(files.read(path))
    except (FileNotFoundError, PermissionError):  # an unmounted mount point is readable to nobody
        raise WrongDisk(f"{path} is not there: is the disk mounted?") from None
    except ValueError:
        raise WrongDisk(f"{path} is not JSON, so it does not say whose disk this is") from None
    if not isinstance(marker, dict):
        raise WrongDisk(f"{path} is not a JSON object, so it does not say whose disk this is")
    return marker


def _connections_within(descriptors: int, config: BrokerConfig) -> int:
    """Keep half of the descriptors for logs: a flood of connections must not stop a roll."""
    most = descriptors // 2
    if config.network.max_connections > most:
        logger.info("at most %d connections: half of the limit of %d open files", most, descriptors)
    return most


class BrokerProcess:
    """Owner: the main thread."""

    def __init__(
        self, config: BrokerConfig, environment: Mapping[str, str], version: str, release: str
    ) -> None:
        self._config = config
        self._connections_max = _connections_within(raise_limit(), config)
        self._version = version
        self._release = release
        self._unit = environment.get("KDIST_UNIT", "")  # which the unit sets
        self._manager = ServiceManager(environment)
        self._signals = 0  # to stop
        self._stop = asyncio.Event()
        self._is_started = False

    def run(self) -> int:
        """Run a broker to its end and return the exit status. `UserError` if it cannot start."""
        loop = TickLoop()
        asyncio.set_event_loop(loop)
        try:
            return loop.run_until_complete(self._main(loop))
        finally:
            loop.close()

    async def _main(self, loop: asyncio.AbstractEventLoop) -> int:
        broker = Broker(self._context(loop))
        broker.measures.exposition.add_process()
        main = asyncio.current_task()
        assert main is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, main)
        self._manager.feed_watchdog(loop)
        self._ask_for_time(loop)
        try:
            await self._start(broker)
            return await self._serve(broker)
        except asyncio.CancelledError:
            if self._signals > 1:
                logger.warning("stopped at once: the next start has to recover")
            return DONE if self._signals == 1 else FORCED

    def _context(self, loop: asyncio.AbstractEventLoop) -> BrokerContext:
        zookeeper = self._config.zookeeper
        return BrokerContext(
            config=self._config,
            files=Disk(),
            process=AsyncioProcess(loop),
            network=AsyncioNetwork(loop),
            zk=KazooZooKeeper(
                ConnectString.parse(zookeeper.connect),
                zookeeper.session_timeout_ms,
                zookeeper.connection_timeout_ms,
                read_security(zookeeper, Disk().read),
            ),
            host=socket.gethostname(),
            boot_id=boot_id(),
            connections_max=self._connections_max,
            version=self._version,
            release=self._release,
            unit=self._unit,
            status=lambda sentence: self._manager.tell(f"STATUS={sentence}"),
            cleaner_argv=(sys.executable, "-m", "kdist.cli.cleaner", str(os.getpid())),
        )

    def _ask_for_time(self, loop: asyncio.AbstractEventLoop) -> None:
        """Extend systemd's start timeout again and again, since recovery may take any time."""
        if not self._is_started:
            self._manager.tell(f"EXTEND_TIMEOUT_USEC={_START_STEP_USEC}")
            loop.call_later(_START_SIGN_S, self._ask_for_time, loop)

    async def _start(self, broker: Broker) -> None:
        """Start the broker. A signal cancels this, and what was begun is undone."""
        await broker.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        self._is_started = True
        if not broker.failure.done():
            self._manager.tell("READY=1")

    async def _serve(self, broker: Broker) -> int:
        """Serve until a signal or a failure; return the exit status."""
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait((stop, broker.failure), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not broker.failure.done():
            self._manager.tell("STOPPING=1")
            await broker.stop()
        return await self._end_failed(broker) if broker.failure.done() else DONE

    async def _end_failed(self, broker: Broker) -> int:
        error = broker.failure.result()
        logger.critical("%s", sentence_of(error))
        await broker.abandon()
        return status_of(error)

    def _on_signal(self, main: asyncio.Task[Any]) -> None:
        self._signals += 1
        self._stop.set()
        if self._signals > 1 or not self._is_started:
            main.cancel()


def sentence_of(failure: BaseException) -> str:
    """The log line for the failure that ended a broker (pure)."""
    if isinstance(failure, KdistError):
        return str(failure)
    trace = "".join(traceback.format_exception(failure))
    # A connection wraps a handler's OSError in a RuntimeError, as its cause.
    met = failure.__cause__ if isinstance(failure.__cause__, OSError) else failure
    if isinstance(met, FileNotFoundError):
        return f"{met.filename} is gone, removed or unmounted: {trace}"
    if isinstance(met, OSError) and met.filename is not None:
        return f"{met.filename} cannot be used any more, {met.strerror}: {trace}"
    if isinstance(failure, MemoryError):
        return f"no memory is left: {trace}"
    return f"a bug: {trace}"


def status_of(failure: BaseException) -> int:
    """The exit status for the failure that ended a broker (pure)."""
    if isinstance(failure, DiskFailed):
        return DiskFailed.EXIT_STATUS
    return NOT_POSSIBLE if isinstance(failure, UserError) else BUG
