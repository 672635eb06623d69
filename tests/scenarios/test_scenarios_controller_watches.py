"""Watches stay until they fire: however often controllers change, none is left behind."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from controller_world import Cluster, in_cluster

from kdist.controller.term import ControllerTerm
from kdist.zk import znodes
from kdist.zk.client import Stat, Watch

CHANGES = 5


async def change_controllers(cluster: Cluster) -> list[weakref.ref[ControllerTerm]]:
    """Depose controllers by deleting the claim, as an operator would; returns the ended terms."""
    terms: list[weakref.ref[ControllerTerm]] = []
    for _ in range(CHANGES):
        assert cluster.controller is not None
        assert cluster.controller._term is not None
        terms.append(weakref.ref(cluster.controller._term))
        zk = cluster.nodes[1].zk
        assert zk is not None
        await zk.delete(znodes.CONTROLLER.path())
        await cluster.until(
            lambda: cluster.controller and cluster.controller._term is not terms[-1]()
        )
        await cluster.converge()
    return terms


@pytest.mark.played(by=in_cluster, seed=31)
async def test_a_candidate_watches_its_registration_once(cluster: Cluster, /) -> None:
    await cluster.start()
    await change_controllers(cluster)
    for node in cluster.nodes.values():
        assert node.zk is not None
        watches = cluster.ensemble._connections[node.zk].data_watches
        assert len(watches[znodes.BROKER.path(node.id)]) == 1


@pytest.mark.played(by=in_cluster, seed=32, brokers=1)
async def test_the_watches_of_an_ended_term_do_not_keep_its_cluster_state_alive(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await cluster.create("clicks")
    terms = await change_controllers(cluster)
    await asyncio.sleep(1)  # timers of the last one run out
    gc.collect()
    assert [each() for each in terms] == [None] * CHANGES


@pytest.mark.played(by=in_cluster, seed=33, brokers=1)
async def test_a_claim_that_is_deleted_as_its_candidate_looks_for_it_is_made_again(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    zk, path = cluster.nodes[1].zk, znodes.CONTROLLER.path()
    assert zk is not None
    exists = zk.exists

    async def deleted_meanwhile(asked: str, watch: Watch | None = None) -> Stat | None:
        """The answer, once an event that came with it has called the watch."""
        stat = await exists(asked, watch)
        if asked == path and stat is not None:
            zk.exists = exists  # type: ignore[method-assign]
            await zk.delete(path)
        return stat

    zk.exists = deleted_meanwhile  # type: ignore[method-assign]
    await zk.delete(path)
    await cluster.until(lambda: zk.exists == exists)
    await asyncio.sleep(5)
    assert cluster.exists(path)
