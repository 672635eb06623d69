"""Partitions that come and go, and which one is a group's."""

from __future__ import annotations

import pytest
from groups_transcript import check
from groups_world import PARTITIONS, GroupsWorld, commit, home_of
from hypothesis import given
from hypothesis import strategies as st

from kdist.groups.context import INT32_MIN, java_hash, partition_for


def test_groups_of_other_brokers_are_refused() -> None:
    check("""
        unload
        join a v=0
            a join NOT_COORDINATOR
        sync a generation=1 id=x
            a sync NOT_COORDINATOR
        heartbeat a generation=1 id=x
            a heartbeat NOT_COORDINATOR
        leave a id=x
            leave NOT_COORDINATOR
        commit outside t-0:1
            outside committed t-0 NOT_COORDINATOR
        fetch t-0
            offsets none NOT_COORDINATOR
        fetch t-0 v=1
            offsets t-0 NOT_COORDINATOR NOT_COORDINATOR
        describe
            readers - - by - NOT_COORDINATOR
        list
            groups none NONE
    """)


def test_while_a_partition_loads_clients_are_told_to_wait() -> None:
    check("""
        unload
        begin_loading
        join a v=0
            a join COORDINATOR_LOAD_IN_PROGRESS
        sync a generation=1 id=x
            a sync REBALANCE_IN_PROGRESS
        heartbeat a generation=1 id=x
            a heartbeat NONE
        leave a id=x
            leave COORDINATOR_LOAD_IN_PROGRESS
        commit outside t-0:1
            outside committed t-0 COORDINATOR_LOAD_IN_PROGRESS
        fetch t-0
            offsets none COORDINATOR_LOAD_IN_PROGRESS
        fetch t-0 v=0
            offsets t-0 COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_LOAD_IN_PROGRESS
        describe
            readers - - by - COORDINATOR_LOAD_IN_PROGRESS
        list
            groups none COORDINATOR_LOAD_IN_PROGRESS
    """)


def test_an_unload_sends_all_who_wait_to_the_new_coordinator() -> None:
    check("""
        join a v=0
        join b v=4
            b join MEMBER_ID_REQUIRED
        unload
            a join NOT_COORDINATOR
        pass 600000
    """)


def test_an_unload_answers_syncs_that_wait() -> None:
    check("""
        completing a b
        sync b
        log holds
        sync a give=a:p0,b:p1
            log: readers generation 1 a:p0 b:p1
        unload
            b sync NOT_COORDINATOR
            a sync NOT_COORDINATOR
        log continues
        pass 600000
    """)


def test_an_unload_answers_a_static_member_that_came_back() -> None:
    check("""
        stable a/one
        log holds
        join a2 v=5 instance=one
            log: readers generation 1 one':p0
        unload
            a2 join NOT_COORDINATOR
        log continues
    """)


def test_a_commit_that_waits_for_the_log_is_answered_by_the_log() -> None:
    check("""
        log holds
        commit outside t-0:1
            log: readers t-0 1
        unload
        log continues
            outside committed t-0 NONE
    """)


def test_a_stable_group_goes_on_after_a_load() -> None:
    check("""
        join a v=5 instance=one by=range:x session=6000
        join b v=1 by=range:y session=6000
        pass 0
            a joined generation 1 by range, leader a, members a(x) b'(y)
            b joined generation 1 by range, leader a
        sync a give=a:p0,b:p1
            log: readers generation 1 a:p0 b:p1
            a is assigned p0
        sync b
            b is assigned p1
        commit a t-0:5
            log: readers t-0 5
            a committed t-0 NONE
        unload
        load
        describe
            readers Stable consumer by range, a=one(x) p0, b(y) p1
        heartbeat b
            b heartbeat NONE
        sync b
            b is assigned p1
        fetch
            offsets t-0 5
        pass 5999
        heartbeat a
            a heartbeat NONE
        pass 1
        heartbeat b
            b heartbeat UNKNOWN_MEMBER_ID
        join a instance=one by=range:x
            a joined generation 2 by range, leader a, members a(x)
    """)


