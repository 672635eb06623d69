"""FindCoordinator (key 10): the leader of the group's partition of `__consumer_offsets`.

The topic is created when the first client looks for a coordinator; until it has leaders the answer
is COORDINATOR_NOT_AVAILABLE, on which clients retry. A transactional id has no coordinator, as
there are no transactions yet: see `init_producer_id.py` for the error.
"""

from __future__ import annotations

from kdist.broker.auto_creation import AutoCreation
from kdist.broker.metadata_cache import MetadataCache
from kdist.errors import Error
from kdist.groups.context import partition_for
from kdist.model import OFFSETS_TOPIC, Broker, TopicPartition
from kdist.protocol.find_coordinator import (
    GROUP_KEY,
    TRANSACTION_KEY,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

NOBODY = Broker(-1, "", -1)

_FIRST_VERSION_OF_MANY = 4


class FindCoordinatorHandler:
    """Owner: the broker."""

    def __init__(self, cache: MetadataCache, creation: AutoCreation) -> None:
        self._cache = cache
        self._creation = creation

    def answer(
        self, request: FindCoordinatorRequest, version: int, listener: str
    ) -> FindCoordinatorResponse:
        """Where clients on `listener` reach the coordinators."""
        if version >= _FIRST_VERSION_OF_MANY:
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
        error, sentence, broker = Error.NONE, None, NOBODY
        if key_type == TRANSACTION_KEY:
            error = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            sentence = "This release has no transactions."
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
