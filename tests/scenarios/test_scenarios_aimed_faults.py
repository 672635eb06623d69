"""What the simulator's aimed faults rest on: messages that meet, and writes of unknown outcome."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from kdist.client.admin.asynchronous import AsyncAdmin
from kdist.network.simulated_transport import SimulatedTransport
from kdist.zk.client import Create, SessionState
from kdist.zk.errors import ConnectionLoss
from kdist.zk.session import Multi
from tests.simulator.bug import Bug, patched
from tests.simulator.cluster import PORT, Cluster, produce
from tests.simulator.messages import FETCHED, LEADER_AND_ISR, Messages, Wanted
from tests.simulator.record import Trace

IDS = (1, 2, 3)


def arrivals_of_a_join(seed: int) -> list[tuple[float, str]]:
    """Hold what a follower's Fetch is answered until the controller tells of another topic; when
    something arrived at the follower then, and from whom."""
    cluster = Cluster(seed)
    trace = Trace(cluster)
    messages = Messages(trace, IDS, cluster.rng)
    found: list[tuple[float, str, str]] = []

    def noting(arrive: Callable[..., None]) -> Callable[..., None]:
        def noted(self: SimulatedTransport, piece: bytes) -> None:
            if trace.sometimes:
                found.append((trace.now_s, self.remote.host, self.local.host))
            arrive(self, piece)

        return noted

    async def scenario() -> str:
        messages.begin()
        for each in IDS:
            await cluster.started(each)  # the first of them is the controller
        network = cluster.network.host("operator")
        async with AsyncAdmin([f"m1:{PORT}"], network=network) as admin:
            await admin.create_topic("held", 1, 3)
            hosts = {each.id: each.service.replicas.partitions for each in cluster.brokers.values()}
            await cluster.until(lambda: all(("held", 0) in each for each in hosts.values()))
            (leader,) = (i for i, each in hosts.items() if each["held", 0].is_leader)
            follower = next(each for each in (2, 3) if each != leader)
            messages.hold(follower, Wanted(FETCHED, leader, (LEADER_AND_ISR,), 30.0))
            await produce(await cluster.client(leader), "held", b"record", acks=1)
            await cluster.until(lambda: messages._held)
            await admin.create_topic("told", 1, 3)
            log = hosts[follower]["held", 0].log
            await cluster.until(lambda: log.end_offset == 1)
        return f"m{follower}"

    with patched(Bug(SimulatedTransport, "arrive", noting)):
        follower = cluster.run(scenario())
    assert trace.sometimes[f"{FETCHED} joined with {LEADER_AND_ISR}"] == 1
    return [(at_s, sender) for at_s, sender, to in found if to == follower]


def test_a_message_that_is_held_arrives_at_one_moment_with_another_in_either_order() -> None:
    orders = set()
    for seed in range(8):
        arrivals = arrivals_of_a_join(seed)
        (joined,) = [(a, b) for (at_s, a), (then_s, b) in pairwise(arrivals) if at_s == then_s]
        orders.add(joined)
    assert len({frozenset(each) for each in orders}) < len(orders)  # both orders of two hosts


@pytest.mark.parametrize("is_carried_out", [False, True])
def test_a_write_is_lost_before_or_after_it_is_carried_out(is_carried_out: bool) -> None:
    cluster = Cluster(1)
    asked: list[bool] = []

    def is_to_be_lost(request: Any) -> bool:
        if isinstance(request, Multi):
            asked.append(True)
        return len(asked) == 1 + is_carried_out

    async def scenario() -> None:
        zk = cluster.ensemble.client()
        await zk.connect()
        cluster.ensemble.is_to_be_lost = is_to_be_lost
        with pytest.raises(ConnectionLoss):
            await zk.multi([Create("/written")])
        assert bool(cluster.ensemble.tree.exists("/written")) == is_carried_out
        await cluster.until(lambda: zk.state is SessionState.CONNECTED)
        cluster.ensemble.is_to_be_lost = lambda _request: False
        await zk.close()

    cluster.run(scenario())
