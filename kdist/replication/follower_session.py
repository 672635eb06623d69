"""What a follower asks its leader for, in a fetch session (KIP-227), and where their logs diverge.

    state      why                                                    leaves for
    READY      to be in the next fetch                                BUSY
    BUSY       records of it are being written or flushed, or its     READY, when that has ended
               end is being cut off, or its place is being looked for
    BACKED_OFF the leader has refused it, or what it sent, or         READY, after a pause
               enough was fetched for now (`throttles.py`)
    FENCED     the leader knows a newer epoch: the controller will    (followed anew, in that epoch)
               tell of it

Only a READY one is fetched. So with `flush.before.expose` the offset that a follower fetches from
tells the leader what is durable here (design R7).

A request names the partitions that are new or have moved, and those to forget: what is not ready
must not be answered. The first request names all; so does the first after an error, since then
nobody knows what the leader remembers. Without a session every request does.

Topics go by their ids from version 13 on. A partition whose topic has no id, as an old tool may
have left it, brings the session down to names.

Where their logs differ, the follower cuts its own off:

    the leader's answer                      the follower's own     the log then ends at
    epoch and its end                        that epoch's end       the lower of both ends
    epoch and its end                        only an older epoch    the end of that one: ask again
    epoch and its end                        no epoch so old        the leader's end
    -1: it has no epoch so old               -                      the high watermark (before v12)

The answer is about the largest epoch of the leader's that is not above the follower's newest, and
is asked for of leaders before v12. Only epochs count: to cut off at the own high watermark loses
what was committed (KIP-101), and to take the leader's end without comparing own epochs leaves a
wrong tail (KIP-279). The last row is what Kafka does, for old leaders that have lost their epochs.

Invariant: a leader knows each epoch that has had a record in its log, and where that began. So the
cleaner leaves the first batch of each (`records/_reference_cleaning.py`): whoever has copied a log
without it answers with an older epoch, at whose end what is committed is cut off, or with an end
that is too late, below which what is not committed stays.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from kdist.config.replication import ReplicationSettings
from kdist.errors import ApiError, Error
from kdist.model import NO_EPOCH, ZERO_UUID, TopicPartition
from kdist.network.client import Client
from kdist.protocol import list_offsets, offset_for_leader_epoch
from kdist.protocol.fetch import (
    NEWEST_BY_NAME,
    VERSION_OF_TOPIC_IDS,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchTopic,
    FetchTopicResult,
    ForgottenTopic,
    ReplicaState,
)
from kdist.protocol.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kdist.protocol.offset_for_leader_epoch import (
    AskedEpoch,
    AskedEpochTopic,
    OffsetForLeaderEpochRequest,
)
from kdist.replication.leadership import Following
from kdist.replication.partition import Partition
from kdist.replication.throttles import is_listed
from kdist.storage.epochs import EpochEnd, LeaderEpochs
from kdist.storage.log import Log
from kdist.wire.primitives import Buffer

NO_SESSION = 0
_INITIAL_EPOCH = 0
_INT32_MAX = 0x7FFF_FFFF
_FIRST_VERSION_OF_EPOCHS = 12  # the leader compares those of the last batches
_FIRST_VERSION_OF_REPLICA_STATE = 15


class FetchState(enum.Enum):
    """The value is its name in log lines."""

    READY = "ready"
    BUSY = "busy"
    BACKED_OFF = "backed off"
    FENCED = "fenced"


READY, BUSY, BACKED_OFF, FENCED = FetchState


class FetchPosition(NamedTuple):
    """What a leader was last asked for a partition, in a session."""

    offset: int
    leader_epoch: int
    last_epoch: int
    start_offset: int
    topic_id: uuid.UUID


class FollowedPartition:
    """Owner: the `ReplicaFetcher`. `role` is the partition's when the fetcher took it.

    `first_round` is the number of the first fetch that may ask for it in this role: the answers to
    those before are about an earlier one. `asked_round` is that of the last one that named it.
    """

    __slots__ = (
        "asked_round",
        "errors",
        "first_round",
        "is_aligned",
        "partition",
        "pause_ms",
        "role",
        "state",
    )

    def __init__(self, partition: Partition, role: Following, first_round: int) -> None:
        self.partition = partition
        self.role = role
        self.first_round = self.asked_round = first_round
        self.state = READY
        self.is_aligned = False  # with a leader that does not find by itself where logs diverge
        self.errors = 0  # in succession
        self.pause_ms = 0.0  # after what is being written, as enough was fetched for now

    @property
    def is_current(self) -> bool:
        """Whether the partition still has the role in which the fetcher took it."""
        return self.partition.role == self.role

    def may_wait(self, broker_id: int, *, was_asked: bool) -> bool:
        """Whether it is throttled: listed, and as far as is known behind, or empty and not asked
        for yet, so that nobody waits for it.
        """
        partition, log = self.partition, self.partition.log
        listed = log.settings.follower_replication_throttled_replicas
        if not (listed and is_listed(listed, partition.key.partition, broker_id)):
            return False
        is_new = not (log.reserved_offset or was_asked or broker_id in partition.state.isr)
        return is_new or partition.leader_high_watermark > log.reserved_offset

    def wanted(self) -> FetchPosition:
        """What to ask for now: what follows the end of the log."""
        log, topic_id = self.partition.log, self.partition.topic_id
        last_epoch = log.epochs.latest
        return FetchPosition(
            log.reserved_offset, self.role.epoch, last_epoch, log.start_offset, topic_id
        )

    def still_wants(self, position: FetchPosition) -> bool:
        """Whether an answer to this is one to what is wanted now: `wanted` begins the same."""
        log = self.partition.log
        return (
            position.offset == log.reserved_offset
            and position.leader_epoch == self.role.epoch
            and position.last_epoch == log.epochs.latest
        )


Followed = Mapping[TopicPartition, FollowedPartition]


class FollowerSession:
    """Owner: the `ReplicaFetcher`, for one connection.

    `version` is that of its Fetch requests; `positions` is what the leader remembers.
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
        self.positions: dict[TopicPartition, FetchPosition] = {}

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
        self.positions.clear()

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
            self._name_all(followed)
        named: list[tuple[TopicPartition, FetchPosition]] = []
        forgotten: list[tuple[TopicPartition, FetchPosition]] = []
        for key in dirty if self.is_open else followed:
            each, position = followed.get(key), self.positions.get(key)
            wanted = each.wanted() if each is not None and each.state is READY else None
            if position is not None and (wanted is None or wanted.topic_id != position.topic_id):
                forgotten.append((key, self.positions.pop(key)))
            if each is not None and wanted is not None and wanted != position:
                each.asked_round = number
                self.positions[key] = wanted
                named.append((key, wanted))
        if not (named or forgotten or (is_first and self.positions)):
            return None
        return self._request(named, forgotten)

    def _lacks_id(self, followed: Followed, dirty: Collection[TopicPartition]) -> bool:
        return self.version >= VERSION_OF_TOPIC_IDS and any(
            not followed[key].partition.topic_id.int for key in dirty if key in followed
        )

    def _name_all(self, followed: Followed) -> None:
        self.positions.clear()
        ids = {each.partition.topic_id: key.topic for key, each in followed.items()}
        self.version = min(self._newest, NEWEST_BY_NAME) if ZERO_UUID in ids else self._newest
        self._topics = ids

    def _request(
        self,
        named: Iterable[tuple[TopicPartition, FetchPosition]],
        forgotten: Iterable[tuple[TopicPartition, FetchPosition]],
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
        for key, position in named:
            place = key.topic, position.topic_id.int
            topic = topics.get(place)
            if topic is None:
                name, topic_id = self._naming(key, position)
                topic = topics[place] = FetchTopic(topic=name, topic_id=topic_id, partitions=[])
            topic.partitions.append(self._asked(key.partition, position))
        request.topics = list(topics.values())
        for key, position in forgotten:
            name, topic_id = self._naming(key, position)
            gone = ForgottenTopic(topic=name, topic_id=topic_id, partitions=[key.partition])
            request.forgotten_topics_data.append(gone)
        return request

    def _naming(self, key: TopicPartition, position: FetchPosition) -> tuple[str, uuid.UUID]:
        if self.version < VERSION_OF_TOPIC_IDS:
            return key.topic, ZERO_UUID
        self._topics[position.topic_id] = key.topic
        return "", position.topic_id

    def _asked(self, number: int, position: FetchPosition) -> FetchPartition:
        return FetchPartition(
            partition=number,
            current_leader_epoch=position.leader_epoch,
            fetch_offset=position.offset,
            last_fetched_epoch=position.last_epoch if self.finds_divergence else NO_EPOCH,
            log_start_offset=position.start_offset,
            partition_max_bytes=self._settings.fetch_max_bytes,
        )


def divergence_in(result: FetchPartitionResult) -> EpochEnd | None:
    """What the leader says of the epoch from which on the logs differ, if they do."""
    diverging = result.diverging_epoch
    if diverging is None or diverging.epoch < 0:
        return None
    return EpochEnd(diverging.epoch, diverging.end_offset)


def lies_before(log: Log, result: FetchPartitionResult) -> bool:
    """Whether the leader's log begins where this one ends, but within a batch that it sent whole.

    So its records below differ from this log's, which nobody can tell: they are deleted there.
    """
    base_offset = int.from_bytes(memoryview(cast(Buffer, result.records))[:8], "big")
    return log.start_offset < log.end_offset == result.log_start_offset > base_offset


def truncation_offset(
    epochs: LeaderEpochs, log_end_offset: int, high_watermark: int, leader: EpochEnd
) -> int:
    """The offset to truncate to (pure); the log end offset or more if nothing is to be cut off.

    Below the log start offset nothing of the log is the leader's: it begins anew there.
    """
    if leader.end_offset < 0:
        return high_watermark
    own = epochs.end_offset_for(leader.epoch, log_end_offset)
    if leader.epoch < 0 or own.epoch < 0:
        return min(leader.end_offset, log_end_offset)
    if own.epoch != leader.epoch:
        return min(own.end_offset, log_end_offset)
    return min(own.end_offset, leader.end_offset, log_end_offset)


async def find_bounds(client: Client, broker_id: int, each: FollowedPartition) -> tuple[int, int]:
    """The leader's log start and log end offset. ApiError if it does not tell."""
    end = await _offset_at(client, broker_id, each, LATEST_TIMESTAMP)
    return await _offset_at(client, broker_id, each, EARLIEST_TIMESTAMP), end


async def _offset_at(
    client: Client, broker_id: int, each: FollowedPartition, timestamp: int
) -> int:
    key = each.partition.key
    one = ListOffsetsPartition(
        partition_index=key.partition,
        current_leader_epoch=each.role.epoch,
        timestamp=timestamp,
    )
    topics = [ListOffsetsTopic(name=key.topic, partitions=[one])]
    request = ListOffsetsRequest(replica_id=broker_id, topics=topics)
    version = client.version_of(list_offsets.API)
    answer = await client.send(request, version)
    result = _only_result(answer.topics)
    if version:
        return int(result.offset)
    if not result.old_style_offsets:
        raise ApiError(Error.UNKNOWN_SERVER_ERROR, "the leader answered without an offset")
    return int(result.old_style_offsets[0])


async def end_of_epoch(client: Client, broker_id: int, each: FollowedPartition) -> EpochEnd:
    """Where the newest epoch of the follower's log ends in the leader's. ApiError as above."""
    key = each.partition.key
    one = AskedEpoch(
        partition=key.partition,
        current_leader_epoch=each.role.epoch,
        leader_epoch=each.partition.log.epochs.latest,
    )
    topics = [AskedEpochTopic(topic=key.topic, partitions=[one])]
    request = OffsetForLeaderEpochRequest(replica_id=broker_id, topics=topics)
    answer = await client.send(request, client.version_of(offset_for_leader_epoch.API))
    result = _only_result(answer.topics)
    return EpochEnd(result.leader_epoch, result.end_offset)


def _only_result(topics: Sequence[Any]) -> Any:
    """That of the one partition which was asked about; ApiError if it is an error, or not there."""
    results = [each for topic in topics for each in topic.partitions]
    if len(results) != 1:
        detail = f"the leader answered about {len(results)} partitions, where one was asked about"
        raise ApiError(Error.UNKNOWN_SERVER_ERROR, detail)
    if results[0].error_code:
        raise ApiError(Error.of(results[0].error_code))
    return results[0]
