"""TCP keepalive: a client may wait for minutes and send nothing, so the kernel probes the peer."""

from __future__ import annotations

import socket

from network_world import Served, World, real_world

from kdist.network.client import Client, ClientSettings
from kdist.network.network import DEAD_S


def test_a_client_detects_a_dead_host_within_a_minute() -> None:
    for world in real_world():

        async def scenario(world: World = world) -> None:
            async with Served(world) as served:
                client = await Client.connect(
                    world.client, world.host, served.port, ClientSettings("t")
                )
                found = client._transport.get_extra_info("socket")
                assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                silent_s, probe_s, probes = (
                    found.getsockopt(socket.IPPROTO_TCP, option)
                    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                )
                assert silent_s + probe_s * probes == DEAD_S < 60
                client.close()

        world.run(scenario())
