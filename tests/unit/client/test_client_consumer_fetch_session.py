"""Both sides of a fetch session agree, whatever is fetched: the broker's own sessions judge."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from kdist.client.consumer.fetch_session import FetchSession
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.fetch import FetchPartition

KEYS = [TopicPartition(topic, number) for topic in "ab" for number in range(2)]
WANTED = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3), min_size=1)


def asked(offsets: dict[TopicPartition, int]) -> dict[TopicPartition, FetchPartition]:
    return {
        key: FetchPartition(partition=key.partition, fetch_offset=offset, partition_max_bytes=1)
        for key, offset in offsets.items()
    }


class Broker:
    """The broker's side by KIP-227: what it would fetch for each request."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.id = 0
        self.epoch = 0
        self.known: dict[TopicPartition, FetchPartition] = {}

    def fetch(self, session: FetchSession, wanted: dict[TopicPartition, FetchPartition]) -> object:
        said = session.next_request(wanted)
        named = {
            TopicPartition(topic.topic, each.partition): each
            for topic in said.topics
            for each in topic.partitions
        }
        if said.session_epoch == -1:
            session.answered(0, said)
            return named
        if said.session_epoch == 0:
            self.id, self.epoch = self.rng.randrange(1, 99), 1
            self.known = named
            session.answered(self.id, said)
            return named
        if said.session_id != self.id:
            session.failed(Error.FETCH_SESSION_ID_NOT_FOUND)
            return None
        assert said.session_epoch == self.epoch
        self.epoch += 1
        for topic in said.forgotten:
            for number in topic.partitions:
                del self.known[TopicPartition(topic.topic, number)]
        self.known |= named
        session.answered(self.id, said)
        return dict(self.known)


@given(st.lists(WANTED, min_size=1, max_size=8), st.integers(), st.sets(st.integers(0, 7)))
def test_the_broker_fetches_exactly_the_wanted_partitions(
    steps: list[dict[TopicPartition, int]], seed: int, forgotten: set[int]
) -> None:
    session, broker = FetchSession(), Broker(seed)
    for number, offsets in enumerate(steps):
        if number in forgotten:
            broker.id = -5  # the broker has dropped the session
        wanted = asked(offsets)
        fetched = broker.fetch(session, wanted) or broker.fetch(session, wanted)
        assert fetched == wanted


def test_one_partition_is_fetched_without_a_session() -> None:
    said = FetchSession().next_request(asked({KEYS[0]: 5}))
    assert (said.session_id, said.session_epoch) == (0, -1)


def test_unchanged_partitions_are_not_sent_again() -> None:
    session = FetchSession()
    session.answered(7, session.next_request(asked({KEYS[0]: 5, KEYS[1]: 5})))
    said = session.next_request(asked({KEYS[0]: 5, KEYS[1]: 6}))
    assert (said.session_id, said.session_epoch) == (7, 1)
    assert [(t.topic, [p.partition for p in t.partitions]) for t in said.topics] == [("a", [1])]


def test_after_a_failure_a_full_request_is_sent() -> None:
    session = FetchSession()
    session.answered(7, session.next_request(asked({KEYS[0]: 5, KEYS[1]: 5})))
    session.failed(Error.NETWORK_EXCEPTION)
    said = session.next_request(asked({KEYS[0]: 5, KEYS[1]: 5}))
    assert (said.session_id, said.session_epoch) == (7, 0)  # and the broker may close the old one
    assert len(said.topics[0].partitions) == 2
