"""Metadata (key 3): brokers, topics and their leaders, from this broker's metadata cache.

    asked for          answered
    all topics         the known ones
    a known name       its partitions, with LEADER_NOT_AVAILABLE where there is no leader
    an unknown name    LEADER_NOT_AVAILABLE if it is now being created (`auto_creation.py`),
                       else UNKNOWN_TOPIC_OR_PARTITION
    an invalid name    INVALID_TOPIC_EXCEPTION; also for `a_b` if `a.b` exists and it would be
                       created
    an unknown id      UNKNOWN_TOPIC_ID, even if a name is given too

The controller is named if it has an endpoint on the client's listener; without one, clients retry.

Source: Kafka's `KafkaApis.handleTopicMetadataRequest` and `ZkMetadataCache`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from kdist.broker.auto_creation import AutoCreation
from kdist.broker.metadata_cache import NO_CONTROLLER, KnownTopic, MetadataCache
from kdist.errors import Error
from kdist.model import INTERNAL_TOPICS, NO_LEADER, ZERO_UUID, topic_name_fault
from kdist.protocol.metadata import (
    MetadataBroker,
    MetadataPartitionResult,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    MetadataTopicResult,
)
from kdist.protocol.operations import OMITTED, ON_CLUSTER, ON_TOPIC
from kdist.protocol.update_metadata import UpdatedPartition

_FIRST_VERSION_OF_IDS = 12
_FIRST_VERSION_OF_LISTENER_NOT_FOUND = 6


class MetadataHandler:
    """Owner: the broker."""

    def __init__(self, cache: MetadataCache, creation: AutoCreation, cluster_id: str) -> None:
        self._cache = cache
        self._creation = creation
        self._cluster_id = cluster_id

    async def answer(
        self, request: MetadataRequest, version: int, listener: str
    ) -> MetadataResponse:
        """The metadata for clients on `listener`. They wait until this broker has some, since they
        would take an empty answer for an empty cluster."""
        cache = self._cache
        await cache.loaded.wait()
        brokers = cache.brokers_on(listener)
        reachable = {each.id for each in brokers}
        is_listed = cache.controller_id in reachable
        return MetadataResponse(
            brokers=[
                MetadataBroker(node_id=each.id, host=each.host, port=each.port, rack=each.rack)
                for each in brokers
            ],
            cluster_id=self._cluster_id,
            controller_id=cache.controller_id if is_listed else NO_CONTROLLER,
            cluster_authorized_operations=(
                ON_CLUSTER if request.include_cluster_authorized_operations else OMITTED
            ),
            topics=list(self._topics(request, version, reachable)),
        )

    def _topics(
        self, request: MetadataRequest, version: int, reachable: Set[int]
    ) -> Iterator[MetadataTopicResult]:
        asked = request.topics
        if asked is None or (version == 0 and not asked):
            for name, known in self._cache.topics.items():
                yield self._known(name, known, version, reachable, request)
        elif version < _FIRST_VERSION_OF_IDS and any(_is_by_id(each) for each in asked):
            for each in asked:
                yield _refused(Error.INVALID_REQUEST, each.name or "", each)
        else:
            for each in _once(asked):
                yield self._topic(each, version, reachable, request)

    def _topic(
        self, asked: MetadataTopic, version: int, reachable: Set[int], request: MetadataRequest
    ) -> MetadataTopicResult:
        name = asked.name
        if _is_by_id(asked):
            name = self._cache.name_of(asked.topic_id)
            if name is None:
                return _refused(Error.UNKNOWN_TOPIC_ID, None, asked)
        assert name is not None, "a request by id was handled above"
        known = self._cache.topics.get(name)
        if known is not None:
            return self._known(name, known, version, reachable, request)
        if topic_name_fault(name):
            return _refused(Error.INVALID_TOPIC_EXCEPTION, name, asked)
        error = self._creation.ask_for(name, request.allow_auto_topic_creation)
        return _refused(error, name, asked)

    def _known(
        self,
        name: str,
        known: KnownTopic,
        version: int,
        reachable: Set[int],
        request: MetadataRequest,
    ) -> MetadataTopicResult:
        return MetadataTopicResult(
            error_code=Error.NONE,
            name=name,
            topic_id=known.id,
            is_internal=name in INTERNAL_TOPICS,
            topic_authorized_operations=(
                ON_TOPIC if request.include_topic_authorized_operations else OMITTED
            ),
            partitions=[
                self._partition(state, version, reachable)
                for _, state in sorted(known.partitions.items())
            ],
        )

    def _partition(
        self, state: UpdatedPartition, version: int, reachable: Set[int]
    ) -> MetadataPartitionResult:
        error, leader, alive = Error.NONE, state.leader, self._cache.brokers
        if leader not in reachable:
            is_old = version < _FIRST_VERSION_OF_LISTENER_NOT_FOUND
            is_known = leader in alive and not is_old
            error = Error.LISTENER_NOT_FOUND if is_known else Error.LEADER_NOT_AVAILABLE
            leader = NO_LEADER
        replicas, isr = state.replicas, state.isr
        if version == 0:  # clients of that version fail on the id of a broker that is not listed
            replicas = [each for each in replicas if each in alive]
            isr = [each for each in isr if each in alive]
        return MetadataPartitionResult(
            error_code=error,
            partition_index=state.partition_index,
            leader_id=leader,
            leader_epoch=state.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=isr,
            offline_replicas=[each for each in state.replicas if each not in alive],
        )


def _is_by_id(asked: MetadataTopic) -> bool:
    return asked.name is None or asked.topic_id != ZERO_UUID


def _once(asked: Iterable[MetadataTopic]) -> Iterator[MetadataTopic]:
    """The topics without duplicates."""
    return iter({(each.name, each.topic_id): each for each in asked}.values())


def _refused(error: Error, name: str | None, asked: MetadataTopic) -> MetadataTopicResult:
    return MetadataTopicResult(
        error_code=error,
        name=name,
        topic_id=asked.topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[],
    )
