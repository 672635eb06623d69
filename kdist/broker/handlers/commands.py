"""What clients ask of the controller: topics, their partitions, leaders and replicas.

CreateTopics, DeleteTopics, CreatePartitions (keys 19, 20, 37), ElectLeaders (43),
AlterPartitionReassignments and ListPartitionReassignments (45, 46). `controller/commands.py`
carries them out; any other broker answers NOT_CONTROLLER, and clients turn to the controller that
Metadata names. That error is each topic's; as in Apache Kafka, for ElectLeaders each partition's
and not the response's, so that clients report it; for reassignments the response's. While a broker
does not know whether it is the controller, requests wait, within their timeout. An ElectLeaders for
all partitions is answered for those that needed an election.

Partitions that are created and deleted are charged to who asks (KIP-599): in the order of the
request, before the controller is asked, and given back where it refuses: not where it is still at
it when the request's time is up.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

from kdist.broker.handlers import Charged
from kdist.broker.metadata_cache import MetadataCache
from kdist.config.broker_config import BrokerConfig
from kdist.controller.commands import PartitionErrors, TopicOutcome
from kdist.controller.controller import Controller
from kdist.controller.reassignments import Target
from kdist.controller.topics import BROKER_DEFAULT, completed
from kdist.errors import ApiError, Error
from kdist.model import ZERO_UUID, TopicPartition
from kdist.protocol import create_partitions, create_topics, delete_topics
from kdist.protocol.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kdist.protocol.api import Api
from kdist.protocol.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    GrownTopicResult,
)
from kdist.protocol.create_topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    NewTopic,
    NewTopicResult,
    TopicSettingResult,
)
from kdist.protocol.delete_topics import (
    DeletedTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    TopicToDelete,
)
from kdist.protocol.elect_leaders import (
    PREFERRED,
    UNCLEAN,
    ElectionPartitionResult,
    ElectionTopicResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from kdist.protocol.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

Overrides = tuple[tuple[str, str], ...]
"""Names and values, as a request gives them."""

_FIRST_VERSION_OF_IDS = 6  # of DeleteTopics
_FIRST_VERSION_OF_DELETION_DISABLED = 3
# From these on, clients know what THROTTLING_QUOTA_EXCEEDED is.
_FIRST_STRICT_VERSIONS = {
    create_topics.API.key: 6,
    delete_topics.API.key: 5,
    create_partitions.API.key: 3,
}
_CHARGED = (Error.NONE, Error.REQUEST_TIMED_OUT)

T = TypeVar("T")


class CommandsHandler:
    """Owner: the broker."""

    def __init__(
        self, controller: Controller, cache: MetadataCache, config: Callable[[], BrokerConfig]
    ) -> None:
        self._controller = controller
        self._cache = cache
        self._config = config

    async def create_topics(
        self, request: CreateTopicsRequest, call: Charged
    ) -> CreateTopicsResponse:
        """One result for each topic of the request, also for one that it names twice."""
        topics = [completed(new, self._config()) for new in request.topics]
        sizes = [0 if request.validate_only else self._size(new) for new in topics]
        outcomes = await self._charged(
            call,
            create_topics.API,
            list(zip(topics, sizes, strict=True)),
            lambda some: self._controller.create_topics(
                some, request.timeout_ms, request.validate_only
            ),
        )
        described: dict[Overrides, list[TopicSettingResult]] = {}  # a hundred topics have the same
        results = {
            new.name: self._created(new, outcome, described)
            for new, outcome in zip(topics, outcomes, strict=True)
        }
        return CreateTopicsResponse(topics=list(results.values()))

    async def _charged(
        self,
        call: Charged,
        api: Api,
        asked: Sequence[tuple[T, int]],
        ask: Callable[[list[T]], Awaitable[Sequence[TopicOutcome]]],
    ) -> list[TopicOutcome]:
        """An outcome for each that is asked for, with its number of partitions."""
        is_strict = call.version >= _FIRST_STRICT_VERSIONS[api.key]
        taken = [not size or call.take(size, is_strict=is_strict) for _, size in asked]
        outcomes = iter(
            await ask([each for (each, _), is_ in zip(asked, taken, strict=True) if is_])
        )
        found = []
        for (each, size), is_taken in zip(asked, taken, strict=True):
            outcome = next(outcomes) if is_taken else _exceeded(each)
            if size and is_taken and outcome.error not in _CHARGED:
                call.take(-size, is_strict=False)
            found.append(outcome)
        return found

    def _size(self, new: NewTopic) -> int:
        if new.assignments:
            return len(new.assignments)
        wanted = new.num_partitions
        return self._config().broker.num_partitions if wanted == BROKER_DEFAULT else max(0, wanted)

    def _created(
        self,
        new: NewTopic,
        outcome: TopicOutcome,
        described: dict[Overrides, list[TopicSettingResult]],
    ) -> NewTopicResult:
        result = NewTopicResult(
            name=new.name, error_code=outcome.error, error_message=outcome.sentence
        )
        topic = outcome.topic
        if outcome.error is Error.NONE and topic is not None:
            result.topic_id = topic.id
            result.num_partitions = len(topic.assignment)
            result.replication_factor = len(next(iter(topic.assignment.values())))
            overrides = tuple((e.name, e.value) for e in new.configs if e.value is not None)
            if overrides not in described:
                described[overrides] = self._settings(dict(overrides))
            result.configs = described[overrides]
        return result

    def _settings(self, overrides: dict[str, str]) -> list[TopicSettingResult]:
        return [
            TopicSettingResult(
                name=each.name,
                value=None if each.row.is_secret else each.text,
                read_only=False,
                config_source=each.source,
                is_sensitive=each.row.is_secret,
            )
            for each in self._config().describe_topic(overrides)
        ]

    async def delete_topics(
        self, request: DeleteTopicsRequest, call: Charged
    ) -> DeleteTopicsResponse:
        """As `create_topics`."""
        deleted, version = request.topics, call.version
        if version < _FIRST_VERSION_OF_IDS:
            deleted = [TopicToDelete(name=name) for name in request.topic_names]
        outcomes = await self._charged(
            call,
            delete_topics.API,
            [(each, self._known_size(each.name, each.topic_id)) for each in deleted],
            lambda some: self._controller.delete_topics(some, request.timeout_ms),
        )
        results = {
            (each.name, each.topic_id): DeletedTopicResult(
                name=outcome.name,
                topic_id=outcome.topic.id if outcome.topic else each.topic_id or ZERO_UUID,
                error_code=_deletion_error(outcome.error, version),
                error_message=outcome.sentence,
            )
            for each, outcome in zip(deleted, outcomes, strict=True)
        }
        return DeleteTopicsResponse(responses=list(results.values()))

    def _known_size(self, name: str | None, topic_id: uuid.UUID | None = None) -> int:
        """How many partitions a topic has; 0 for one that does not exist."""
        if name is None and topic_id is not None:
            name = self._cache.name_of(topic_id)
        topic = self._cache.topics.get(name or "")
        return 0 if topic is None else len(topic.partitions)

    async def create_partitions(
        self, request: CreatePartitionsRequest, call: Charged
    ) -> CreatePartitionsResponse:
        """As `create_topics`."""
        outcomes = await self._charged(
            call,
            create_partitions.API,
            [
                (each, 0 if request.validate_only else self._growth(each.name, each.count))
                for each in request.topics
            ],
            lambda some: self._controller.create_partitions(
                some, request.timeout_ms, request.validate_only
            ),
        )
        results = {
            grown.name: GrownTopicResult(
                name=grown.name, error_code=outcome.error, error_message=outcome.sentence
            )
            for grown, outcome in zip(request.topics, outcomes, strict=True)
        }
        return CreatePartitionsResponse(results=list(results.values()))

    def _growth(self, name: str, count: int) -> int:
        """All of them for a topic that this broker has not heard of: the controller may have."""
        return max(0, count - self._known_size(name))

    async def elect_leaders(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """INVALID_REQUEST for an election type that does not exist."""
        if request.election_type not in (PREFERRED, UNCLEAN):
            return _elected({}, Error.INVALID_REQUEST)
        asked = _each_once(request)
        try:
            outcomes = await self._controller.elect_leaders(
                asked, request.election_type, request.timeout_ms
            )
        except ApiError as failure:
            outcomes = dict.fromkeys(self._all() if asked is None else asked, failure)
        return _elected(outcomes)

    def _all(self) -> list[TopicPartition]:
        return [
            TopicPartition(name, index)
            for name, topic in self._cache.topics.items()
            for index in topic.partitions
        ]

    async def reassign(
        self, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        """Each partition is answered by itself; INVALID_REQUEST for one that is named twice."""
        named = [
            (TopicPartition(topic.name, each.partition_index), each.replicas)
            for topic in request.topics
            for each in topic.partitions
        ]
        targets: dict[TopicPartition, Target | None] = {}
        twice: PartitionErrors = {}
        for partition, replicas in named:
            if partition in targets:
                why = "The partition is named more than once."
                twice[partition] = ApiError(Error.INVALID_REQUEST, why)
            targets[partition] = None if replicas is None else tuple(replicas)
        for partition in twice:
            del targets[partition]
        try:
            outcomes = await self._controller.alter_reassignments(targets, request.timeout_ms)
        except ApiError as failure:
            return AlterPartitionReassignmentsResponse(
                error_code=failure.error, error_message=failure.detail, responses=[]
            )
        outcomes |= twice
        return AlterPartitionReassignmentsResponse(
            error_code=Error.NONE,
            responses=[
                ReassignableTopicResponse(
                    name=name, partitions=[_reassigned(each, outcomes[each]) for each in partitions]
                )
                for name, partitions in _by_topic(outcomes)
            ],
        )

    async def list_reassignments(
        self, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        """What is being moved of what is asked for."""
        asked = (
            None
            if request.topics is None
            else [
                TopicPartition(topic.name, index)
                for topic in request.topics
                for index in topic.partition_indexes
            ]
        )
        try:
            found = await self._controller.list_reassignments(asked, request.timeout_ms)
        except ApiError as failure:
            return ListPartitionReassignmentsResponse(
                error_code=failure.error, error_message=failure.detail, topics=[]
            )
        return ListPartitionReassignmentsResponse(
            error_code=Error.NONE,
            topics=[
                OngoingTopicReassignment(
                    name=name,
                    partitions=[
                        OngoingPartitionReassignment(
                            partition_index=each.partition,
                            replicas=[*found[each].replicas],
                            adding_replicas=[*found[each].adding],
                            removing_replicas=[*found[each].removing],
                        )
                        for each in partitions
                    ],
                )
                for name, partitions in _by_topic(found)
            ],
        )


def _exceeded(asked: Any) -> TopicOutcome:
    return TopicOutcome(asked.name, Error.THROTTLING_QUOTA_EXCEEDED)


def _deletion_error(error: Error, version: int) -> Error:
    if error is Error.TOPIC_DELETION_DISABLED and version < _FIRST_VERSION_OF_DELETION_DISABLED:
        return Error.INVALID_REQUEST  # clients of that time know no other (KIP-322)
    return error


def _each_once(request: ElectLeadersRequest) -> list[TopicPartition] | None:
    """The partitions to elect leaders for; None for all."""
    if request.topic_partitions is None:
        return None
    named = {
        TopicPartition(each.topic, index): None
        for each in request.topic_partitions
        for index in each.partitions
    }
    return list(named)


def _elected(outcomes: PartitionErrors, error: Error = Error.NONE) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        error_code=error,
        replica_election_results=[
            ElectionTopicResult(
                topic=name,
                partition_result=[
                    ElectionPartitionResult(
                        partition_id=each.partition,
                        error_code=Error.NONE if (fault := outcomes[each]) is None else fault.error,
                        error_message=None if fault is None else fault.detail,
                    )
                    for each in partitions
                ],
            )
            for name, partitions in _by_topic(outcomes)
        ],
    )


def _by_topic(found: Iterable[TopicPartition]) -> Iterator[tuple[str, list[TopicPartition]]]:
    for name, partitions in groupby(sorted(found), key=lambda each: each.topic):
        yield name, [*partitions]


def _reassigned(partition: TopicPartition, fault: ApiError | None) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=partition.partition,
        error_code=Error.NONE if fault is None else fault.error,
        error_message=None if fault is None else fault.detail or fault.error.sentence,
    )
