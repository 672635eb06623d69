"""What a running controller elects as settings and brokers change."""

from __future__ import annotations

import pytest

from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.describe_configs import ALL_BROKERS, BROKER, TOPIC
from kdist.protocol.elect_leaders import (
    PREFERRED,
    ElectionTopic,
    ElectLeadersRequest,
)
from kdist.protocol.elect_leaders import (
    UNCLEAN as UNCLEAN_TYPE,
)
from kdist.protocol.incremental_alter_configs import SET
from kdist.zk import znodes
from kdist.zk.values import PartitionState, TopicAssignment
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
async def test_an_unclean_election_that_is_allowed_at_last_is_held(
    cluster: Cluster, kind: int, name: str
) -> None:
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


# ElectLeaders


async def elect(
    cluster: Cluster, broker_id: int, *partitions: int, how: int = PREFERRED
) -> tuple[Error, dict[int, Error]]:
    """The answer's error, and those of partitions of `clicks`; without partitions, of all."""
    named = [ElectionTopic(topic="clicks", partitions=list(partitions))] if partitions else None
    request = ElectLeadersRequest(election_type=how, topic_partitions=named, timeout_ms=5_000)
    client = await cluster.client(broker_id)
    answer = await client.send(request, 2)
    results = [each for topic in answer.replica_election_results for each in topic.partition_result]
    errors = {each.partition_id: Error.of(each.error_code) for each in results}
    assert len(errors) == len(results)
    return Error.of(answer.error_code), errors


async def test_the_controller_answers_for_each_partition_once_and_others_that_they_are_not_it(
    cluster: Cluster,
) -> None:
    await cluster.started(1)
    await cluster.started(2)
    await assign(cluster, 1)
    needless = {0: Error.ELECTION_NOT_NEEDED, 7: Error.UNKNOWN_TOPIC_OR_PARTITION}
    assert await elect(cluster, 1, 0, 7, 0) == (Error.NONE, needless)
    assert await elect(cluster, 1) == (Error.NONE, {})
    assert await elect(cluster, 1, 0, how=UNCLEAN_TYPE) == (
        Error.NONE,
        {0: Error.ELECTION_NOT_NEEDED},
    )
    assert await elect(cluster, 1, 0, how=2) == (Error.INVALID_REQUEST, {})
    await cluster.until(lambda: cluster.brokers[2].service.cache.topics)
    for asked in ((), (0,)):
        assert await elect(cluster, 2, *asked) == (Error.NONE, {0: Error.NOT_CONTROLLER})
