"""An agent as a process: real clock, disk and network, signals, systemd."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Mapping

from kdist.agent.agent import Agent, AgentContext
from kdist.client.cluster import Cluster, parse_addresses
from kdist.client.security import client_security
from kdist.config.agent import AgentSettings
from kdist.network.client import ClientSettings
from kdist.network.client_security import ClientSecurity
from kdist.network.network import AsyncioNetwork
from kdist.runtime.clock import SystemClock
from kdist.runtime.disk import Disk
from kdist.runtime.host import look
from kdist.runtime.programs import output_of
from kdist.runtime.sd_notify import ServiceManager

_CLIENT = ClientSettings("kdist-agent", request_timeout_ms=10_000, connect_timeout_ms=5_000)
_NO_RETRY_MS = 0  # the next interval is the retry


def run_agent(settings: AgentSettings, environment: Mapping[str, str]) -> None:
    """Run an agent until SIGTERM or SIGINT.

    `UserError` for malformed addresses, or settings of security that cannot be used.
    """
    asyncio.run(_run(settings, ServiceManager(environment)))


async def _run(settings: AgentSettings, manager: ServiceManager) -> None:
    loop = asyncio.get_running_loop()
    bootstrap = parse_addresses(settings.bootstrap_servers)
    security = client_security(settings)
    client = _CLIENT._replace(security=security)
    cluster = Cluster(AsyncioNetwork(loop), bootstrap, client, _NO_RETRY_MS)
    canary = _canary_cluster(settings, security, loop)
    context = AgentContext(SystemClock(), Disk(), cluster, look, output_of, canary)
    agent = Agent(settings, settings.host or socket.gethostname(), context)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _hear, stop, manager)
    manager.feed_watchdog(loop)
    try:
        await agent.run(stop, lambda: manager.tell("READY=1"))
    finally:
        cluster.close()
        if canary is not None:
            canary.close()


def _canary_cluster(
    settings: AgentSettings, security: ClientSecurity | None, loop: asyncio.AbstractEventLoop
) -> Cluster | None:
    """With connections of its own, so that a probe waits behind nothing else, and retries."""
    if settings.canary_topic is None:
        return None
    timeout_ms = settings.canary_timeout_ms
    client = ClientSettings(
        "kdist-canary",
        request_timeout_ms=timeout_ms,
        connect_timeout_ms=2_000,
        security=security,
    )
    bootstrap = parse_addresses(settings.bootstrap_servers)
    return Cluster(AsyncioNetwork(loop), bootstrap, client, timeout_ms)


def _hear(stop: asyncio.Event, manager: ServiceManager) -> None:
    manager.tell("STOPPING=1")
    stop.set()
