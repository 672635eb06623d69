"""Consumers that say their rack (KIP-392): leaders send them to followers, which serve them."""

from __future__ import annotations

from typing import Any

import pytest

from kdist.broker.redirection import ReplicaView, nearest_follower
from kdist.errors import Error
from kdist.model import NO_LEADER
from kdist.protocol.fetch import FetchPartitionResult
from kdist.protocol.update_metadata import Endpoint, LiveBroker
from kdist.replication.in_sync import FollowerFetch
from kdist.replication.partition import Partition
from kdist.replication.peers import ALONE
from tests.unit.broker.broker_fetches import LISTENER, Asked, Broker, Fetch
from tests.unit.replication.replication_world import BROKER, CLICKS, append, append_open

SECOND, THIRD = 2, 3
RACKS = {BROKER: "a", SECOND: "b", THIRD: "c"}
HERE, THERE = {"rack_id": "a"}, {"rack_id": "b"}
FOLLOWERS = (
    ReplicaView(2, "b", 10, 500),
    ReplicaView(3, "c", 10, 500),
    ReplicaView(4, "c", 12, 400),
    ReplicaView(5, "d", 10, 500),
    ReplicaView(6, "d", 10, 600),
    ReplicaView(7, None, 12, 600),
)


def told_of_brokers(broker: Broker, *absent: int) -> None:
    """Its metadata has these brokers, but for those that are dead."""
    broker.cache.brokers = {
        each: LiveBroker(
            id=each,
            endpoints=[
                Endpoint(port=9092, host=f"m{each}", listener=LISTENER, security_protocol=0)
            ],
            rack=rack,
        )
        for each, rack in RACKS.items()
        if each not in absent
    }


def leading(is_rack_aware: bool = True, isr: tuple[int, ...] = (1, 2, 3)) -> Broker:
    """A broker that leads a partition of three committed records, which all three have."""
    broker = Broker(is_rack_aware=is_rack_aware)
    told_of_brokers(broker)
    broker.tell(replicas=[1, 2, 3], isr=list(isr), leader_epoch=4)
    partition = broker.replicas.partitions[CLICKS]
    peers = ALONE._replace(is_alive=broker.cache.brokers.__contains__)
    partition._context = partition._context._replace(peers=peers)
    assert partition.in_sync is not None
    partition.in_sync._alive = broker.cache.brokers.__contains__
    append(broker, partition, b"a", b"b", b"c")
    for each in (SECOND, THIRD):
        partition.in_sync.remotes[each].note(FollowerFetch(each, 3, 0), 3, 0)
    partition.advance_high_watermark()
    return broker


def has_fetched(broker: Broker, follower: int, end: int, start: int = 0) -> None:
    partition = broker.replicas.partitions[CLICKS]
    partition.follower_fetched(FollowerFetch(follower, end, start))


def following() -> tuple[Broker, Partition]:
    """A partition of three records that this broker follows, two below its high watermark."""
    broker = Broker()
    broker.tell(replicas=[BROKER, 2], isr=[BROKER, 2])
    partition = broker.replicas.partitions[CLICKS]
    for value in (b"a", b"b", b"c"):
        append(broker, partition, value)
    follow(broker, 1)
    tell(partition, 2)
    return broker, partition


def follow(broker: Broker, epoch: int) -> None:
    broker.tell(replicas=[BROKER, 2], isr=[BROKER, 2], leader=2, leader_epoch=epoch)


def tell(partition: Partition, high_watermark: int) -> None:
    """As the leader's answer does."""
    partition.take_leader_offsets(high_watermark, 0, lambda *_: None)


def only(fetch: Fetch) -> FetchPartitionResult:
    (result,) = fetch.results
    return result


# --- the choice ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rack", "nearest"),
    [
        ("a", None),  # the leader's
        ("b", 2),
        ("c", 4),  # it has more
        ("d", 6),  # it had caught up later
        ("e", None),
        ("", None),
    ],
)
def test_a_consumer_reads_from_the_best_replica_in_its_rack(rack: str, nearest: int | None) -> None:
    assert nearest_follower(rack, "a", FOLLOWERS) == nearest


def test_a_leader_without_a_rack_is_in_no_consumers_rack() -> None:
    assert nearest_follower("b", None, FOLLOWERS) == 2
    assert nearest_follower("", None, FOLLOWERS) is None


