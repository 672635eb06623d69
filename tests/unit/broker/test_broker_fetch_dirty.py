"""A session's fetch reads the partitions that have changed, and no others (design R9)."""

from __future__ import annotations

from typing import Any

import pytest

from kdist.broker.handlers import fetch as fetch_module
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.replication.partition import Partition
from kdist.runtime.steps import run_steps
from tests.unit.broker.broker_fetches import Broker, Fetch
from tests.unit.replication.replication_world import append, batch

MANY = [TopicPartition("clicks", number) for number in range(20)]


class Follower:
    """A session of all partitions, from their ends."""

    def __init__(self, broker: Broker, **partition: Any) -> None:
        self.broker = broker
        for key in MANY:
            broker.lead(key)
        opened = broker.fetch(dict.fromkeys(MANY, 0), session_epoch=0, partition=partition)
        self.id = opened.response.session_id
        self.epoch = 0
        assert not [p for _, p in self.fetch().news()]

    def fetch(self, offsets: dict[TopicPartition, int] | None = None, **fields: Any) -> Asked:
        self.epoch += 1
        session = {"session_id": self.id, "session_epoch": self.epoch}
        return Asked(self.broker.fetch(offsets or {}, **session, **fields))


class Asked:
    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch

    def news(self) -> list[tuple[int, Any]]:
        """The partitions in the answer, each with its result; records are released."""
        self.sent = self.fetch.send()
        return [(each.partition_index, each) for each in self.fetch.results]

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.news()]

    @property
    def served(self) -> list[int]:
        """The partitions with records."""
        return [number for (number, _), data in zip(self.news(), self.sent, strict=True) if data]


@pytest.fixture
def broker() -> Broker:
    return Broker()


