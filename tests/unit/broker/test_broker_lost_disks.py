"""Brokers that come back without all that they had, with records: what leads, and what is read."""

from __future__ import annotations

from kdist.model import TopicPartition
from kdist.network.client import Client
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic, ReplicaAssignment
from kdist.zk import znodes
from kdist.zk.topic_values import PartitionState
from tests.simulator.cluster import Cluster, produce

CLICKS = TopicPartition("clicks", 0)


def state_of(cluster: Cluster) -> PartitionState:
    path = znodes.PARTITION_STATE.path(*CLICKS)
    return znodes.PARTITION_STATE.decode(path, cluster.ensemble.tree.get(path).data)


async def three(cluster: Cluster, *replicas: int) -> None:
    """Three brokers, of which the first is the controller, and the topic on some of them."""
    for broker_id in (1, 2, 3):
        await cluster.started(broker_id)
    new = NewTopic(
        name="clicks",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[ReplicaAssignment(partition_index=0, broker_ids=list(replicas))],
        configs=[],
    )
    client = await cluster.client(1)
    answer = await client.send(CreateTopicsRequest(topics=[new], timeout_ms=10_000), 7)
    assert answer.topics[0].error_code == 0


async def leader_of(cluster: Cluster) -> Client:
    """A client of the leader, once that knows that it leads."""
    leader = state_of(cluster).leader
    partitions = cluster.brokers[leader].service.replicas.partitions
    await cluster.until(lambda: CLICKS in partitions and partitions[CLICKS].is_leader)
    return await cluster.client(leader)


def end_offset(cluster: Cluster, broker_id: int) -> int:
    partition = cluster.brokers[broker_id].service.replicas.partitions.get(CLICKS)
    return -1 if partition is None else partition.log.end_offset


def test_a_leader_on_a_new_disk_truncates_nobody_and_is_filled_by_who_was_in_sync() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await three(cluster, 2, 3)
        assert (await produce(await leader_of(cluster), "clicks", b"a", b"b")).error_code == 0
        cluster.kill(cluster.brokers[2])
        del cluster.disks[2]
        await cluster.started(2)
        await cluster.until(lambda: set(state_of(cluster).isr) == {2, 3})
        assert state_of(cluster).leader == 3
        assert end_offset(cluster, 2) == end_offset(cluster, 3) == 2
        assert cluster.brokers[1].measures.controller.unclean_elections == 0

    cluster.run(scenario())


def test_an_only_replica_whose_host_went_down_leads_on_and_has_recovered_once_it_says_so() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await three(cluster, 2)
        assert (await produce(await leader_of(cluster), "clicks", b"a")).error_code == 0
        cluster.kill(cluster.brokers[2], is_power_lost=True)
        await cluster.started(2)
        metrics = cluster.brokers[1].measures.controller
        await cluster.until(lambda: state_of(cluster).leader == 2)
        await cluster.until(lambda: metrics.recovering_partitions() == 0)
        assert metrics.unclean_elections == 1
        assert (await produce(await leader_of(cluster), "clicks", b"b")).error_code == 0

    cluster.run(scenario())


def test_a_killed_process_has_lost_nothing_and_its_only_replica_leads_on_cleanly() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await three(cluster, 2)
        assert (await produce(await leader_of(cluster), "clicks", b"a")).error_code == 0
        cluster.kill(cluster.brokers[2])
        await cluster.started(2)
        await cluster.until(lambda: state_of(cluster).leader == 2)
        assert cluster.brokers[1].measures.controller.unclean_elections == 0
        assert end_offset(cluster, 2) == 1

    cluster.run(scenario())


def test_who_lost_its_page_cache_waits_for_the_other_member_of_the_isr_though_that_is_down() -> (
    None
):
    cluster = Cluster()

    async def scenario() -> None:
        await three(cluster, 2, 3)
        assert (await produce(await leader_of(cluster), "clicks", b"a", b"b")).error_code == 0
        # Both at once, so that both are in the ISR; one of them with its host.
        cluster.kill(cluster.brokers[2], is_power_lost=True)
        cluster.kill(cluster.brokers[3])
        await cluster.until(lambda: state_of(cluster).leader == -1)
        await cluster.started(2)
        await cluster.until(lambda: state_of(cluster).isr == (3,))
        assert state_of(cluster).leader == -1
        await cluster.started(3)
        await cluster.until(lambda: set(state_of(cluster).isr) == {2, 3})
        assert state_of(cluster).leader == 3
        assert end_offset(cluster, 2) == end_offset(cluster, 3) == 2

    cluster.run(scenario())
