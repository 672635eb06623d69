"""SyncGroup: assignments go to the log first, then to the members; and what comes between."""

from __future__ import annotations

import pytest
from groups_transcript import check

from kdist.groups.group import PREPARING, Group, Member


def test_followers_wait_for_the_leaders_assignment() -> None:
    check("""
        completing a b c
        sync b
        heartbeat c
            c heartbeat NONE
        sync a give=a:p0,b:p1,c:p2
            log: readers generation 1 a:p0 b:p1 c:p2
            b is assigned p1
            a is assigned p0
        sync c
            c is assigned p2
    """)


def test_an_assignment_is_given_out_when_it_is_in_the_log() -> None:
    check("""
        completing a b
        sync b
        log holds
        sync a give=a:p0,b:p1
            log: readers generation 1 a:p0 b:p1
        describe
            readers CompletingRebalance consumer by -, a() -, b() -
        log continues
            b is assigned p1
            a is assigned p0
        describe
            readers Stable consumer by range, a() p0, b() p1
    """)


def test_members_that_the_leader_does_not_name_get_nothing() -> None:
    check("""
        completing a b
        sync b
        sync a give=a:all
            log: readers generation 1 a:all b:
            b is assigned nothing
            a is assigned all
    """)


def test_what_a_follower_sends_as_assignment_is_not_read() -> None:
    check("""
        completing a b
        sync b give=a:stolen,b:stolen
        sync a give=a:p0,b:p1
            log: readers generation 1 a:p0 b:p1
            b is assigned p1
            a is assigned p0
    """)


def test_a_stable_group_keeps_its_assignment_whatever_the_leader_sends() -> None:
    check("""
        completing a
        sync a give=a:first
            log: readers generation 1 a:first
            a is assigned first
        sync a give=a:second
            a is assigned first
    """)


def test_a_leader_that_syncs_again_before_the_log_is_done_does_not_assign_twice() -> None:
    check("""
        completing a
        log holds
        sync a give=a:first
            log: readers generation 1 a:first
        sync a give=a:second
            a sync REBALANCE_IN_PROGRESS
        log continues
            a is assigned first
    """)


def test_a_sync_of_another_generation_is_refused() -> None:
    check("""
        completing a
        sync a generation=0
            a sync ILLEGAL_GENERATION
        sync a generation=2
            a sync ILLEGAL_GENERATION
        sync a generation=-1
            a sync ILLEGAL_GENERATION
    """)


def test_a_sync_of_somebody_unknown_is_refused() -> None:
    check("""
        sync a id=x generation=1
            a sync UNKNOWN_MEMBER_ID
        join b v=0
        pass 0
            b joined generation 1 by range, leader b, members b
        sync a id=x generation=1
            a sync UNKNOWN_MEMBER_ID
        leave b
            log: readers generation 2 empty
            leave NONE: NONE
        sync b
            b sync UNKNOWN_MEMBER_ID
    """)


def test_a_sync_while_joins_wait_is_sent_to_join() -> None:
    check("""
        completing a
        join b v=0
        sync a give=a:all
            a sync REBALANCE_IN_PROGRESS
    """)


def test_from_version_5_protocol_type_and_name_have_to_be_the_groups() -> None:
    check("""
        join a v=7
            a join MEMBER_ID_REQUIRED
        join a v=7
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a v=5
            a sync INCONSISTENT_GROUP_PROTOCOL
        sync a v=5 type=consumer
            a sync INCONSISTENT_GROUP_PROTOCOL
        sync a v=5 type=connect by=range
            a sync INCONSISTENT_GROUP_PROTOCOL
        sync a v=5 type=consumer by=roundrobin
            a sync INCONSISTENT_GROUP_PROTOCOL
        sync a v=5 type=consumer by=range give=a:all
            log: readers generation 1 a:all
            a is assigned all
    """)


def test_a_member_that_waits_for_its_assignment_need_not_heartbeat() -> None:
    check("""
        join a v=1 session=50000
        join b v=1 session=1000
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
        sync b
        pass 30000
        sync a give=a:p0,b:p1
            log: readers generation 1 a:p0 b:p1
            b is assigned p1
            a is assigned p0
        pass 999
        heartbeat b
            b heartbeat NONE
        pass 1000
        heartbeat b
            b heartbeat UNKNOWN_MEMBER_ID
    """)


def test_a_member_that_does_not_sync_in_time_is_out() -> None:
    check("""
        completing a b c session=90000 rebalance=20000
        sync a give=a:p0,b:p1,c:p2
            log: readers generation 1 a:p0 b:p1 c:p2
            a is assigned p0
        sync b
            b is assigned p1
        pass 19999
        heartbeat a
            a heartbeat NONE
        pass 1
        heartbeat a
            a heartbeat REBALANCE_IN_PROGRESS
        heartbeat c
            c heartbeat UNKNOWN_MEMBER_ID
        join a
        join b
            a joined generation 2 by range, leader a, members a b
            b joined generation 2 by range, leader a
    """)


