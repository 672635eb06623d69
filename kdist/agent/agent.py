"""The agent's tasks: at each interval it looks at the host and queues a record, which it sends.

Looking, sending and asking disks do not wait for each other: while no broker answers, only the
oldest records are lost; while a disk is slow to answer, only its health is out of date.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from kdist.agent.canary import Canary
from kdist.agent.data_disks import DataDisks
from kdist.agent.disks import AskedDisks, Run, SeenDisk
from kdist.agent.exported import Seen, exported
from kdist.agent.not_applied import count_not_applied
from kdist.agent.publisher import Publisher
from kdist.agent.queue import Queue, Queued
from kdist.agent.record import Identity, Progress, encode_record, make_record
from kdist.agent.wanted import read_wanted
from kdist.agent.zookeeper import ask_mntr, read_mntr
from kdist.client.cluster import Cluster, parse_addresses
from kdist.config.agent import AgentSettings
from kdist.errors import KdistError
from kdist.metrics.agent import AgentMetrics
from kdist.runtime.clock import Clock
from kdist.runtime.files import Files
from kdist.runtime.host import Look

logger = logging.getLogger(__name__)

_LAST_SEND_S = 2.0  # how long a stop waits for queued records to be sent
_ZOOKEEPER_MS = 2_000


class AgentContext(NamedTuple):
    """The outside world of an agent, passed in. `look` blocks, and is called in a thread.

    `canary` is the cluster as the canary asks it; None without a canary.
    """

    clock: Clock
    files: Files
    cluster: Cluster
    look: Callable[[int], Look]
    run: Run
    canary: Cluster | None = None


class Agent:
    """One host's agent. Owner: the loop."""

    def __init__(self, settings: AgentSettings, host: str, context: AgentContext) -> None:
        self.metrics = AgentMetrics()
        self.queue = Queue(settings.queue_records)
        self._settings = settings
        self._identity = Identity(host, settings.datacenter or "", settings.rack or "")
        self._context = context
        self._publisher = Publisher(context.cluster, settings.topic, host, self.queue, self.metrics)
        self._zookeeper = parse_addresses(settings.zookeeper)[0] if settings.zookeeper else None
        self._disks: AskedDisks | None = None
        if settings.smartctl:
            self._disks = AskedDisks(settings.smartctl, context.run, context.clock)
        self._data_disks = DataDisks(settings.data_dir)
        self._canary: Canary | None = None
        if context.canary is not None:
            self._canary = Canary(context.canary, settings, context.clock)
        self._before: Look | None = None
        self._sequence = 0
        self._is_filled = asyncio.Event()
        self._is_ending = False
        self._is_writing = True  # so that only the first of several failures is logged

    async def run(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Run until `stop`; `ready` is called after the first look. Raises only bugs."""
        self._is_ending = False
        looking: list[Coroutine[Any, Any, None]] = [self._look_on(ready)]
        if self._disks is not None:
            looking.append(self._ask_disks_on(self._disks))
        if self._canary is not None:
            looking.append(self._canary.run())
        sending = asyncio.create_task(self._send_on())
        others = [asyncio.create_task(each) for each in (stop.wait(), *looking)]
        done, _ = await asyncio.wait((sending, *others), return_when=asyncio.FIRST_COMPLETED)
        await _cancel(others)
        for task in done:
            task.result()
        await self._end(sending)

    async def look_once(self) -> None:
        """Look at the host, queue the record, write the metrics file."""
        now = await asyncio.to_thread(self._context.look, self._context.clock.now_ms())
        self._sequence += 1
        progress = Progress(self._sequence, self.queue.dropped)
        disks = [] if self._disks is None else self._disks.seen()
        health = [disk.health for disk in disks if disk.health is not None]
        record = make_record(self._identity, progress, now, self._before, health)
        self._before = now
        self._data_disks.note(now.spaces)
        self.queue.add(Queued(now.timestamp_ms, encode_record(record)))
        self._is_filled.set()
        if self._settings.metrics_file:
            self._write_metrics(self._settings.metrics_file, await self._seen(disks))

    async def _look_on(self, ready: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        interval_s = self._settings.interval_ms / 1000
        due_s = loop.time()
        await self.look_once()
        ready()
        while True:
            # After a look that took longer than the interval, wait for a whole interval.
            due_s = max(due_s, loop.time() - interval_s) + interval_s
            await asyncio.sleep(due_s - loop.time())
            await self.look_once()

    async def _send_on(self) -> None:
        while not self._is_ending:
            await self._is_filled.wait()
            self._is_filled.clear()
            await self._publisher.send_all()

    async def _ask_disks_on(self, disks: AskedDisks) -> None:
        while True:
            await disks.ask()
            await asyncio.sleep(self._settings.smart_interval_ms / 1000)

    async def _seen(self, disks: list[SeenDisk]) -> Seen:
        zookeeper = None
        if self._zookeeper is not None:
            zookeeper = read_mntr(await ask_mntr(self._zookeeper, _ZOOKEEPER_MS))
        wanted = read_wanted(self._context.files, self._settings.wanted_dir)
        refused = count_not_applied(self._context.files, self._settings.not_applied_dir)
        canary = None if self._canary is None else self._canary.metrics
        return Seen(disks, zookeeper, self._data_disks.by_device, wanted, refused, canary)

    def _write_metrics(self, path: str, seen: Seen) -> None:
        """Write the metrics file. A failure, as on a full disk, does not stop the records."""
        self.metrics.dropped_records = self.queue.dropped
        self.metrics.queued_records = len(self.queue)
        content = exported(self.metrics, seen)
        try:
            self._context.files.replace(path, content, durable=False)
        except (OSError, KdistError) as error:
            if self._is_writing:
                logger.warning("%s could not be written: %s", path, error)
            self._is_writing = False
        else:
            self._is_writing = True

    async def _end(self, sending: asyncio.Task[None]) -> None:
        """Send queued records, for up to `_LAST_SEND_S`, and remove the metrics, now outdated.

        A send in progress is awaited too: a record whose acknowledgement is lost may be duplicated.
        """
        self._is_ending = True
        self._is_filled.set()
        await asyncio.wait((sending,), timeout=_LAST_SEND_S)
        await _cancel([sending])
        if not sending.cancelled():
            sending.result()
        if len(self.queue):
            logger.warning("stopped with %d records unsent", len(self.queue))
        if self._settings.metrics_file and self._context.files.exists(self._settings.metrics_file):
            self._context.files.remove(self._settings.metrics_file)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
