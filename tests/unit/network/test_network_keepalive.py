"""Whether a silent peer is still there: the kernel asks, as who waits for minutes sends nothing."""

from __future__ import annotations

import socket

from network_world import Served, World, real_world

from kdist.network.client import Client, ClientSettings
from kdist.network.world import DEAD_S


def test_who_connects_hears_within_a_minute_that_the_peers_host_is_gone() -> None:
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
