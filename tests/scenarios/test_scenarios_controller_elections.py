"""Leaders are elected by request: of a client, of an old tool, and of the controller itself."""

from __future__ import annotations

import asyncio

import pytest
from controller_states import assign, controller_of, overwrite, settle, state_of
from controller_world import GIVEN, Cluster, in_cluster

from kdist.config.load import broker_from
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.elect_leaders import PREFERRED, UNCLEAN
from kdist.zk import znodes
from kdist.zk.values import PreferredElection
from tests.refusals import refused

CLICKS = TopicPartition("clicks", 0)
OTHER = TopicPartition("clicks", 1)
TIMEOUT_MS = 5_000


async def elect(
    cluster: Cluster, *partitions: TopicPartition, how: int = PREFERRED
) -> dict[TopicPartition, Error | None]:
    asked = list(partitions) or None
    outcomes = await controller_of(cluster).elect_leaders(asked, how, TIMEOUT_MS)
    return {each: fault and fault.error for each, fault in outcomes.items()}


async def unbalanced(cluster: Cluster) -> None:
    """Broker 2 was away, and leads nothing any more: it is in sync again."""
    await cluster.start()
    await assign(cluster, "clicks", (2, 3), (3, 2))
    cluster.nodes[2].expire()
    await cluster.until(lambda: state_of(cluster, CLICKS)[0].leader == 3)
    await cluster.converge()
    for partition in (CLICKS, OTHER):
        overwrite(cluster, partition, isr=(3, 2))


@pytest.mark.played(by=in_cluster, seed=70)
async def test_a_preferred_replica_in_sync_is_elected_when_a_client_asks(
    cluster: Cluster, /
) -> None:
    await unbalanced(cluster)
    unknown = TopicPartition("views", 0)
    outcomes = await elect(cluster, CLICKS, OTHER, unknown)
    assert outcomes == {
        CLICKS: Error.PREFERRED_LEADER_NOT_AVAILABLE,  # as far as the controller knows
        OTHER: Error.ELECTION_NOT_NEEDED,
        unknown: Error.UNKNOWN_TOPIC_OR_PARTITION,
    }
    cluster.nodes[1].expire()  # the next term reads what is in ZooKeeper
    await asyncio.sleep(1)
    await cluster.converge()
    assert await elect(cluster) == {CLICKS: None}
    state, _ = state_of(cluster, CLICKS)
    assert (state.leader, state.isr) == (2, (3, 2))
    for node in cluster.nodes.values():  # every broker knows before the client is answered
        assert node.peer.metadata[CLICKS].leader == 2
    assert await elect(cluster) == {}


@pytest.mark.played(by=in_cluster, seed=71)
async def test_a_topic_that_is_being_deleted_gets_no_leader(cluster: Cluster, /) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2, 3))
    cluster.nodes[3].kill()
    await cluster.until(lambda: 3 not in cluster.registered())
    assert await cluster.delete("clicks") == "NONE"
    assert await elect(cluster, CLICKS) == {CLICKS: Error.INVALID_TOPIC_EXCEPTION}


@pytest.mark.played(by=in_cluster, seed=72)
async def test_an_operator_orders_a_new_disk_to_be_led(cluster: Cluster, /) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2,), (3,))
    cluster.nodes[2].replace_disk()
    await settle(cluster)
    await cluster.until(lambda: state_of(cluster, CLICKS)[0].emptied == (2,))
    outcomes = await elect(cluster, CLICKS, OTHER, how=UNCLEAN)
    assert outcomes == {CLICKS: None, OTHER: Error.ELECTION_NOT_NEEDED}
    await cluster.converge()
    state, _ = state_of(cluster, CLICKS)
    assert (state.leader, state.isr, state.emptied) == (2, (2,), ())
    assert controller_of(cluster)._context.metrics.unclean_elections == 1
    cluster.nodes[2].kill()
    await cluster.until(lambda: state_of(cluster, CLICKS)[0].leader == -1)
    outcomes = await elect(cluster, CLICKS, how=UNCLEAN)
    assert outcomes == {CLICKS: Error.ELIGIBLE_LEADERS_NOT_AVAILABLE}


@pytest.mark.played(by=in_cluster, seed=73)
async def test_brokers_that_do_not_confirm_in_time_make_an_election_time_out(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2,))
    cluster.nodes[2].replace_disk()
    await settle(cluster)
    await cluster.until(lambda: state_of(cluster, CLICKS)[0].emptied == (2,))
    cluster.nodes[3].kill()  # its session lasts a while
    outcomes = await controller_of(cluster).elect_leaders([CLICKS], UNCLEAN, 200)
    fault = outcomes[CLICKS]
    assert fault is not None
    assert fault.error is Error.REQUEST_TIMED_OUT
    assert state_of(cluster, CLICKS)[0].leader == 2


@pytest.mark.played(by=in_cluster, seed=74)
async def test_another_broker_is_not_the_controller(cluster: Cluster, /) -> None:
    await cluster.start()
    other = cluster.nodes[2].controller
    assert other is not None
    with refused(Error.NOT_CONTROLLER):
        await other.elect_leaders(None, PREFERRED, TIMEOUT_MS)


@pytest.mark.parametrize("is_corrupt", [False, True])
@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.played(by=in_cluster, seed=75)
async def test_an_old_tools_request_is_carried_out_and_removed(
    cluster: Cluster, /, is_corrupt: bool, is_early: bool
) -> None:
    """Early: while there is no controller."""
    await unbalanced(cluster)
    if is_early:
        cluster.nodes[1].kill()
    else:
        cluster.nodes[1].expire()
        await asyncio.sleep(1)
        await cluster.converge()
    asked = PreferredElection((CLICKS, TopicPartition("views", 0)))
    data = b"no json" if is_corrupt else asked.encode()
    path = znodes.PREFERRED_ELECTION.path()
    tool = cluster.nodes[3].zk
    assert tool is not None
    for _ in range(2):
        await tool.create(path, data)
        await cluster.until(lambda: not cluster.exists(path))
        assert state_of(cluster, CLICKS)[0].leader == (3 if is_corrupt else 2)


@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.played(by=in_cluster, seed=76)
async def test_leaders_go_back_to_preferred_replicas_by_themselves_at_the_rate_that_settings_say(
    cluster: Cluster, /, is_enabled: bool
) -> None:
    cluster.config = broker_from(
        GIVEN
        | {
            "auto.leader.rebalance.enable": str(is_enabled).lower(),
            "leader.imbalance.check.interval.seconds": "20",
            "leader.imbalance.elections.per.check": "2",
        }
    )
    await cluster.start()
    partitions = [TopicPartition("clicks", i) for i in range(5)]
    await assign(cluster, "clicks", *[(2, 3)] * 5)
    cluster.nodes[2].expire()
    await cluster.until(lambda: state_of(cluster, CLICKS)[0].leader == 3)
    for partition in partitions:
        overwrite(cluster, partition, isr=(3, 2))
    cluster.nodes[1].expire()
    await cluster.until(lambda: cluster.controller is not None)
    await asyncio.sleep(1)
    begun_s = cluster.loop.time()

    def led() -> int:
        return sum(state_of(cluster, each)[0].leader == 2 for each in partitions)

    if not is_enabled:
        await asyncio.sleep(100)
        assert led() == 0
        return
    for after_s, expected in ((10, 2), (30, 4), (50, 5)):
        await asyncio.sleep(begun_s + after_s - cluster.loop.time())
        assert led() == expected
    await cluster.converge()
