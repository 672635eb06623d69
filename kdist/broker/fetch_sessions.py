"""Fetch sessions (KIP-227): the broker remembers what a client fetches, so each request is short.

A full fetch (session epoch 0) may create a session. From then on the client names only partitions
that are new, whose position moved, or that it forgets; the answer has only partitions with
something new. Each request increments the epoch, which reveals lost and repeated requests: the
client then starts over with a full fetch, as it does when its session was evicted.

    id  epoch   means                                    partitions fetched
    0   -1      no session, and none is wanted           those named
    0   0       a session is wanted                      those named
    n   0       close n, another one is wanted           those named
    n   -1      close n                                  those named
    n   1...    go on with n                             those of the session, changed as named

Since version 13 a client names topics by their ids, and a session has either ids or names. An id
that no topic has here is kept, since the broker may learn of it later.

A session is its subject's: to others it does not exist, whatever they guess. Who may read nothing
of what it names gets none, which might take another's place.

The number of sessions is limited. At the limit a new one evicts the least recently used, if that
was idle for two minutes; else the smallest one older than two minutes, if it is smaller than the
new one. A follower's session counts as larger than any consumer's, and evicts those of any age.
"""

from __future__ import annotations

import random
import uuid
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kdist.errors import ApiError, Error
from kdist.metrics.replication import ReplicationMetrics
from kdist.model import NO_LEADER, ZERO_UUID, TopicPartition
from kdist.protocol.fetch import (
    VERSION_OF_TOPIC_IDS,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchTopic,
)
from kdist.replication.delayed import DelayedOperation, Growth
from kdist.replication.partition import Partition
from kdist.runtime.clock import Clock
from kdist.security.subjects import ANYBODY, Subject

EVICTION_MS = 120_000  # Kafka's, and no setting there either

NO_SESSION = 0
_INITIAL_EPOCH = 0
_FINAL_EPOCH = -1
_INT32_MAX = 0x7FFF_FFFF
_UNKNOWN_OFFSET = -1
_NO_TOPIC = ""  # the topic of an id that nobody has here

Name = tuple[str | uuid.UUID, int]
"""A partition as its client names it: by its topic's name or, since version 13, by the id."""
NameOf = Callable[[uuid.UUID], str | None]
"""The name of the topic that has an id."""


class _Rank(NamedTuple):
    """The order of eviction, lowest first. Followers' sessions rank above all consumers'."""

    is_privileged: bool
    size: int
    id: int


