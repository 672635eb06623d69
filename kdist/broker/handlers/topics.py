"""CreateTopics, DeleteTopics, CreatePartitions (keys 19, 20, 37): carried out by the controller.

Any other broker answers NOT_CONTROLLER for each topic, and clients turn to the controller that
Metadata names. While a broker does not know whether it is the controller, requests wait, within
their timeout.
"""

from __future__ import annotations

from collections.abc import Callable

from kdist.config.broker_config import BrokerConfig
from kdist.controller.commands import Outcome
from kdist.controller.controller import Controller
from kdist.controller.topics import completed
from kdist.errors import Error
from kdist.model import ZERO_UUID
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

Overrides = tuple[tuple[str, str], ...]
"""Names and values, as a request gives them."""

_FIRST_VERSION_OF_IDS = 6  # of DeleteTopics
_FIRST_VERSION_OF_DELETION_DISABLED = 3


class TopicsHandler:
    """Owner: the broker."""

    def __init__(self, controller: Controller, config: Callable[[], BrokerConfig]) -> None:
        self._controller = controller
        self._config = config

    async def create(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        """One result for each topic of the request, also for one that it names twice."""
        topics = [completed(new, self._config()) for new in request.topics]
        outcomes = await self._controller.create_topics(
            topics, request.timeout_ms, request.validate_only
        )
        described: dict[Overrides, list[TopicSettingResult]] = {}  # a hundred topics have the same
        results = {
            new.name: self._created(new, outcome, described)
            for new, outcome in zip(topics, outcomes, strict=True)
        }
        return CreateTopicsResponse(topics=list(results.values()))

    def _created(
        self,
        new: NewTopic,
        outcome: Outcome,
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

    async def delete(self, request: DeleteTopicsRequest, version: int) -> DeleteTopicsResponse:
        """As `create`."""
        deleted = request.topics
        if version < _FIRST_VERSION_OF_IDS:
            deleted = [TopicToDelete(name=name) for name in request.topic_names]
        outcomes = await self._controller.delete_topics(deleted, request.timeout_ms)
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

    async def grow(self, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        """As `create`."""
        outcomes = await self._controller.create_partitions(
            request.topics, request.timeout_ms, request.validate_only
        )
        results = {
            grown.name: GrownTopicResult(
                name=grown.name, error_code=outcome.error, error_message=outcome.sentence
            )
            for grown, outcome in zip(request.topics, outcomes, strict=True)
        }
        return CreatePartitionsResponse(results=list(results.values()))


def _deletion_error(error: Error, version: int) -> Error:
    if error is Error.TOPIC_DELETION_DISABLED and version < _FIRST_VERSION_OF_DELETION_DISABLED:
        return Error.INVALID_REQUEST  # clients of that time know no other (KIP-322)
    return error
