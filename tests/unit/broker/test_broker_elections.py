"""What a running controller elects as settings and brokers change."""

from __future__ import annotations

import pytest

from kdist.model import TopicPartition
from kdist.protocol.describe_configs import ALL_BROKERS, BROKER, TOPIC
from kdist.protocol.incremental_alter_configs import SET
from kdist.zk import znodes
from kdist.zk.topic_values import PartitionState, TopicAssignment
from tests.simulator.cluster import Cluster
from tests.unit.broker.broker_configs import change

CLICKS = TopicPartition("clicks", 0)
UNCLEAN = "unclean.leader.election.enable"


def state_of(cluster: Cluster) -> PartitionState | None:
    path = znodes.PARTITION_STATE.path(*CLICKS)
    if cluster.ensemble.tree.exists(path) is None:
        return None
    return znodes.PARTITION_STATE.decode(path, cluster.ensemble.tree.get(path).data)


def led_by(cluster: Cluster, leader: int) -> bool:
    state = state_of(cluster)
    return state is not None and state.leader == leader


async def assign(cluster: Cluster, *replicas: int) -> None:
    """Write a topic as a tool does."""
    data = TopicAssignment({0: replicas}, None).encode()
    await cluster.zks[replicas[0]].create(znodes.TOPIC.path("clicks"), data)
    await cluster.until(lambda: state_of(cluster))


@pytest.mark.parametrize(
    ("kind", "name"), [(TOPIC, "clicks"), (BROKER, ALL_BROKERS), (BROKER, "2")]
)
def test_an_unclean_election_that_is_allowed_at_last_is_held(kind: int, name: str) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        first = await cluster.started(1)
        second = await cluster.started(2)
        await assign(cluster, 1, 2)
        await second.stop()
        await cluster.until(lambda: getattr(state_of(cluster), "isr", ()) == (1,))
        cluster.kill(first)
        second = await cluster.started(2)
        await cluster.until(lambda: led_by(cluster, -1))
        await cluster.until(lambda: second.service.controller.is_active)
        client = await cluster.client(2)
        assert (await change(client, (UNCLEAN, SET, "true"), name=name, kind=kind)).error_code == 0
        await cluster.until(lambda: led_by(cluster, 2))
        assert second.measures.controller.unclean_elections == 1

    cluster.run(scenario())
