"""A principal's connections are ended by a notification, on all brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kdist.broker.disconnects import order_disconnect
from kdist.model import ANONYMOUS, Principal
from tests.simulator.cluster import PORT
from tests.unit.broker.broker_gates import Gated


def run(scenario: Callable[[Gated], Any]) -> None:
    cluster = Gated()

    async def opened() -> None:
        await cluster.opened()
        await scenario(cluster)

    cluster.run(opened())


pytestmark = pytest.mark.played(by=run)


async def test_a_principal_is_disconnected_and_may_connect_again(cluster: Gated, /) -> None:
    alice, bob, nobody = [await cluster.peer() for _ in range(3)]
    await alice.prove("alice")
    await bob.prove("bob")
    await order_disconnect(cluster.zks[1], Principal("User", "alice"))
    await cluster.until(lambda: alice.is_closed)
    assert await bob.is_served()
    assert not nobody.is_closed
    again = await cluster.peer()
    await again.prove("alice")
    assert await again.is_served()


async def test_who_has_connected_again_is_not_disconnected_by_an_order_about_others(
    cluster: Gated, /
) -> None:
    alice, bob = await cluster.peer(), await cluster.peer()
    await alice.prove("alice")
    await bob.prove("bob")
    await order_disconnect(cluster.zks[1], Principal("User", "alice"))
    await cluster.until(lambda: alice.is_closed)
    again = await cluster.peer()
    await again.prove("alice")
    await order_disconnect(cluster.zks[1], Principal("User", "bob"))
    await cluster.until(lambda: bob.is_closed)
    assert await again.is_served()


async def test_all_brokers_hear_of_it_and_none_that_starts_later_does(cluster: Gated, /) -> None:
    await cluster.started(2)
    peer = await cluster.network.host("peer").connect(type(await cluster.peer()), "m2", PORT)
    await order_disconnect(cluster.zks[1], ANONYMOUS)
    await cluster.until(lambda: peer.is_closed)
    await cluster.started(3)
    peer = await cluster.network.host("peer").connect(type(await cluster.peer()), "m3", PORT)
    assert await peer.is_served()


async def test_an_order_that_names_nobody_is_ignored(cluster: Gated, /) -> None:
    peer = await cluster.peer()
    await peer.prove("alice")
    zk = cluster.zks[1]
    for data in (b"alice", b"\xff", b""):
        await zk.create("/kdist/disconnects/disconnect_", data, sequential=True)
    await order_disconnect(zk, Principal("User", "somebody"))
    await cluster.until(lambda: len(cluster.brokers[1]._disconnects._seen) == 4)
    assert await peer.is_served()
