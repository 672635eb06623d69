"""Partitions that come and go: what requests get meanwhile, and what a load brings back."""

from __future__ import annotations

import pytest
from groups_transcript import play, told
from groups_world import PARTITIONS, GroupsWorld, home_of

from kdist.groups.context import partition_for
from kdist.groups.member import Caller
from kdist.protocol.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)


def test_groups_of_other_brokers_are_refused() -> None:
    script = """
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
    """
    assert play(script) == told(script)


def test_while_a_partition_loads_clients_are_told_to_wait() -> None:
    script = """
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
    """
    assert play(script) == told(script)


def test_an_unload_sends_all_who_wait_to_the_new_coordinator() -> None:
    script = """
        join a v=0
        join b v=4
            b join MEMBER_ID_REQUIRED
        unload
            a join NOT_COORDINATOR
        pass 600000
    """
    assert play(script) == told(script)


def test_an_unload_answers_syncs_that_wait() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        join b v=0
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
        sync b
        log holds
        sync a give=a:p0,b:p1
            log: readers generation 1 a:p0 b:p1
        unload
            b sync NOT_COORDINATOR
            a sync NOT_COORDINATOR
        log continues
        pass 600000
    """
    assert play(script) == told(script)


def test_an_unload_answers_a_static_member_that_came_back() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=5 instance=one
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        log holds
        join a2 v=5 instance=one
            log: readers generation 1 one':all
        unload
            a2 join NOT_COORDINATOR
        log continues
    """
    assert play(script) == told(script)


def test_a_commit_that_waits_for_the_log_is_answered_by_the_log() -> None:
    script = """
        log holds
        commit outside t-0:1
            log: readers t-0 1
        unload
        log continues
            outside committed t-0 NONE
    """
    assert play(script) == told(script)


def test_a_stable_group_goes_on_after_a_load() -> None:
    script = """
        set initial_rebalance_delay_ms=0
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
    """
    assert play(script) == told(script)


def test_a_group_that_was_being_assigned_is_as_before_after_a_load() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        join b v=0
        join a
            a joined generation 2 by range, leader a, members a b'
            b joined generation 2 by range, leader a
        unload
        load
        describe
            readers Stable consumer by range, a() all
        heartbeat b
            b heartbeat UNKNOWN_MEMBER_ID
        heartbeat a generation=1
            a heartbeat NONE
    """
    assert play(script) == told(script)


def test_an_empty_group_and_a_simple_consumer_are_loaded_with_their_offsets() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
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
    """
    assert play(script) == told(script)


def test_what_expired_is_not_loaded() -> None:
    script = """
        set initial_rebalance_delay_ms=0 offsets_retention_minutes=1
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
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
    """
    assert play(script) == told(script)


def test_a_loaded_group_over_the_limit_rebalances() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        join b v=0
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
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
    """
    assert play(script) == told(script)


def test_groups_are_listed_by_state() -> None:
    script = """
        commit outside t-0:1
            log: readers t-0 1
            outside committed t-0 NONE
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
    """
    assert play(script) == told(script)


def test_a_group_that_nobody_knows_is_described_as_dead() -> None:
    script = """
        describe ghost
            ghost Dead - by -
    """
    assert play(script) == told(script)


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
    part = OffsetCommitPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topic = OffsetCommitTopic(name="t", partitions=[part])
    request = OffsetCommitRequest(group_id="readers", topics=[topic])
    world.coordinator.offset_commit(request, Caller(2, "c", "/h"), lambda _: None)
    world.coordinator.use_partitions(7)
    assert home_of(world.coordinator, "readers") == partition_for("readers", PARTITIONS)
    assert "do not add any" in caplog.text
