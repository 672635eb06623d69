"""Leaders of partitions: have preferred ones elected, or any where nobody leads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kdist.client.admin.asking import TIMEOUT_MS, ask_controller
from kdist.client.admin.outcomes import fault_of, listed, settled
from kdist.client.admin.topics import require_partitions
from kdist.client.cluster import Cluster, in_topics, raise_for
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.protocol.elect_leaders import (
    PREFERRED,
    UNCLEAN,
    ElectionTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
)


async def elect_leaders(
    cluster: Cluster,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    is_unclean: bool = False,
) -> dict[TopicPartition, bool]:
    """Have partitions led by their preferred replicas; with None, all that are not.

    True for each that was given another leader, False if none was needed. `SomeFailed` where the
    preferred replica is not in sync. `is_unclean`: have those that nobody leads led by any replica
    that is alive. The records that it lacks are lost.
    """
    topics = None
    if partitions is not None:
        wanted = listed(partitions)
        await require_partitions(cluster, wanted)
        topics = in_topics(ElectionTopic, wanted, lambda key: key.partition, name="topic")
    request = ElectLeadersRequest(
        election_type=UNCLEAN if is_unclean else PREFERRED,
        topic_partitions=topics,
        timeout_ms=TIMEOUT_MS,
    )
    return settled(await ask_controller(cluster, request, _outcomes))


def _outcomes(answer: ElectLeadersResponse) -> dict[TopicPartition, bool | ApiError]:
    """NOT_CONTROLLER, which a broker returns for all, is raised."""
    raise_for(answer.error_code)
    return {
        TopicPartition(topic.topic, each.partition_id): _outcome(topic.topic, each)
        for topic in answer.replica_election_results
        for each in topic.partition_result
    }


def _outcome(topic: str, found: Any) -> bool | ApiError:
    if found.error_code == Error.NOT_CONTROLLER:
        raise_for(found.error_code)
    if found.error_code == Error.ELECTION_NOT_NEEDED:
        return False
    partition = TopicPartition(topic, found.partition_id)
    return fault_of(found.error_code, str(partition), found.error_message) or True
