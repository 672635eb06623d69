"""Incremental fetch requests: the client's side of a fetch session (pure).

Within a fetch session (KIP-227) a request names only the partitions that are new, have changed, or
are to be forgotten; the broker's side is `broker.fetch_sessions`. A single partition is fetched
without a session: its offset changes with every fetch that returns records, so a session would save
nothing, and kdist's brokers answer a fetch without one on a faster path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kdist.client.cluster import in_topics
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.fetch import FetchPartition, FetchTopic, ForgottenTopic

NO_SESSION = 0
_NEW, _NONE = 0, -1  # session epochs
_INT32_MAX = 0x7FFF_FFFF

Wanted = Mapping[TopicPartition, FetchPartition]


class SessionRequest(NamedTuple):
    """The part of a fetch request that the session determines."""

    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]


class FetchSession:
    """The session with one broker. Owner: the fetcher, with one request at a time."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._next_epoch = _NEW
        self._known: dict[TopicPartition, FetchPartition] = {}

    @property
    def is_open(self) -> bool:
        """Whether the broker has opened the session."""
        return self._id != NO_SESSION

    def next_request(self, wanted: Wanted) -> SessionRequest:
        """What to send so that the broker fetches exactly the wanted partitions."""
        if not self.is_open and len(wanted) == 1:
            return SessionRequest(NO_SESSION, _NONE, _topics(wanted), [])
        if self._next_epoch == _NEW:
            self._known = dict(wanted)
            return SessionRequest(self._id, _NEW, _topics(wanted), [])
        changed = {key: each for key, each in wanted.items() if self._known.get(key) != each}
        gone = [key for key in self._known if key not in wanted]
        self._known = dict(wanted)
        forgotten = in_topics(ForgottenTopic, gone, lambda key: key.partition, name="topic")
        return SessionRequest(self._id, self._next_epoch, _topics(changed), forgotten)

    def answered(self, session_id: int, sent: SessionRequest) -> None:
        """Note the broker's answer to `sent`, and the session id in it."""
        if sent.session_epoch == _NONE or session_id == NO_SESSION:
            self._id, self._next_epoch = NO_SESSION, _NEW
        else:
            self._id = session_id
            self._next_epoch = sent.session_epoch % _INT32_MAX + 1

    def failed(self, error: Error) -> None:
        """Note that the request failed as a whole: the next one names every partition again."""
        if error is Error.FETCH_SESSION_ID_NOT_FOUND:
            self._id = NO_SESSION
        self._next_epoch = _NEW


def _topics(partitions: Wanted) -> list[FetchTopic]:
    """Partitions by topic, otherwise in the given order: brokers fill an answer in that order."""
    found: dict[str, list[FetchPartition]] = {}
    for key, each in partitions.items():
        found.setdefault(key.topic, []).append(each)
    return [FetchTopic(topic=topic, partitions=each) for topic, each in found.items()]
