"""A follower's side of a fetch session (KIP-227): what its leader has been told.

A request names the partitions that are new or have moved, and those to forget: what is not ready
must not be answered. The first request names all; so does the first after an error, since then
nobody knows what the leader remembers. Without a session every request does.

Topics go by their ids from version 13 on. A partition whose topic has no id, as an old tool may
have left it, brings the session down to names.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping

from kdist.config.replication import ReplicationSettings
from kdist.model import NO_EPOCH, ZERO_UUID, TopicPartition
from kdist.protocol.fetch import (
    NEWEST_BY_NAME,
    VERSION_OF_TOPIC_IDS,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    FetchTopicResult,
    ForgottenTopic,
    ReplicaState,
)
from kdist.replication.fetching.followed import READY, FollowedPartition, Told

NO_SESSION = 0
_INITIAL_EPOCH = 0
_INT32_MAX = 0x7FFF_FFFF
_FIRST_VERSION_OF_EPOCHS = 12  # the leader compares those of the last batches
_FIRST_VERSION_OF_REPLICA_STATE = 15

Followed = Mapping[TopicPartition, FollowedPartition]


class FollowerSession:
    """Owner: the `ReplicaFetcher`, for one connection.

    `version` is that of its Fetch requests; `told` is what the leader remembers.
    """

    def __init__(
        self, broker_id: int, broker_epoch: Callable[[], int], settings: ReplicationSettings
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._settings = settings
        self._newest = self.version = NEWEST_BY_NAME
        self._topics: dict[uuid.UUID, str] = {}
        self.number = 0  # counts the sessions
        self.id = self._closed_id = NO_SESSION
        self.epoch = _INITIAL_EPOCH  # of the next request
        self.told: dict[TopicPartition, Told] = {}

    @property
    def is_open(self) -> bool:
        """Whether the leader remembers what it was told."""
        return self.id != NO_SESSION

    @property
    def finds_divergence(self) -> bool:
        """Whether the leader itself finds where a log diverges from its own."""
        return self.version >= _FIRST_VERSION_OF_EPOCHS

    def begin(self, version: int) -> None:
        """On a new connection: `version` is the newest Fetch that both sides know."""
        self._newest = self.version = version
        self.reset()

    def reset(self) -> None:
        """Begin anew: the leader remembers nothing, or is to forget it."""
        self.number += 1
        self._closed_id = self.id or self._closed_id
        self.id, self.epoch = NO_SESSION, _INITIAL_EPOCH
        self.told.clear()

    def opened(self, session_id: int) -> None:
        """Take the id that the answer to a request gives."""
        self._closed_id = NO_SESSION
        if session_id != self.id:
            self.id, self.epoch = session_id, 1 if session_id else _INITIAL_EPOCH

    def name_of(self, topic: FetchTopicResult) -> str:
        """The topic of a result; "" for an id that was not asked for."""
        return topic.topic or self._topics.get(topic.topic_id, "")

    def request(
        self,
        followed: Followed,
        dirty: Collection[TopicPartition],
        number: int,
        *,
        is_first: bool,
    ) -> FetchRequest | None:
        """The next request; None if there is nothing to fetch, or, unless it `is_first`, to tell.

        `dirty`: the partitions about which there may be something new to tell. `number` is noted in
        those that the request names.
        """
        if self.is_open and self._lacks_id(followed, dirty):
            self.reset()
        if not self.is_open:
            self._begin_anew(followed)
        named: list[tuple[TopicPartition, Told]] = []
        forgotten: list[tuple[TopicPartition, Told]] = []
        for key in dirty if self.is_open else followed:
            each, told = followed.get(key), self.told.get(key)
            wanted = each.wanted() if each is not None and each.state is READY else None
            if told is not None and (wanted is None or wanted.topic_id != told.topic_id):
                forgotten.append((key, self.told.pop(key)))
            if each is not None and wanted is not None and wanted != told:
                each.asked_round = number
                self.told[key] = wanted
                named.append((key, wanted))
        if not (named or forgotten or (is_first and self.told)):
            return None
        return self._request(named, forgotten)

    def _lacks_id(self, followed: Followed, dirty: Collection[TopicPartition]) -> bool:
        return self.version >= VERSION_OF_TOPIC_IDS and any(
            not followed[key].partition.topic_id.int for key in dirty if key in followed
        )

    def _begin_anew(self, followed: Followed) -> None:
        self.told.clear()
        ids = {each.partition.topic_id: key.topic for key, each in followed.items()}
        self.version = min(self._newest, NEWEST_BY_NAME) if ZERO_UUID in ids else self._newest
        self._topics = ids

    def _request(
        self,
        named: Iterable[tuple[TopicPartition, Told]],
        forgotten: Iterable[tuple[TopicPartition, Told]],
    ) -> FetchRequest:
        settings, epoch = self._settings, self.epoch
        if self.is_open:
            self.epoch = 1 if epoch == _INT32_MAX else epoch + 1
        request = FetchRequest(
            max_wait_ms=settings.fetch_wait_max_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_response_max_bytes,
            session_id=self.id or self._closed_id,
            session_epoch=epoch,
            topics=[],
            forgotten_topics_data=[],
        )
        if self.version >= _FIRST_VERSION_OF_REPLICA_STATE:
            request.replica_state = ReplicaState(
                replica_id=self._broker_id, replica_epoch=self._broker_epoch()
            )
        else:
            request.replica_id = self._broker_id
        topics: dict[tuple[str, int], FetchTopic] = {}  # an id as a number, which is hashed faster
        for key, told in named:
            place = key.topic, told.topic_id.int
            topic = topics.get(place)
            if topic is None:
                name, topic_id = self._naming(key, told)
                topic = topics[place] = FetchTopic(topic=name, topic_id=topic_id, partitions=[])
            topic.partitions.append(self._asked(key.partition, told))
        request.topics = list(topics.values())
        for key, told in forgotten:
            name, topic_id = self._naming(key, told)
            gone = ForgottenTopic(topic=name, topic_id=topic_id, partitions=[key.partition])
            request.forgotten_topics_data.append(gone)
        return request

    def _naming(self, key: TopicPartition, told: Told) -> tuple[str, uuid.UUID]:
        if self.version < VERSION_OF_TOPIC_IDS:
            return key.topic, ZERO_UUID
        self._topics[told.topic_id] = key.topic
        return "", told.topic_id

    def _asked(self, number: int, told: Told) -> FetchPartition:
        return FetchPartition(
            partition=number,
            current_leader_epoch=told.leader_epoch,
            fetch_offset=told.offset,
            last_fetched_epoch=told.last_epoch if self.finds_divergence else NO_EPOCH,
            log_start_offset=told.start_offset,
            partition_max_bytes=self._settings.fetch_max_bytes,
        )
