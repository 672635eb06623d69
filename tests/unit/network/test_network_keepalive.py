"""TCP keepalive: a client may wait for minutes and send nothing, so the kernel probes the peer."""

from __future__ import annotations

import socket

import pytest
from network_world import Served, World, real_world

from kdist.network.client import Client, ClientSettings
from kdist.network.network import CLIENT_PATIENCE, FETCHER_PATIENCE, Patience


@pytest.mark.parametrize(
    ("patience", "dead_s", "unacknowledged_ms"),
    [(CLIENT_PATIENCE, 40, 0), (FETCHER_PATIENCE, 3, 3_000)],
)
def test_a_silent_peer_is_probed_by_the_kernel_for_as_long_as_there_is_patience(
    patience: Patience, dead_s: int, unacknowledged_ms: int
) -> None:
    for world in real_world():

        async def scenario(world: World = world) -> None:
            async with Served(world) as served:
                client = await Client.connect(
                    *(world.client, world.host, served.port),
                    ClientSettings("t", patience=patience),
                )
                found = client._transport.get_extra_info("socket")
                assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                silent_s, probe_s, probes = (
                    found.getsockopt(socket.IPPROTO_TCP, option)
                    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                )
                assert silent_s + probe_s * probes == patience.dead_s == dead_s
                level, option = socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
                assert found.getsockopt(level, option) == unacknowledged_ms
                client.close()

        world.run(scenario())