class CachedPartition:
    """A fetched partition: what the client asks, and the offsets it was last told in its session.

    `topic_id` is the one that the client named, None if it named a topic. `key` has the topic that
    has the id now, or had it when a request last named it.

    Without a session it lives as long as the request. In one it depends on the `Partition` that it
    was last read from, or on its growth if a follower reads it, and so learns of each change.
    """

    __slots__ = (
        "_session",
        "asked",
        "high_watermark",
        "key",
        "log_start_offset",
        "source",
        "topic_id",
    )

    def __init__(
        self,
        key: TopicPartition,
        asked: FetchPartition,
        session: FetchSession | None = None,
        topic_id: uuid.UUID | None = None,
    ) -> None:
        self.key = key
        self.topic_id = topic_id
        self.asked = asked
        self.high_watermark = self.log_start_offset = _UNKNOWN_OFFSET
        self._session = session
        self.source: Partition | Growth | None = None

    @classmethod
    def of(
        cls, name: Name, asked: FetchPartition, name_of: NameOf, session: FetchSession | None = None
    ) -> CachedPartition:
        """What a client names like this."""
        topic, number = name
        if isinstance(topic, str):
            return cls(TopicPartition(topic, number), asked, session)
        return cls(TopicPartition(name_of(topic) or _NO_TOPIC, number), asked, session, topic)

    @property
    def name(self) -> Name:
        return self.topic_id or self.key.topic, self.key.partition

    def named(self) -> FetchTopic:
        """As a request names it."""
        if self.topic_id is None:
            return FetchTopic(topic=self.key.topic, partitions=[self.asked])
        return FetchTopic(topic_id=self.topic_id, partitions=[self.asked])

    def resolve(self, name_of: NameOf) -> None:
        """Look for the topic of an id that no topic had. Raises UNKNOWN_TOPIC_ID if none has it."""
        if self.topic_id is not None and self.key.topic == _NO_TOPIC:
            topic = name_of(self.topic_id)
            if topic is None:
                raise ApiError(Error.UNKNOWN_TOPIC_ID)
            self.key = TopicPartition(topic, self.key.partition)

    def is_of(self, partition: Partition) -> bool:
        """Whether it is this partition that the client names, not one of a topic made anew."""
        return self.topic_id is None or partition.topic_id in (self.topic_id, ZERO_UUID)

    @property
    def session(self) -> FetchSession:
        assert self._session is not None
        return self._session

    def join(self, session: FetchSession) -> None:
        """Enter a session, to be read at its next request."""
        self._session = session
        session.dirty[self] = None

    @property
    def is_dirty(self) -> bool:
        return self in self.session.dirty

    def mark_dirty(self) -> None:
        """Have it read at the session's next request, or when its waiting one is woken."""
        self.session.dirty[self] = None

    def depend_on(self, source: Partition | Growth | None) -> None:
        """Be marked dirty whenever this changes, and nothing else."""
        if self.source is not source:
            if self.source is not None:
                self.source.dependents.pop(self, None)
            if source is not None:
                source.dependents[self] = None
            self.source = source

    def was_told(self, high_watermark: int, log_start_offset: int) -> bool:
        """Whether the client was last told exactly these offsets."""
        return self.high_watermark == high_watermark and self.log_start_offset == log_start_offset

    def note(self, result: FetchPartitionResult) -> bool:
        """Record that the client gets `result`; return whether it contains anything new."""
        is_new = (
            bool(result.records)
            or not self.was_told(result.high_watermark, result.log_start_offset)
            or result.preferred_read_replica != NO_LEADER
        )
        self.high_watermark = result.high_watermark
        self.log_start_offset = result.log_start_offset
        if result.error_code or result.diverging_epoch is not None:
            # Nobody takes the offsets beside these: the first result after them is always new.
            self.high_watermark = _UNKNOWN_OFFSET
            return True
        return is_new


class FetchSession:
    """One client's. Owner: `FetchSessions`.

    `dirty` are the partitions to read for the next answer, in that order. Invariant: those that are
    not in it have no records at the offset that the client asks for, no error, and offsets that it
    was told. So a request, or the waking of a waiting one, costs as much as has changed.
    """

    __slots__ = (
        "created_ms",
        "dirty",
        "epoch",
        "id",
        "is_old",
        "is_privileged",
        "owner",
        "partitions",
        "rank",
        "rights_version",
        "used_ms",
        "uses_ids",
        "watchers",
    )
    dependents = ()

    def __init__(
        self, id_: int, now_ms: int, owner: Subject, *, uses_ids: bool, is_privileged: bool
    ) -> None:
        self.id = id_
        self.owner = owner
        self.rights_version = owner.rights_version
        self.uses_ids = uses_ids
        self.epoch = 1
        self.is_privileged = is_privileged
        self.created_ms = self.used_ms = now_ms
        self.partitions: dict[Name, CachedPartition] = {}
        self.dirty: dict[CachedPartition, None] = {}
        self.watchers: dict[DelayedOperation, None] = {}  # requests that wait, overtaken ones too
        self.is_old = False
        self.rank: _Rank | None = None  # before the first use

    def update(self, request: FetchRequest, name_of: NameOf) -> None:
        """Apply the partitions that a request adds, changes and forgets."""
        for name, asked in _partitions_of(request, self.uses_ids):
            cached = self.partitions.get(name)
            if cached is None:
                cached = CachedPartition.of(name, asked, name_of, self)
                self.partitions[name] = cached
            cached.asked = asked
            self.dirty[cached] = None
        for topic in request.forgotten_topics_data:
            topic_name = topic.topic_id if self.uses_ids else topic.topic
            for partition in topic.partitions:
                cached = self.partitions.pop((topic_name, partition), None)
                if cached is not None:
                    cached.depend_on(None)
                    self.dirty.pop(cached, None)

    def clean(self, cached: CachedPartition) -> None:
        """Nothing is new about it until it changes."""
        self.dirty.pop(cached, None)

    def note_rights(self) -> None:
        """Read all partitions anew if what its owner may read has changed."""
        if self.rights_version != self.owner.rights_version:
            self.rights_version = self.owner.rights_version
            self.dirty.update(dict.fromkeys(self.partitions.values()))

    def select(self, results: Results) -> Results:
        """Those with something new. Partitions that got records are served last the next time."""
        selected: Results = []
        for cached, result in results:
            if cached.note(result):
                selected.append((cached, result))
                if result.records and cached in self.dirty:
                    self.dirty[cached] = self.dirty.pop(cached)
        return selected

    def end(self) -> None:
        """Depend on nothing any more; a request that still waits is overtaken."""
        self.epoch = _FINAL_EPOCH
        for cached in self.partitions.values():
            cached.depend_on(None)
        self.dirty.clear()


