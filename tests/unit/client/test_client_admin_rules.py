"""The admin client's pure decisions: where resets lead, who is unhealthy, how far one is behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.client.admin.brokers import ClusterView, VersionRange
from kdist.client.admin.disks import LogDirectory
from kdist.client.admin.health import Examined, Finding, judge
from kdist.client.admin.outcomes import SomeFailed, fault_of, listed, settled
from kdist.client.admin.replicas import ReplicaState, _Log, review
from kdist.client.admin.resets import (
    ShiftBy,
    Target,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToTime,
    plan_moves,
)
from kdist.client.admin.topics import Partition, Topic
from kdist.errors import ApiError, Error, UserError
from kdist.model import NO_OFFSET, Broker, OffsetRange, TopicPartition

HERE = TopicPartition("clicks", 0)
GIB = 1 << 30


def moved(target: Target, committed: int | None, found: int = NO_OFFSET) -> int:
    """Where a reset leads in a partition that holds offsets 10 up to, but not including, 20."""
    (move,) = plan_moves(target, {HERE: committed}, {HERE: OffsetRange(10, 20)}, {HERE: found})
    assert (move.partition, move.before, move.lag) == (HERE, committed, 20 - move.offset)
    return move.offset


PARTITION = Partition(0, leader=2, leader_epoch=5, replicas=(1, 2, 3), isr=(1, 2))
LEADERS = _Log(start_offset=10, end_offset=100, size_bytes=9000)


def test_a_reset_leads_where_it_is_told() -> None:
    assert moved(ToEarliest(), 15) == 10
    assert moved(ToLatest(), 15) == 20
    assert moved(ToOffset(12), None) == 12
    assert moved(ToTime(1), 15, found=17) == 17
    assert moved(ShiftBy(-3), 15) == 12


def test_a_time_after_the_last_record_resets_to_the_end() -> None:
    assert moved(ToTime(1), 15) == 20


@given(st.integers(0, 40), st.integers(-50, 50))
def test_no_reset_leads_out_of_the_partitions_offsets(committed: int, number: int) -> None:
    assert 10 <= moved(ShiftBy(number), committed) <= 20
    assert 10 <= moved(ToOffset(abs(number)), committed) <= 20


def test_an_offset_that_was_never_committed_cannot_be_shifted() -> None:
    with pytest.raises(UserError, match="clicks-0 cannot be shifted"):
        moved(ShiftBy(1), None)


def test_an_error_for_several_items_has_the_failed_and_the_results_of_the_others() -> None:
    gone = ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic b.")
    with pytest.raises(SomeFailed) as caught:
        settled({"a": 1, "b": gone, "c": gone})
    assert caught.value.error is Error.UNKNOWN_TOPIC_OR_PARTITION
    assert (caught.value.done, set(caught.value.failed)) == ({"a": 1}, {"b", "c"})
    assert str(caught.value) == ("UNKNOWN_TOPIC_OR_PARTITION: there is no topic b (and so for c)")
    with pytest.raises(SomeFailed, match=r"there is no topic b \(other errors for d\)"):
        settled({"b": gone, "d": ApiError(Error.POLICY_VIOLATION)})
    assert settled({"a": 1, "b": 2}) == {"a": 1, "b": 2}


def test_an_error_names_its_subject_once() -> None:
    assert fault_of(0, "topic a") is None
    assert str(fault_of(36, "topic a")).startswith("TOPIC_ALREADY_EXISTS: topic a: A topic of")
    assert str(fault_of(36, "topic a", "topic a is there")).endswith(": topic a is there")


# Health


def partition(number: int, leader: int | None, replicas: str, isr: str) -> Partition:
    return Partition(number, leader, 0, tuple(map(int, replicas)), tuple(map(int, isr)))


def examined(*partitions: Partition, **other: object) -> Examined:
    """Brokers 1 to 3, all well, and one topic of these partitions."""
    versions = {"Fetch": VersionRange(0, 12)}
    disk = LogDirectory("/d", None, 100 * GIB, 50 * GIB, ())
    return Examined(
        ClusterView("id", 1, tuple(Broker(n, "host", 9092) for n in (1, 2, 3))),
        dict.fromkeys((1, 2, 3), versions),
        [Topic("t", None, False, partitions)],
        {"t": 2},
        {broker: [disk] for broker in (1, 2, 3)},
    )._replace(**other)


def findings(state: Examined) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(each.level, each.name, tuple(each.items)) for each in judge(state)]


def test_a_healthy_cluster_has_no_findings() -> None:
    assert findings(examined(partition(0, 1, "123", "123"), partition(1, 2, "231", "231"))) == []


def test_a_partition_is_reported_by_its_worst_state() -> None:
    state = examined(
        partition(0, None, "123", "1"),
        partition(1, 1, "123", "1"),
        partition(2, 1, "123", "12"),
        partition(3, 2, "123", "123"),
    )
    assert findings(state) == [
        ("bad", "OfflinePartitions", ("t-0",)),
        ("bad", "PartitionsUnderMinIsr", ("t-1",)),
        ("warning", "UnderReplicatedPartitions", ("t-2",)),
        ("warning", "LeadersNotPreferred", ("t-3",)),
    ]


def test_a_partition_with_all_its_replicas_in_sync_is_not_under_min_isr() -> None:
    assert findings(examined(partition(0, 1, "1", "1"))) == []


def test_replicas_that_a_move_adds_need_not_be_in_sync_and_the_move_is_told() -> None:
    moving = partition(0, 1, "4123", "123")._replace(adding=(4,), removing=(3,))
    behind = partition(1, 1, "4123", "12")._replace(adding=(4,), removing=(3,))
    alone = partition(2, 1, "12", "1")._replace(adding=(2,))
    brokers = tuple(Broker(n, "host", 9092) for n in (1, 2, 3, 4))
    state = examined(moving, behind, alone, view=ClusterView("id", 1, brokers))
    assert findings(state) == [
        ("warning", "UnderReplicatedPartitions", ("t-1",)),
        ("warning", "Reassigning", ("t-0", "t-1", "t-2")),
    ]


@pytest.mark.parametrize(
    ("replicas", "adding", "removing", "wanted", "settled"),
    [
        ("12", "", "", 2, 2),
        ("123", "3", "", 3, 2),  # growing
        ("123", "", "3", 2, 3),  # shrinking
        ("3412", "34", "12", 2, 2),  # swapping all
    ],
)
def test_a_topic_that_moves_has_as_many_replicas_as_are_wanted(
    replicas: str, adding: str, removing: str, wanted: int, settled: int
) -> None:
    each = partition(0, 1, replicas, "12")._replace(
        adding=tuple(map(int, adding)), removing=tuple(map(int, removing))
    )
    assert Topic("t", None, False, (each,)).replication_factor == len(each.wanted) == wanted
    assert len(each.settled) == settled
    assert each.is_moving is bool(adding or removing)


def test_brokers_that_are_missing_silent_or_different_are_reported() -> None:
    silent = ApiError(Error.NETWORK_EXCEPTION)
    old = {"Fetch": VersionRange(0, 11)}
    state = examined(
        partition(0, 1, "149", "149"),
        view=examined().view._replace(controller=None),
        versions={1: {"Fetch": VersionRange(0, 12)}, 2: old, 3: silent},
    )
    assert findings(state) == [
        ("bad", "NoActiveController", ()),
        ("bad", "BrokerDown", ("broker 4", "broker 9")),
        ("bad", "BrokerNotServing", ("broker 3",)),
        ("warning", "MixedReleases", ("broker 1", "broker 2")),
    ]


def test_disks_that_failed_or_fill_up_are_reported() -> None:
    whole = examined().disks[1]
    assert not isinstance(whole, ApiError)
    failed = whole[0]._replace(error=Error.KAFKA_STORAGE_ERROR)
    full = whole[0]._replace(usable_bytes=9 * GIB)
    untold = whole[0]._replace(total_bytes=None, usable_bytes=None)
    state = examined(disks={1: [failed, full], 2: [untold], 3: ApiError(Error.NETWORK_EXCEPTION)})
    assert findings(state) == [
        ("bad", "DiskFailed", ("broker 1: /d",)),
        ("warning", "DiskNearlyFull", ("broker 1: /d",)),
    ]


def test_a_finding_is_a_sentence() -> None:
    found = list(judge(examined(partition(0, None, "1", ""))))
    assert found == [Finding("bad", "OfflinePartitions", "Partitions have no leader.", ["t-0"])]


def test_an_item_that_is_given_twice_is_asked_for_once() -> None:
    assert listed(("clicks", "views", "clicks")) == ["clicks", "views"]


@pytest.mark.parametrize(
    ("broker", "log", "state"),
    [
        (2, LEADERS, ReplicaState(2, True, True, 100, 0, 0)),
        (1, LEADERS, ReplicaState(1, False, True, 100, 0, 0)),
        (1, _Log(10, 98, 8800), ReplicaState(1, False, True, 98, 2, 200)),
        (3, _Log(10, 40, 3000), ReplicaState(3, False, False, 40, 60, 6000)),
        # Asked a moment after the leader: it has what was written meanwhile.
        (1, _Log(10, 101, 9100), ReplicaState(1, False, True, 101, 0, 0)),
        # Sizes say nothing of logs that begin at different offsets.
        (3, _Log(0, 40, 9500), ReplicaState(3, False, False, 40, 60, None)),
        (3, _Log(10, 40, None), ReplicaState(3, False, False, 40, 60, None)),
        (3, None, ReplicaState(3, False, False)),
    ],
)
def test_a_replica_beside_its_leader(broker: int, log: _Log | None, state: ReplicaState) -> None:
    assert review(broker, PARTITION, log, LEADERS) == state


def test_without_a_leader_nobody_is_behind_anybody() -> None:
    partition = PARTITION._replace(leader=None)
    assert review(1, partition, LEADERS, None) == ReplicaState(1, False, True, 100)