def grow(broker: Broker, *keys: TopicPartition) -> None:
    """Append to each, all in one tick."""
    for key in keys:
        partition = broker.replicas.partitions[key]
        now_ms = broker.clock.now_ms()
        assert partition.append(
            run_steps(partition.check(batch([b"x"]), 9, 1, now_ms)), now_ms
        ).is_published
    broker.ticks.end()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions that fetches have looked at."""
    looked: list[int] = []
    is_at_end = fetch_module._Fetch._is_at_end

    def looking(self: Any, partition: Partition, asked: Any) -> bool:
        looked.append(partition.key.partition)
        return is_at_end(self, partition, asked)

    monkeypatch.setattr(fetch_module._Fetch, "_is_at_end", looking)
    return looked


def test_a_waking_reads_only_what_has_changed(broker: Broker, reads: list[int]) -> None:
    follower = Follower(broker)
    reads.clear()
    waiting = follower.fetch(max_wait_ms=500)
    assert reads == []
    grow(broker, MANY[7], MANY[3])
    broker.settle()
    assert reads == [7, 3]
    assert waiting.numbers == [7, 3]


def test_many_changes_of_one_tick_wake_a_fetch_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(broker)
    waiting = follower.fetch(max_wait_ms=500, min_bytes=1 << 20)
    wakes = []
    attempt = fetch_module._Fetch.attempt
    monkeypatch.setattr(
        fetch_module._Fetch, "attempt", lambda self: wakes.append(1) or attempt(self)
    )
    grow(broker, *MANY)
    broker.settle()
    assert wakes == [1]
    broker.settle(600)
    assert waiting.numbers == list(range(20))


def test_what_was_appended_in_the_same_tick_is_seen_without_waiting(broker: Broker) -> None:
    follower = Follower(broker)
    append(broker, broker.replicas.partitions[MANY[5]], b"x")
    assert follower.fetch().numbers == [5]
    assert follower.fetch({MANY[5]: 1}).numbers == []
    append(broker, broker.replicas.partitions[MANY[5]], b"x")
    assert follower.fetch().numbers == [5]


def test_a_follower_is_sent_records_that_are_not_committed(broker: Broker) -> None:
    partition = broker.lead(MANY[0], replicas=(1, 2), flush_before_expose=True)
    opened = broker.fetch({MANY[0]: 0}, session_epoch=0, replica_id=2, max_wait_ms=0)
    session = {"session_id": opened.response.session_id, "replica_id": 2}
    assert not Asked(broker.fetch({}, session_epoch=1, max_wait_ms=0, **session)).numbers
    in_session = Asked(broker.fetch({}, session_epoch=2, max_wait_ms=500, **session))
    outside = Asked(broker.fetch({MANY[0]: 0}, replica_id=2, max_wait_ms=500))
    append(broker, partition, b"x")
    assert partition.high_watermark == 0
    assert (in_session.served, outside.served) == ([0], [0])


def test_records_that_the_client_does_not_move_past_are_sent_again(broker: Broker) -> None:
    follower = Follower(broker)
    append(broker, broker.replicas.partitions[MANY[5]], b"x")
    assert [follower.fetch().numbers for _ in range(3)] == [[5], [5], [5]]


def test_a_busy_first_partition_does_not_starve_the_last(broker: Broker) -> None:
    follower = Follower(broker)
    for key in MANY:
        append(broker, broker.replicas.partitions[key], bytes(100))
    served: list[int] = []
    offsets: dict[TopicPartition, int] = {}
    for number in range(20):
        append(broker, broker.replicas.partitions[MANY[0]], bytes(100))  # the busy one
        (got,) = follower.fetch(offsets, max_bytes=1).served
        served.append(got)
        offsets = {MANY[got]: 1 if got else number + 1}
    assert sorted(served) == list(range(20))


def test_a_moved_log_start_is_told_and_wakes_the_waiting_fetch(broker: Broker) -> None:
    follower = Follower(broker)
    append(broker, broker.replicas.partitions[MANY[4]], b"x")
    assert follower.fetch({MANY[4]: 1}).numbers == [4]
    waiting = follower.fetch(max_wait_ms=50)
    log = broker.directory.logs[MANY[4]]
    broker.directory.trimmer.delete_records(log, 1, lambda _: None)
    broker.settle(100)
    ((number, result),) = waiting.news()
    assert (number, result.log_start_offset) == (4, 1)


def test_an_error_is_told_each_time_until_it_is_over(broker: Broker) -> None:
    follower = Follower(broker)
    partition = broker.replicas.partitions[MANY[6]]
    partition.resign()
    for _ in range(2):
        ((number, result),) = follower.fetch().news()
        assert (number, result.error_code) == (6, Error.NOT_LEADER_OR_FOLLOWER)
    broker.tell(MANY[6], leader_epoch=1)
    assert [follower.fetch().numbers for _ in range(2)] == [[6], []]


def test_a_session_keeps_the_leader_epoch_that_its_client_named(broker: Broker) -> None:
    """A client that has not heard of a new epoch is fenced though it does not name the partition.

    KAFKA-9338: it was not, as the session had lost the epoch.
    """
    follower = Follower(broker, current_leader_epoch=0)
    assert follower.fetch().numbers == []
    broker.tell(MANY[2], leader_epoch=1)
    ((number, result),) = follower.fetch().news()
    assert (number, result.error_code) == (2, Error.FENCED_LEADER_EPOCH)


def test_a_lost_answer_is_found_by_its_epoch_and_a_full_fetch_tells_all_again(
    broker: Broker,
) -> None:
    follower = Follower(broker)
    append(broker, broker.replicas.partitions[MANY[9]], b"x")
    assert follower.fetch().numbers == [9]  # and is lost
    follower.epoch -= 1
    again = follower.fetch()
    assert again.fetch.response.error_code == Error.INVALID_FETCH_SESSION_EPOCH
    full = Asked(broker.fetch(dict.fromkeys(MANY, 0), session_id=follower.id, session_epoch=0))
    assert full.numbers == list(range(20))
    assert full.fetch.response.session_id not in (0, follower.id)


def test_a_closed_session_hears_of_nothing_any_more(broker: Broker) -> None:
    follower = Follower(broker)
    partitions = [broker.replicas.partitions[key] for key in MANY]
    assert all(len(each.dependents) == 1 for each in partitions)
    broker.fetch({}, session_id=follower.id, session_epoch=-1)
    assert not any(each.dependents for each in partitions)


def test_a_session_closed_while_its_fetch_waits_hears_of_nothing_any_more(broker: Broker) -> None:
    """As when a client that lost its connection opens another session before the broker knows."""
    follower = Follower(broker)
    grow(broker, *MANY)
    waiting = follower.fetch(max_wait_ms=500, min_bytes=1 << 20)
    broker.fetch({}, session_id=follower.id, session_epoch=-1)
    broker.settle(600)
    assert waiting.numbers == []
    assert not any(broker.replicas.partitions[key].dependents for key in MANY)


def test_offsets_are_told_and_compared_by_the_partitions_high_watermark(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is behind the log's end, each answer had the partition, though nothing moved."""
    follower = Follower(broker)
    append(broker, broker.replicas.partitions[MANY[1]], b"x")
    behind = 0
    with monkeypatch.context() as patched:
        patched.setattr(Partition, "high_watermark", property(lambda _: behind), raising=False)
        patched.setattr(Partition, "offset_snapshot", property(lambda _: (behind, behind)))
        assert [follower.fetch().numbers for _ in range(3)] == [[], [], []]