Results = list[tuple[CachedPartition, FetchPartitionResult]]


class FetchContext(NamedTuple):
    """What one request fetches: `partitions`, or what is dirty in its session.

    `epoch`: the session's until its next request. `is_wanted`: create a session with the answer.
    """

    partitions: list[CachedPartition]
    session: FetchSession | None = None
    epoch: int = _FINAL_EPOCH
    is_wanted: bool = False
    uses_ids: bool = False
    is_follower: bool = False
    owner: Subject = ANYBODY


class FetchSessions:
    """All sessions of a broker. Owner: the fetch handler."""

    def __init__(
        self,
        slots: int,
        clock: Clock,
        rng: random.Random,
        metrics: ReplicationMetrics,
        name_of: NameOf,
    ) -> None:
        """`slots`: `max.incremental.fetch.session.cache.slots`."""
        self.name_of = name_of
        self._slots = slots
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._sessions: dict[int, FetchSession] = {}  # the least recently used first
        # Sorted ranks of the sessions that a larger one may evict: if it is a follower's, and
        # whoever's it is.
        self._below_followers: list[_Rank] = []
        self._below_all: list[_Rank] = []
        metrics.fetch_sessions = lambda: len(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest, version: int, owner: Subject) -> FetchContext:
        """What a request of `owner` fetches. ApiError FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.

        Requests before version 7 are decoded with epoch -1.
        """
        epoch, uses_ids = request.session_epoch, version >= VERSION_OF_TOPIC_IDS
        if epoch in (_INITIAL_EPOCH, _FINAL_EPOCH):
            if self.get(request.session_id, owner) is not None:
                self._remove(request.session_id)
            named = dict(_partitions_of(request, uses_ids))  # without duplicates
            return FetchContext(
                [CachedPartition.of(name, asked, self.name_of) for name, asked in named.items()],
                is_wanted=epoch == _INITIAL_EPOCH,
                uses_ids=uses_ids,
                is_follower=request.follower_id >= 0,
                owner=owner,
            )
        session = self.get(request.session_id, owner)
        if session is None:
            raise ApiError(Error.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise ApiError(Error.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_ids != uses_ids:
            raise ApiError(Error.FETCH_SESSION_TOPIC_ID_ERROR)
        session.update(request, self.name_of)
        session.epoch = _following(epoch)
        if not session.partitions:
            self._remove(session.id)
            return FetchContext([])
        self._touch(session)
        return FetchContext([], session, session.epoch)

    def get(self, session_id: int, owner: Subject) -> FetchSession | None:
        """The owner's session, if it still exists. This does not count as use."""
        session = self._sessions.get(session_id)
        return session if session is not None and session.owner is owner else None

    def only_partition(self, session_id: int) -> CachedPartition | None:
        """The partition of a session that has exactly one."""
        session = self._sessions.get(session_id)
        if session is None or len(session.partitions) != 1:
            return None
        (cached,) = session.partitions.values()
        return cached

    def named_by(self, request: FetchRequest, version: int) -> CachedPartition:
        """The partition of a request that names exactly one, outside sessions."""
        ((name, asked),) = _partitions_of(request, version >= VERSION_OF_TOPIC_IDS)
        return CachedPartition.of(name, asked, self.name_of)

    def go_on(self, session: FetchSession) -> None:
        """Note a request: the session moves on to the next epoch."""
        session.epoch = _following(session.epoch)
        self._touch(session)

    def close(self, context: FetchContext, results: Results) -> tuple[int, Results]:
        """The session id and the partitions to answer with.

        ApiError INVALID_FETCH_SESSION_EPOCH if the client has gone on without this answer.
        """
        session = context.session
        if session is not None:
            if session.epoch != context.epoch:
                raise ApiError(Error.INVALID_FETCH_SESSION_EPOCH)
            return session.id, session.select(results)
        if not context.is_wanted:
            return NO_SESSION, results
        return self._create(context, results), results

    def _create(self, context: FetchContext, results: Results) -> int:
        refused = Error.TOPIC_AUTHORIZATION_FAILED
        if all(result.error_code == refused for _, result in results):  # or there is none
            return NO_SESSION
        if not self._make_room(context.is_follower, len(results)):
            return NO_SESSION
        id_ = self._rng.randint(1, _INT32_MAX)
        while id_ in self._sessions:
            id_ = self._rng.randint(1, _INT32_MAX)
        session = FetchSession(
            id_,
            self._clock.now_ms(),
            context.owner,
            uses_ids=context.uses_ids,
            is_privileged=context.is_follower,
        )
        session.partitions = {cached.name: cached for cached in context.partitions}
        for cached in context.partitions:
            cached.join(session)
        for cached, result in results:
            cached.note(result)
        self._sessions[id_] = session
        self._touch(session)
        return id_

    # Who stays

    def _touch(self, session: FetchSession) -> None:
        """Note a use: it becomes the most recently used, and is ranked by its size and age."""
        now_ms = self._clock.now_ms()
        session.used_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)
        is_old = now_ms - session.created_ms > EVICTION_MS
        size = len(session.partitions)
        if session.rank is None or size != session.rank.size or is_old != session.is_old:
            self._rank(session, size, is_old)

    def _rank(self, session: FetchSession, size: int, is_old: bool) -> None:
        """Sort it in among the sessions that may be evicted, by its size and age."""
        self._unrank(session)
        session.is_old = is_old
        session.rank = rank = _Rank(session.is_privileged, size, session.id)
        if is_old or not session.is_privileged:
            insort(self._below_followers, rank)
        if is_old:
            insort(self._below_all, rank)

    def _make_room(self, is_privileged: bool, size: int) -> bool:
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if self._clock.now_ms() - oldest.used_ms > EVICTION_MS:
            self._evict(oldest.id)
            return True
        ranks = self._below_followers if is_privileged else self._below_all
        if not ranks or _Rank(is_privileged, size, 0) < ranks[0]:
            return False
        self._evict(ranks[0].id)
        return True

    def _evict(self, id_: int) -> None:
        self._remove(id_)
        self._metrics.evicted_sessions += 1

    def _remove(self, id_: int) -> None:
        session = self._sessions.pop(id_, None)
        if session is not None:
            self._unrank(session)
            session.end()

    def _unrank(self, session: FetchSession) -> None:
        rank = session.rank
        if rank is None:
            return
        for ranks in (self._below_followers, self._below_all):
            position = bisect_left(ranks, rank)
            if position < len(ranks) and ranks[position] == rank:
                del ranks[position]


def _following(epoch: int) -> int:
    """The epoch after this one; it wraps to 1, since 0 would create a session."""
    return 1 if epoch == _INT32_MAX else epoch + 1


def _partitions_of(request: FetchRequest, uses_ids: bool) -> Iterator[tuple[Name, FetchPartition]]:
    """The partitions that a request names, in its order."""
    for topic in request.topics:
        name = topic.topic_id if uses_ids else topic.topic
        for asked in topic.partitions:
            yield (name, asked.partition), asked