# --- the leader -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [11, 12, 13, 17])
@pytest.mark.parametrize("offset", [0, 2, 3])
def test_a_consumer_is_sent_to_the_follower_in_its_rack(version: int, offset: int) -> None:
    """At the end of the log, too, and at once."""
    fetch = leading().fetch({CLICKS: offset}, version, max_wait_ms=500, **THERE)
    result = only(fetch)
    assert (result.error_code, result.preferred_read_replica, result.records) == (0, SECOND, b"")
    assert (result.high_watermark, result.log_start_offset) == (3, 0)


@pytest.mark.parametrize("fields", [HERE, {"rack_id": "z"}, {"rack_id": ""}])
def test_others_get_records_from_the_leader(fields: dict[str, str]) -> None:
    fetch = leading().fetch({CLICKS: 0}, **fields)
    assert fetch.values() == [[b"a", b"b", b"c"]]
    assert only(fetch).preferred_read_replica == NO_LEADER


def test_nobody_is_sent_away_without_the_rack_aware_selector() -> None:
    fetch = leading(is_rack_aware=False).fetch({CLICKS: 0}, **THERE)
    assert fetch.values() == [[b"a", b"b", b"c"]]


def test_a_follower_is_not_sent_away_whatever_it_says() -> None:
    assert leading().fetch({CLICKS: 0}, replica_id=SECOND, **THERE).values() == [[b"a", b"b", b"c"]]


def test_nobody_is_sent_to_a_replica_that_is_out_of_sync() -> None:
    assert leading(isr=(1, 3)).fetch({CLICKS: 0}, **THERE).values() == [[b"a", b"b", b"c"]]


def test_nobody_is_sent_to_a_dead_replica() -> None:
    broker = leading()
    del broker.cache.brokers[SECOND]
    assert broker.fetch({CLICKS: 0}, **THERE).values() == [[b"a", b"b", b"c"]]


def test_nobody_is_sent_where_the_listener_is_not() -> None:
    broker = leading()
    broker.cache.brokers[SECOND].endpoints[0].listener = "INNER"
    assert broker.fetch({CLICKS: 0}, **THERE).values() == [[b"a", b"b", b"c"]]


def test_nobody_is_sent_where_the_offset_is_deleted() -> None:
    broker = leading()
    has_fetched(broker, SECOND, 3, start=2)
    assert broker.fetch({CLICKS: 1}, **THERE).values() == [[b"a", b"b", b"c"]]
    assert only(broker.fetch({CLICKS: 2}, **THERE)).preferred_read_replica == SECOND


def test_the_leader_alone_judges_an_offset_beyond_what_is_committed() -> None:
    broker = leading()
    append(broker, broker.replicas.partitions[CLICKS], b"d")
    has_fetched(broker, SECOND, 4)
    assert only(broker.fetch({CLICKS: 4}, **THERE)).preferred_read_replica == NO_LEADER
    assert broker.fetch({CLICKS: 5}, **THERE).errors == [Error.OFFSET_OUT_OF_RANGE]


@pytest.mark.parametrize(
    ("epoch", "error"), [(3, Error.FENCED_LEADER_EPOCH), (5, Error.UNKNOWN_LEADER_EPOCH)]
)
def test_a_consumer_of_another_epoch_is_refused_before_it_is_sent_away(
    epoch: int, error: Error
) -> None:
    asked = {"current_leader_epoch": epoch}
    assert leading().fetch({CLICKS: 0}, partition=asked, **THERE).errors == [error]


def test_in_a_session_a_consumer_is_told_again_where_to_read() -> None:
    """Though its answer has no records, and the offsets are as it was told."""
    broker = leading()
    first = broker.fetch({CLICKS: 3}, session_epoch=0, **THERE)
    again = broker.fetch({}, session_id=first.response.session_id, session_epoch=1, **THERE)
    assert [only(each).preferred_read_replica for each in (first, again)] == [SECOND, SECOND]


def test_in_a_session_a_consumer_is_sent_away_once_there_is_a_replica_in_its_rack() -> None:
    broker = leading(isr=(1, 3))
    first = broker.fetch({CLICKS: 3}, session_epoch=0, max_wait_ms=0, **THERE)
    again = broker.fetch(
        {}, session_id=first.response.session_id, session_epoch=1, max_wait_ms=500, **THERE
    )
    broker.tell(replicas=[1, 2, 3], isr=[1, 2, 3], leader_epoch=4, partition_epoch=1)
    broker.settle()
    assert only(again).preferred_read_replica == SECOND


def test_the_fast_path_takes_consumers_that_may_be_sent_away_only_where_none_is() -> None:
    for fields, is_rack_aware, is_taken in [
        (THERE, False, True),
        (THERE, True, False),
        (HERE, True, True),
        ({}, True, True),
    ]:
        asked = Asked(leading(is_rack_aware), **fields)
        assert (asked.register() is not None) == is_taken