def test_a_leader_that_does_not_sync_in_time_is_out() -> None:
    check("""
        completing a b session=90000 rebalance=20000
        sync b
        pass 20000
            b sync REBALANCE_IN_PROGRESS
        join b
            b joined generation 2 by range, leader b, members b
    """)


def test_if_nobody_syncs_in_time_the_group_is_empty() -> None:
    check("""
        completing a session=90000 rebalance=20000
        pass 20000
            log: readers generation 2 empty
        describe
            readers Empty consumer by -
    """)


def test_members_that_have_yet_to_sync_are_kept_in_the_order_of_joining() -> None:
    """They may be removed in it: the order of a set would differ from run to run."""
    group = Group("readers", 0)
    ids = [f"member-{number}" for number in range(20)]
    for member_id in ids:
        group.add(Member(member_id, None, "c", "/h", (("range", b""),), 1000, 1000), "consumer")
    group.become(PREPARING, 0)
    group.begin_generation(0)
    assert list(group.unsynced) == ids


def test_a_join_during_the_assignment_sends_everyone_to_join() -> None:
    check("""
        completing a b
        sync b
        join c v=0
            b sync REBALANCE_IN_PROGRESS
        sync a give=a:p0,b:p1
            a sync REBALANCE_IN_PROGRESS
        join a
        join b
            a joined generation 2 by range, leader a, members a b c'
            b joined generation 2 by range, leader a
            c joined generation 2 by range, leader a
    """)


def test_a_rebalance_while_the_assignment_goes_to_the_log_wins() -> None:
    check("""
        completing a b
        sync b
        log holds
        sync a give=a:p0,b:p1
            log: readers generation 1 a:p0 b:p1
        join c v=0
            b sync REBALANCE_IN_PROGRESS
            a sync REBALANCE_IN_PROGRESS
        log continues
        heartbeat a
            a heartbeat REBALANCE_IN_PROGRESS
        join a
        join b
            a joined generation 2 by range, leader a, members a b c'
            b joined generation 2 by range, leader a
            c joined generation 2 by range, leader a
    """)


def test_an_assignment_of_an_earlier_generation_comes_too_late() -> None:
    check("""
        completing a
        log holds
        sync a give=a:all
            log: readers generation 1 a:all
        join b v=0
            a sync REBALANCE_IN_PROGRESS
        join a
            a joined generation 2 by range, leader a, members a b'
            b joined generation 2 by range, leader a
        log continues
        describe
            readers CompletingRebalance consumer by -, a() -, b() -
    """)


def test_the_leader_leaving_during_the_assignment_begins_a_new_rebalance() -> None:
    check("""
        completing a b
        sync b
        leave a
            b sync REBALANCE_IN_PROGRESS
            leave NONE: NONE
        join b
            b joined generation 2 by range, leader b, members b
    """)


def test_a_member_that_leaves_while_its_sync_waits_is_answered() -> None:
    check("""
        completing a b
        sync b
        leave b
            b sync UNKNOWN_MEMBER_ID
            leave NONE: NONE
        sync a give=a:all
            a sync REBALANCE_IN_PROGRESS
    """)


def test_the_leader_dying_during_the_assignment_begins_a_new_rebalance() -> None:
    check("""
        join a v=0 session=5000
        join b v=0 session=30000
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
        sync b
        pass 5000
            b sync REBALANCE_IN_PROGRESS
        join b
            b joined generation 2 by range, leader b, members b
    """)


@pytest.mark.parametrize(
    ("of_log", "known"),
    [
        ("NOT_ENOUGH_REPLICAS", "COORDINATOR_NOT_AVAILABLE"),
        ("NOT_LEADER_OR_FOLLOWER", "NOT_COORDINATOR"),
        ("REQUEST_TIMED_OUT", "REBALANCE_IN_PROGRESS"),
        ("MESSAGE_TOO_LARGE", "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_an_assignment_that_cannot_be_stored_fails_with_an_error_that_members_know(
    of_log: str, known: str
) -> None:
    check(f"""
        completing a b
        log fails {of_log}
        sync b
        sync a give=a:p0,b:p1
        pass 1000
            b sync {known}
            a sync {known}
        join b
        join a
            a joined generation 2 by range, leader a, members a b
            b joined generation 2 by range, leader a
        log works
        sync a give=a:p0,b:p1
            log: readers generation 2 a:p0 b:p1
            a is assigned p0
    """)


def test_after_an_assignment_that_was_not_stored_the_next_is_asked_for_a_second_later() -> None:
    check("""
        completing a
        log fails KAFKA_STORAGE_ERROR
        sync a give=a:p0
        pass 999
        heartbeat a
            a heartbeat NONE
        pass 1
            a sync NOT_COORDINATOR
        join a
            a joined generation 2 by range, leader a, members a
        sync a give=a:p0
        leave a
            a sync UNKNOWN_MEMBER_ID
            leave NONE: NONE
        join b v=0
        pass 1000
            b joined generation 4 by range, leader b, members b
    """)
