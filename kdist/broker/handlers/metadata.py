"""Metadata, DescribeCluster, FindCoordinator (3, 60, 10): who is where, by the metadata cache.

    asked for          answered
    all topics         the known ones
    a known name       its partitions, with LEADER_NOT_AVAILABLE where there is no leader
    an unknown name    LEADER_NOT_AVAILABLE if it is now being created (`AutoCreation`),
                       else UNKNOWN_TOPIC_OR_PARTITION; TOPIC_AUTHORIZATION_FAILED if it would be
                       but the client may not create it
    an invalid name    INVALID_TOPIC_EXCEPTION; also for `a_b` if `a.b` exists and it would be
                       created
    an unknown id      UNKNOWN_TOPIC_ID, even if a name is given too

The controller is named if it has an endpoint on the client's listener; without one, clients retry.

A group's coordinator is the leader of its partition of `__consumer_offsets`. That topic is created
when the first client looks for a coordinator; until it has leaders the answer is
COORDINATOR_NOT_AVAILABLE, on which clients retry. A transactional id has no coordinator, as there
are no transactions yet: see `init_producer_id.py` for the error.

Source: Kafka's `KafkaApis.handleTopicMetadataRequest` and `ZkMetadataCache`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from functools import partial
from typing import Protocol

from kdist.broker.controller_access import AutoCreation
from kdist.broker.handlers import Call, Charged
from kdist.broker.handlers.init_producer_id import NO_TRANSACTIONS
from kdist.broker.metadata_cache import NO_CONTROLLER, KnownTopic, MetadataCache
from kdist.errors import Error
from kdist.groups.context import partition_for
from kdist.model import (
    INTERNAL_TOPICS,
    NO_LEADER,
    OFFSETS_TOPIC,
    ZERO_UUID,
    Broker,
    TopicPartition,
    topic_name_fault,
)
from kdist.protocol.describe_cluster import (
    BROKERS,
    CONTROLLERS,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedBroker,
)
from kdist.protocol.find_coordinator import (
    GROUP_KEY,
    TRANSACTION_KEY,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kdist.protocol.metadata import (
    OMITTED,
    ON_CLUSTER,
    ON_TOPIC,
    MetadataBroker,
    MetadataPartitionResult,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    MetadataTopicResult,
)
from kdist.protocol.update_metadata import UpdatedPartition

_FIRST_VERSION_OF_IDS = 12
_FIRST_VERSION_OF_LISTENER_NOT_FOUND = 6
_FIRST_VERSION_OF_MANY_KEYS = 4  # of FindCoordinator
_NOBODY = Broker(-1, "", -1)


class Asking(Call, Charged, Protocol):
    """A request by which topics may be created."""


class MetadataHandler:
    """Owner: the broker."""

    def __init__(self, cache: MetadataCache, creation: AutoCreation, cluster_id: str) -> None:
        self._cache = cache
        self._creation = creation
        self._cluster_id = cluster_id

    async def answer(self, request: MetadataRequest, call: Asking) -> MetadataResponse:
        """The metadata for a client. It waits until this broker has some, since it would take an
        empty answer for an empty cluster."""
        cache = self._cache
        await cache.loaded.wait()
        brokers = cache.brokers_on(call.listener)
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
            topics=list(self._topics(request, call, reachable)),
        )

    async def describe_cluster(
        self, request: DescribeClusterRequest, listener: str
    ) -> DescribeClusterResponse:
        """As `answer`, of the brokers alone."""
        error = _endpoint_fault(request.endpoint_type)
        if error is not Error.NONE:
            return DescribeClusterResponse(
                error_code=error,
                error_message=error.sentence,
                endpoint_type=request.endpoint_type,
                cluster_id="",
                brokers=[],
            )
        cache = self._cache
        await cache.loaded.wait()
        brokers = cache.brokers_on(listener)
        is_listed = any(each.id == cache.controller_id for each in brokers)
        asks_operations = request.include_cluster_authorized_operations
        return DescribeClusterResponse(
            error_code=Error.NONE,
            cluster_id=self._cluster_id,
            controller_id=cache.controller_id if is_listed else NO_CONTROLLER,
            brokers=[
                DescribedBroker(broker_id=each.id, host=each.host, port=each.port, rack=each.rack)
                for each in brokers
            ],
            cluster_authorized_operations=ON_CLUSTER if asks_operations else OMITTED,
        )

    def _topics(
        self, request: MetadataRequest, call: Asking, reachable: Set[int]
    ) -> Iterator[MetadataTopicResult]:
        asked, version = request.topics, call.version
        if asked is None or (version == 0 and not asked):
            for name, known in self._cache.topics.items():
                yield self._known(name, known, version, reachable, request)
        elif version < _FIRST_VERSION_OF_IDS and any(_is_by_id(each) for each in asked):
            for each in asked:
                yield _refused(Error.INVALID_REQUEST, each.name or "", each)
        else:
            for each in _once(asked):
                yield self._topic(each, call, reachable, request)

    def _topic(
        self, asked: MetadataTopic, call: Asking, reachable: Set[int], request: MetadataRequest
    ) -> MetadataTopicResult:
        name = asked.name
        if _is_by_id(asked):
            name = self._cache.name_of(asked.topic_id)
            if name is None:
                return _refused(Error.UNKNOWN_TOPIC_ID, None, asked)
        assert name is not None, "a request by id was handled above"
        known = self._cache.topics.get(name)
        if known is not None:
            return self._known(name, known, call.version, reachable, request)
        may_create = request.allow_auto_topic_creation
        if self._creation.lacks_right(name, may_create, call.connection.subject):
            return _refused(Error.TOPIC_AUTHORIZATION_FAILED, name, asked)
        if topic_name_fault(name):
            return _refused(Error.INVALID_TOPIC_EXCEPTION, name, asked)
        charge = partial(call.take, is_strict=False)
        error = self._creation.ask_for(name, may_create, charge)
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

    # FindCoordinator

    def find_coordinator(
        self, request: FindCoordinatorRequest, version: int, listener: str
    ) -> FindCoordinatorResponse:
        """Where clients on `listener` reach the coordinators."""
        if version >= _FIRST_VERSION_OF_MANY_KEYS:
            keys = request.coordinator_keys
            found = [self._coordinator(key, request.key_type, listener) for key in keys]
            return FindCoordinatorResponse(coordinators=found)
        one = self._coordinator(request.key, request.key_type, listener)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _coordinator(self, key: str, key_type: int, listener: str) -> Coordinator:
        error, sentence, broker = Error.NONE, None, _NOBODY
        if key_type == TRANSACTION_KEY:
            error = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            sentence = NO_TRANSACTIONS
        elif key_type != GROUP_KEY:
            error = Error.INVALID_REQUEST
            sentence = error.sentence
        elif (found := self._group_coordinator(key, listener)) is not None:
            broker = found
        else:
            error = Error.COORDINATOR_NOT_AVAILABLE
            sentence = error.sentence
        return Coordinator(
            key=key,
            node_id=broker.id,
            host=broker.host,
            port=broker.port,
            error_code=error,
            error_message=sentence,
        )

    def _group_coordinator(self, group_id: str, listener: str) -> Broker | None:
        cache = self._cache
        topic = cache.topics.get(OFFSETS_TOPIC)
        if topic is None:
            if cache.loaded.is_set():  # without metadata the topic may exist
                self._creation.create_offsets_topic()
            return None
        partition = TopicPartition(OFFSETS_TOPIC, partition_for(group_id, len(topic.partitions)))
        return cache.broker(cache.leader_of(partition), listener)


def _endpoint_fault(endpoint_type: int) -> Error:
    if endpoint_type == BROKERS:
        return Error.NONE
    if endpoint_type == CONTROLLERS:
        return Error.MISMATCHED_ENDPOINT_TYPE
    return Error.UNSUPPORTED_ENDPOINT_TYPE


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
