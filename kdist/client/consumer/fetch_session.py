"""What to say in the next fetch to a broker, so that it need not be told again (pure).

Within a fetch session (KIP-227) a request names what is new, what moved, and what to forget; the
broker's side is `broker.fetch_sessions`. One partition alone is fetched without a session: it moves
with every fetch that finds something, so there is nothing to save, and kdist's brokers answer such
fetches the short way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kdist.client.cluster import by_topic
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.fetch import FetchPartition, FetchTopic, ForgottenTopic

NO_SESSION = 0
_NEW, _NONE = 0, -1  # session epochs
_INT32_MAX = 0x7FFF_FFFF

Wanted = Mapping[TopicPartition, FetchPartition]


class Said(NamedTuple):
    """The session's part of a request."""

    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]


class FetchSession:
    """The session with one broker. Owner: who fetches there, one request at a time."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._next_epoch = _NEW
        self._known: dict[TopicPartition, FetchPartition] = {}

    @property
    def is_open(self) -> bool:
        """Whether the broker knows of it."""
        return self._id != NO_SESSION

    def say(self, wanted: Wanted) -> Said:
        """What to send, so that the broker fetches just what is wanted."""
        if not self.is_open and len(wanted) == 1:
            return Said(NO_SESSION, _NONE, _topics(wanted), [])
        if self._next_epoch == _NEW:
            self._known = dict(wanted)
            return Said(self._id, _NEW, _topics(wanted), [])
        changed = {key: each for key, each in wanted.items() if self._known.get(key) != each}
        gone = [key for key in self._known if key not in wanted]
        self._known = dict(wanted)
        forgotten = [
            ForgottenTopic(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(gone).items()
        ]
        return Said(self._id, self._next_epoch, _topics(changed), forgotten)

    def answered(self, session_id: int, said: Said) -> None:
        """The broker answered, and says that this is the session."""
        if said.session_epoch == _NONE or session_id == NO_SESSION:
            self._id, self._next_epoch = NO_SESSION, _NEW
        else:
            self._id = session_id
            self._next_epoch = said.session_epoch % _INT32_MAX + 1

    def failed(self, error: Error) -> None:
        """The request failed as a whole: the next one says all anew."""
        if error is Error.FETCH_SESSION_ID_NOT_FOUND:
            self._id = NO_SESSION
        self._next_epoch = _NEW


def _topics(partitions: Wanted) -> list[FetchTopic]:
    """In the order given, as far as topics allow: who comes first gets its bytes first."""
    found: dict[str, list[FetchPartition]] = {}
    for key, each in partitions.items():
        found.setdefault(key.topic, []).append(each)
    return [FetchTopic(topic=topic, partitions=each) for topic, each in found.items()]
