"""Brokers that are asked to move partitions: whole brokers, with their logs and fetchers."""

from __future__ import annotations

from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kdist.protocol.list_partition_reassignments import (
    AskedReassignmentTopic,
    ListPartitionReassignmentsRequest,
)
from kdist.zk import znodes
from kdist.zk.topic_values import TopicAssignment
from tests.simulator.cluster import Cluster
from tests.unit.broker.test_broker_elections import assign

CLICKS = TopicPartition("clicks", 0)

Replicas = tuple[int, ...]


async def move(
    cluster: Cluster, broker_id: int, *targets: tuple[int, Replicas | None]
) -> tuple[Error, dict[int, Error]]:
    """The answer's error, and those of partitions of `clicks`."""
    partitions = [
        ReassignablePartition(partition_index=i, replicas=None if each is None else [*each])
        for i, each in targets
    ]
    topic = ReassignableTopic(name="clicks", partitions=partitions)
    request = AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=5_000)
    answer = await (await cluster.client(broker_id)).send(request, 0)
    results = [each for topic in answer.responses for each in topic.partitions]
    assert all(bool(each.error_message) == bool(each.error_code) for each in results)
    errors = {each.partition_index: Error.of(each.error_code) for each in results}
    return Error.of(answer.error_code), errors


async def listed(
    cluster: Cluster, broker_id: int, *asked: int
) -> dict[int, tuple[Replicas, Replicas, Replicas]] | Error:
    topics = [AskedReassignmentTopic(name="clicks", partition_indexes=[*asked])] if asked else None
    request = ListPartitionReassignmentsRequest(topics=topics, timeout_ms=5_000)
    answer = await (await cluster.client(broker_id)).send(request, 0)
    if answer.error_code:
        return Error.of(answer.error_code)
    return {
        each.partition_index: (
            tuple(each.replicas),
            tuple(each.adding_replicas),
            tuple(each.removing_replicas),
        )
        for topic in answer.topics
        for each in topic.partitions
    }


def topic_of(cluster: Cluster) -> TopicAssignment:
    path = znodes.TOPIC.path("clicks")
    return znodes.TOPIC.decode(path, cluster.ensemble.tree.get(path).data)


def test_a_partition_moves_and_its_former_broker_has_no_log_of_it() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        first = await cluster.started(1)
        second = await cluster.started(2)
        await cluster.started(3)
        await assign(cluster, 2)
        assert await move(cluster, 1, (0, (3, 1)), (7, (1,))) == (
            Error.NONE,
            {0: Error.NONE, 7: Error.UNKNOWN_TOPIC_OR_PARTITION},
        )
        await cluster.until(lambda: topic_of(cluster).partitions == {0: (3, 1)})
        await cluster.until(lambda: not topic_of(cluster).removed)
        assert await listed(cluster, 1) == {}
        assert CLICKS not in second.service.replicas.partitions
        assert CLICKS not in second.service.replicas.directory.logs
        assert first.service.replicas.partitions[CLICKS].adding == ()
        assert first.measures.controller.reassigning_partitions() == 0

    cluster.run(scenario())


def test_moves_under_way_are_listed_and_cancelled_and_what_is_asked_twice_is_refused() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        first = await cluster.started(1)
        await cluster.started(2)
        third = await cluster.started(3)
        await assign(cluster, 2, 1)
        await third.stop()
        await cluster.until(lambda: first.measures.controller.brokers() == 2)
        assert await move(cluster, 1, (0, (3, 2))) == (
            Error.NONE,
            {0: Error.INVALID_REPLICA_ASSIGNMENT},
        )
        third = await cluster.started(3)
        await cluster.until(lambda: first.measures.controller.brokers() == 3)
        third.service.replicas._fetchers.see_to = lambda _: None  # type: ignore[method-assign]
        assert await move(cluster, 1, (0, (3, 2))) == (Error.NONE, {0: Error.NONE})
        under_way = {0: ((3, 2, 1), (3,), (1,))}
        assert await listed(cluster, 1) == await listed(cluster, 1, 0, 5) == under_way
        assert await listed(cluster, 1, 5) == {}
        twice = await move(cluster, 1, (0, (1,)), (0, (2,)))
        assert twice == (Error.NONE, {0: Error.INVALID_REQUEST})
        for answer in (await move(cluster, 2, (0, (1,))), (await listed(cluster, 2), {})):
            assert answer == (Error.NOT_CONTROLLER, {})
        assert await move(cluster, 1, (0, None)) == (Error.NONE, {0: Error.NONE})
        assert topic_of(cluster).partitions == {0: (2, 1)}
        assert await move(cluster, 1, (0, None)) == (
            Error.NONE,
            {0: Error.NO_REASSIGNMENT_IN_PROGRESS},
        )

    cluster.run(scenario())
