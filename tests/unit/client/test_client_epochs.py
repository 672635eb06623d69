"""Where a partition's leader epochs end, as its leader says."""

from __future__ import annotations

from kdist.client.cluster import Address, Cluster
from kdist.client.epochs import find_epoch_ends
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from tests.simulator.cluster import PORT, create, produce
from tests.simulator.cluster import Cluster as SimulatedCluster

PARTITION, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def test_an_epoch_ends_where_its_last_record_does_and_one_to_come_is_left_out() -> None:
    simulated = SimulatedCluster()

    async def work() -> None:
        await simulated.started(1)
        client = await simulated.client()
        await client.negotiate()
        await create(client, "t", partitions=2)
        await produce(client, "t", b"1", b"2")
        network = simulated.network.host("asks")
        cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("asks"))
        assert await find_epoch_ends(cluster, {PARTITION: 0, OTHER: 99}) == {PARTITION: 2}
        assert await find_epoch_ends(cluster, {}) == {}
        cluster.close()

    simulated.run(work())
