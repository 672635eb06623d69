"""Runs all mirror flows of a file as a process, and serves their metrics and health over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Mapping
from typing import Any

from kdist.broker.http import HttpPages, Page
from kdist.config.addresses import parse_host_port
from kdist.config.mirror import MirrorConfig
from kdist.errors import KdistError
from kdist.metrics.exposition import CONTENT_TYPE, Exposition
from kdist.mirror.flow import MirrorContext, MirrorFlow, MirrorMeasures
from kdist.mirror.selection import Selection
from kdist.mirror.stream import State
from kdist.mirror.topic_settings import merged
from kdist.network.network import AsyncioNetwork, Server
from kdist.runtime.clock import SystemClock
from kdist.runtime.process import system_rng
from kdist.runtime.sd_notify import ServiceManager

logger = logging.getLogger(__name__)

_SILENT_S_MAX = 60.0  # a flow without an answer for longer is unhealthy


class Mirror:
    """One process's mirror. Owner: the loop."""

    def __init__(self, config: MirrorConfig, context: MirrorContext) -> None:
        self.measures = MirrorMeasures()
        self.exposition = Exposition()
        self.exposition.add_family(self.measures.flows)
        self.exposition.add_family(self.measures.streams)
        self.exposition.add_family(self.measures.refused)
        self.flows = [
            MirrorFlow(flow, config.mirror, context, self.measures) for flow in config.flows
        ]
        self._config = config
        self._context = context
        self._server: Server | None = None
        self._pages = HttpPages(
            context.network.loop, {"/metrics": self._metrics_page, "/health": self._health_page}
        )

    async def run(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Run until `stop`. `ready` is called after the start, whether clusters answer or not.

        Raises what ends a mirror: `UserError` for a flow that is misconfigured, a `Loss` with
        `mirror.on.loss=stop-mirror`, and bugs. The other flows are then stopped in good order.
        """
        await self._listen()
        running = [asyncio.create_task(flow.run(stop)) for flow in self.flows]
        ready()
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            await asyncio.wait(running)
        finally:
            for task in running:
                task.cancel()
            outcomes = await asyncio.gather(*running, return_exceptions=True)
            self._close()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _listen(self) -> None:
        address = parse_host_port(self._config.mirror.http_address or "")
        if address is not None:
            self._server = await self._context.network.listen(self._pages.make, *address)

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._pages.close()

    # Pages

    def _metrics_page(self) -> Page:
        now_s = self._context.network.loop.time()
        for flow in self.flows:
            flow.metrics.buffered_bytes = flow.buffered_bytes
            flow.metrics.silent_seconds = now_s - flow.heard_at_s
        return Page(200, CONTENT_TYPE, self.exposition.render())

    def _health_page(self) -> Page:
        """503 while a flow, or a partition's leader in its source, has had no answer for
        `_SILENT_S_MAX`, or a partition could not send for as long; while a partition is stopped, or
        the target refuses a topic.
        """
        flows = {flow.flow.name: self._health(flow) for flow in self.flows}
        is_well = all(each["status"] == "ok" for each in flows.values())
        body = {"status": "ok" if is_well else "trouble", "flows": flows}
        return Page(200 if is_well else 503, "application/json", json.dumps(body).encode() + b"\n")

    def _health(self, flow: MirrorFlow) -> dict[str, object]:
        stopped = {
            str(partition): str(stream.failure)
            for partition, stream in flow.streams.items()
            if stream.state is State.STOPPED
        }
        now_s = self._context.network.loop.time()
        silent_s = now_s - flow.heard_at_s
        unmeasured = [since_s for since_s, _ in flow.unmeasured.values()]
        troubled = [stream.troubled_s for stream in flow.streams.values()]
        silent_s_max = max(silent_s, now_s - min(unmeasured, default=now_s), *troubled)
        selection = flow.topics.selection if flow.topics is not None else Selection({}, {})
        refused = {topic: selection.held[topic] for topic in sorted(selection.refused)}
        is_well = not stopped and not refused and silent_s_max < _SILENT_S_MAX
        return {
            "status": "ok" if is_well else "trouble",
            "partitions": len(flow.streams),
            "stopped": stopped,
            "refused": refused,
            "differing": merged(selection.larger, flow.settings.differing),
            "troubled": {
                str(partition): stream.trouble.said
                for partition, stream in flow.streams.items()
                if stream.trouble.said
            },
            "unmeasured": {str(each): why for each, (_, why) in flow.unmeasured.items()},
            "unmatched": flow.topics.unmatched if flow.topics is not None else (),
            "silent_seconds": round(silent_s, 1),
            "trouble": flow.reading.said or flow.trouble.said,
        }


def run_mirror(config: MirrorConfig, environment: Mapping[str, str]) -> None:
    """Run a mirror until SIGTERM or SIGINT. Raises the `KdistError`, or the bug, that ended it."""
    asyncio.run(_run(config, ServiceManager(environment)))


async def _run(config: MirrorConfig, manager: ServiceManager) -> None:
    loop = asyncio.get_running_loop()
    mirror = Mirror(config, MirrorContext(AsyncioNetwork(loop), SystemClock(), system_rng()))
    mirror.exposition.add_process()
    stop = asyncio.Event()
    bugs: list[Exception] = []

    def hear_bug(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the mirror after an uncaught bug; not after an uncaught error of a connection."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, KdistError | OSError):
            bugs.append(error)
            stop.set()

    def hear() -> None:
        manager.tell("STOPPING=1")
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear)
    loop.set_exception_handler(hear_bug)
    manager.feed_watchdog(loop)
    await mirror.run(stop, lambda: manager.tell("READY=1"))
    if bugs:
        raise bugs[0]