def test_a_group_that_was_being_assigned_is_as_before_after_a_load() -> None:
    check("""
        stable a
        join b v=0
        join a
            a joined generation 2 by range, leader a, members a b'
            b joined generation 2 by range, leader a
        unload
        load
        describe
            readers Stable consumer by range, a() p0
        heartbeat b
            b heartbeat UNKNOWN_MEMBER_ID
        heartbeat a generation=1
            a heartbeat NONE
    """)


def test_an_empty_group_and_a_simple_consumer_are_loaded_with_their_offsets() -> None:
    check("""
        stable a
        commit a t-0:5
            log: readers t-0 5
            a committed t-0 NONE
        leave a
            log: readers generation 2 empty
            leave NONE: NONE
        commit outside t-1:6
            log: readers t-1 6
            outside committed t-1 NONE
        unload
        load
        describe
            readers Empty consumer by -
        fetch
            offsets t-0 5, t-1 6
    """)


def test_what_expired_is_not_loaded() -> None:
    check("""
        set offsets_retention_minutes=1
        stable a
        commit a t-0:5
            log: readers t-0 5
            a committed t-0 NONE
        leave a
            log: readers generation 2 empty
            leave NONE: NONE
        expire
            log: readers t-0 gone
            log: readers gone
        unload
        load
        list
            groups none NONE
    """)


def test_a_loaded_group_over_the_limit_rebalances() -> None:
    check("""
        completing a b
        sync a give=a:p0,b:p1
            log: readers generation 1 a:p0 b:p1
            a is assigned p0
        unload
        set max_size=1
        load
        heartbeat a
            a heartbeat REBALANCE_IN_PROGRESS
        join b
        join a
            a join GROUP_MAX_SIZE_REACHED
            b joined generation 2 by range, leader b, members b
    """)


def test_groups_are_listed_by_state() -> None:
    check("""
        committed t-0:1
        join a v=0 group=other
        list
            groups readers Empty -, other PreparingRebalance consumer NONE
        list empty
            groups readers Empty - NONE
        list PREPARINGREBALANCE Stable
            groups other PreparingRebalance consumer NONE
        list Dead
            groups none NONE
        list type=Classic
            groups readers Empty -, other PreparingRebalance consumer NONE
        list empty type=classic
            groups readers Empty - NONE
        list type=consumer
            groups none NONE
    """)


def test_a_group_that_nobody_knows_is_described_as_dead() -> None:
    check("""
        describe ghost
            ghost Dead - by -
    """)


def test_a_coordinator_takes_the_count_that_the_offsets_topic_has() -> None:
    world = GroupsWorld()
    coordinator = world.restarted(is_empty=True)
    coordinator.use_partitions(7)
    names = [f"g{number}" for number in range(50)]
    assert [home_of(coordinator, name) for name in names] == [
        partition_for(name, 7) for name in names
    ]


def test_a_coordinator_that_has_groups_keeps_the_count_it_placed_them_by(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = GroupsWorld()
    commit(world, "readers")
    world.coordinator.use_partitions(7)
    assert home_of(world.coordinator, "readers") == partition_for("readers", PARTITIONS)
    assert "do not add any" in caplog.text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("abc", 96354),
        ("hello world", 1794106052),
        ("polygenelubricants", INT32_MIN),
        ("ü", 0xFC),
        ("\U0001f4be", 0xD83D * 31 + 0xDCBE),
    ],
)
def test_hashes_are_javas(text: str, code: int) -> None:
    assert java_hash(text) == code


def test_groups_are_where_a_kafka_broker_put_them() -> None:
    assert partition_for("readers", 2) == 0
    assert partition_for("other-readers", 2) == 1


def test_the_hash_without_a_positive_counterpart_is_partition_0() -> None:
    assert partition_for("polygenelubricants", 50) == 0


@given(st.text(), st.integers(1, 100))
def test_every_group_has_a_partition(group_id: str, partitions: int) -> None:
    assert 0 <= partition_for(group_id, partitions) < partitions