# --- followers that are read from -----------------------------------------------------------------


@pytest.mark.parametrize("version", [11, 12, 13, 17])
def test_a_follower_serves_what_is_committed_to_consumers_that_say_a_rack(version: int) -> None:
    broker, _ = following()
    fetch = broker.fetch({CLICKS: 0}, version, **THERE)
    assert fetch.values() == [[b"a", b"b"]]
    assert only(fetch).high_watermark == 2
    assert broker.pins == 0


@pytest.mark.parametrize("fields", [{}, {"replica_id": 3, **THERE}])
def test_a_follower_serves_nobody_else(fields: dict[str, Any]) -> None:
    """Who says no rack was sent here by nobody, and may know no better (KAFKA-14255)."""
    assert following()[0].fetch({CLICKS: 0}, **fields).errors == [Error.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize(
    ("offset", "told", "error"),
    [
        (-1, 2, Error.OFFSET_OUT_OF_RANGE),
        (2, 2, Error.NONE),  # the end, as far as is known
        (3, 2, Error.OFFSET_NOT_AVAILABLE),  # it is here, and not known to be committed
        (4, 2, Error.OFFSET_OUT_OF_RANGE),
        (3, 3, Error.NONE),
        (3, 5, Error.OFFSET_NOT_AVAILABLE),  # committed, and not here
        (5, 5, Error.OFFSET_NOT_AVAILABLE),
        (6, 5, Error.OFFSET_OUT_OF_RANGE),
    ],
)
@pytest.mark.parametrize("is_in_session", [False, True])
def test_a_follower_judges_an_offset_that_it_has_nothing_at(
    offset: int, told: int, error: Error, is_in_session: bool
) -> None:
    """When the wait ends; what can never come here is refused at once."""
    broker, partition = following()
    tell(partition, told)
    fields = {"max_wait_ms": 500, "session_epoch": 0 if is_in_session else -1, **THERE}
    fetch = broker.fetch({CLICKS: offset}, **fields)
    if error is Error.OFFSET_OUT_OF_RANGE:
        assert fetch.errors == [error]
    else:
        assert fetch.answers == []
        broker.settle(1_000)
        assert fetch.errors == [error]
        assert fetch.send() == [b""]


def test_in_a_session_an_offset_that_may_come_is_judged_at_each_waits_end() -> None:
    broker, _ = following()
    first = broker.fetch({CLICKS: 2}, session_epoch=0, **THERE)
    session = {"session_id": first.response.session_id, "max_wait_ms": 500, **THERE}
    moved = broker.fetch({CLICKS: 3}, session_epoch=1, **session)
    broker.settle(1_000)
    again = broker.fetch({}, session_epoch=2, **session)
    broker.settle(1_000)
    assert [each.errors for each in (first, moved, again)] == [[0], [78], [78]]


def test_a_follower_deletes_what_its_leader_has_deleted_and_serves_it_no_more() -> None:
    broker, partition = following()
    broker.directory.trimmer.delete_records(partition.log, 1, lambda _: None)
    assert broker.fetch({CLICKS: 0}, **THERE).errors == [Error.OFFSET_OUT_OF_RANGE]


@pytest.mark.parametrize("offset", [2, 3])
def test_a_waiting_fetch_wakes_when_a_followers_high_watermark_moves(offset: int) -> None:
    """Also if its consumer has come before the high watermark that its leader knew."""
    broker, partition = following()
    append_at = partition.log.end_offset
    fetch = broker.fetch({CLICKS: offset}, max_wait_ms=60_000, **THERE)
    tell(partition, offset)
    broker.settle()
    assert fetch.answers == []
    tell(partition, append_at + 1)
    broker.settle()
    if offset == 2:
        assert fetch.values() == [[b"c"]]
    else:
        assert fetch.answers == []


def test_a_waiting_fetch_ends_when_the_replica_follows_in_another_epoch() -> None:
    broker, _ = following()
    asked = {"current_leader_epoch": 1}
    fetch = broker.fetch({CLICKS: 2}, partition=asked, max_wait_ms=60_000, **THERE)
    follow(broker, 2)
    broker.settle()
    assert fetch.errors == [Error.FENCED_LEADER_EPOCH]


@pytest.mark.parametrize(
    ("epoch", "error"), [(0, Error.FENCED_LEADER_EPOCH), (2, Error.UNKNOWN_LEADER_EPOCH), (1, 0)]
)
def test_a_follower_fences_by_epoch_as_its_leader_does(epoch: int, error: int) -> None:
    asked = {"current_leader_epoch": epoch}
    assert following()[0].fetch({CLICKS: 2}, partition=asked, **THERE).errors == [error]


def test_a_follower_without_a_leader_or_that_cuts_its_log_off_serves_nobody() -> None:
    broker, partition = following()
    partition.log.is_truncating = True
    assert broker.fetch({CLICKS: 0}, **THERE).errors == [Error.NOT_LEADER_OR_FOLLOWER]
    partition.log.is_truncating = False
    broker.tell(CLICKS, replicas=[BROKER, 2], isr=[2], leader=-1, leader_epoch=2)
    assert broker.fetch({CLICKS: 0}, **THERE).errors == [Error.NOT_LEADER_OR_FOLLOWER]


def test_who_has_no_replica_says_so() -> None:
    broker = Broker()
    broker.known.add(CLICKS)
    assert broker.fetch({CLICKS: 0}, **THERE).errors == [Error.NOT_LEADER_OR_FOLLOWER]


def test_a_follower_never_tells_a_consumer_that_its_log_diverges() -> None:
    """It may lack what the consumer has read: that is the leader's to judge."""
    broker, partition = following()
    tell(partition, 5)
    asked = {"last_fetched_epoch": 0}
    assert broker.fetch({CLICKS: 2}, partition=asked, **THERE).values() == [[b"c"]]
    assert broker.fetch({CLICKS: 5}, partition=asked, **THERE).errors == [Error.OFFSET_OUT_OF_RANGE]


def test_a_follower_shows_read_committed_what_is_decided() -> None:
    broker = Broker()
    broker.tell(replicas=[BROKER, 2], isr=[BROKER, 2])
    partition = broker.replicas.partitions[CLICKS]
    append(broker, partition, b"a")
    append_open(broker, partition, b"open")
    follow(broker, 1)
    tell(partition, 2)
    assert broker.fetch({CLICKS: 0}, isolation_level=1, **THERE).values() == [[b"a"]]
    assert broker.fetch({CLICKS: 0}, **THERE).values() == [[b"a", b"open"]]


# --- what followers are told, and when ------------------------------------------------------------


def waiting_follower(broker: Broker, follower: int, offset: int) -> Fetch:
    return broker.fetch({CLICKS: offset}, replica_id=follower, max_wait_ms=60_000)


@pytest.mark.parametrize("is_in_session", [False, True])
def test_followers_that_are_read_from_are_told_a_new_high_watermark_within_ms(
    is_in_session: bool,
) -> None:
    broker = leading()
    append(broker, broker.replicas.partitions[CLICKS], b"d")
    if is_in_session:
        state = {"replica_id": SECOND}
        first = broker.fetch({CLICKS: 4}, session_epoch=0, **state)
        session = {"session_id": first.response.session_id, "session_epoch": 1}
        fetch = broker.fetch({}, max_wait_ms=60_000, **session, **state)
    else:
        fetch = waiting_follower(broker, SECOND, 4)
    has_fetched(broker, THIRD, 4)
    broker.settle(1_000)
    assert fetch.answers == []  # nobody reads there
    assert only(broker.fetch({CLICKS: 3}, **THERE)).preferred_read_replica == SECOND
    broker.settle(10)
    assert only(fetch).high_watermark == 4


def test_followers_are_told_of_no_high_watermark_more_often_than_every_few_ms() -> None:
    """Else each batch would cost another fetch (KAFKA-9731)."""
    broker = leading()
    partition = broker.replicas.partitions[CLICKS]
    broker.fetch({CLICKS: 3}, **THERE)
    told, fetch = 0, waiting_follower(broker, SECOND, 3)
    broker.settle(10)
    for end in range(4, 104):
        fetch = waiting_follower(broker, SECOND, end - 1)
        append(broker, partition, b"d")
        assert fetch.values() == [[b"d"]]
        fetch = waiting_follower(broker, SECOND, end)
        has_fetched(broker, THIRD, end)
        broker.settle(1)
        told += len(fetch.answers)
    assert partition.high_watermark == 103
    assert 10 <= told <= 22


def test_followers_that_are_no_longer_read_from_are_told_with_their_next_answer() -> None:
    broker = leading()
    broker.fetch({CLICKS: 3}, **THERE)
    broker.settle(700_000)
    append(broker, broker.replicas.partitions[CLICKS], b"d")
    fetch = waiting_follower(broker, SECOND, 4)
    has_fetched(broker, THIRD, 4)
    broker.settle(1_000)
    assert fetch.answers == []
