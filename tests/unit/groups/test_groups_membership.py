"""Heartbeats, leaving, and sessions that end."""

from __future__ import annotations

from groups_transcript import check


def test_a_heartbeat_is_told_of_a_rebalance_only_while_joins_wait() -> None:
    check("""
        completing a b
        heartbeat a
            a heartbeat NONE
        sync a give=a:p0,b:p1
            log: readers generation 1 a:p0 b:p1
            a is assigned p0
        heartbeat a
            a heartbeat NONE
        join c v=0
        heartbeat a
            a heartbeat REBALANCE_IN_PROGRESS
    """)


def test_heartbeats_of_others_are_refused() -> None:
    check("""
        heartbeat a id=x generation=1
            a heartbeat UNKNOWN_MEMBER_ID
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
        heartbeat a generation=0
            a heartbeat ILLEGAL_GENERATION
        heartbeat a generation=2
            a heartbeat ILLEGAL_GENERATION
        heartbeat b id=x generation=1
            b heartbeat UNKNOWN_MEMBER_ID
        heartbeat b id= generation=1
            b heartbeat UNKNOWN_MEMBER_ID
    """)


def test_a_member_that_is_not_heard_of_is_out() -> None:
    check("""
        stable a b session=6000
        pass 5999
        heartbeat a
            a heartbeat NONE
        pass 1
        heartbeat b
            b heartbeat UNKNOWN_MEMBER_ID
        heartbeat a
            a heartbeat REBALANCE_IN_PROGRESS
        join a
            a joined generation 2 by range, leader a, members a
    """)


def test_commits_and_syncs_keep_a_member_alive() -> None:
    check("""
        stable a session=6000
        pass 5999
        commit a t-0:1
            log: readers t-0 1
            a committed t-0 NONE
        pass 5999
        sync a
            a is assigned p0
        pass 5999
        heartbeat a
            a heartbeat NONE
        pass 6000
            log: readers generation 2 empty
        heartbeat a
            a heartbeat UNKNOWN_MEMBER_ID
    """)


def test_a_member_that_waits_to_join_need_not_heartbeat() -> None:
    check("""
        join a v=1 session=50000 rebalance=60000
        join b v=1 session=1000 rebalance=60000
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
        sync a give=a:p0,b:p1
            log: readers generation 1 a:p0 b:p1
            a is assigned p0
        sync b
            b is assigned p1
        join b by=range:changed rebalance=60000 session=1000
        pass 30000
        heartbeat a
            a heartbeat REBALANCE_IN_PROGRESS
        join a
            a joined generation 2 by range, leader a, members a b(changed)
            b joined generation 2 by range, leader a
        pass 999
        heartbeat b
            b heartbeat NONE
    """)


def test_a_member_lost_while_others_wait_lets_the_rebalance_go_on() -> None:
    check("""
        join a v=1 session=6000 rebalance=60000
        join b v=1 session=20000 rebalance=60000
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
        sync a give=a:p0,b:p1
            log: readers generation 1 a:p0 b:p1
            a is assigned p0
        sync b
            b is assigned p1
        join b by=range:changed
        pass 5999
        pass 1
            b joined generation 2 by range, leader b, members b(changed)
    """)


def test_the_last_member_leaving_empties_the_group() -> None:
    check("""
        stable a
        leave a v=0
            log: readers generation 2 empty
            leave NONE
        describe
            readers Empty consumer by -
        heartbeat a
            a heartbeat UNKNOWN_MEMBER_ID
        leave a v=0
            leave UNKNOWN_MEMBER_ID
    """)


def test_a_member_that_leaves_while_its_join_waits_is_answered() -> None:
    check("""
        completing a b
        join b by=range:changed
        leave b
            b join UNKNOWN_MEMBER_ID
            leave NONE: NONE
        join a
            a joined generation 2 by range, leader a, members a
    """)


def test_who_leaves_while_others_wait_for_it_lets_the_rebalance_go_on() -> None:
    check("""
        completing a b
        join b by=range:changed
        leave a
            b joined generation 2 by range, leader b, members b(changed)
            leave NONE: NONE
    """)


def test_many_members_leave_at_once_from_version_3() -> None:
    check("""
        completing a b c
        leave a b nobody v=3
            leave NONE: NONE NONE UNKNOWN_MEMBER_ID
        join c
            c joined generation 2 by range, leader c, members c
    """)


def test_an_id_that_was_given_out_may_leave() -> None:
    check("""
        stable a
        join b v=4
            b join MEMBER_ID_REQUIRED
        join a
        leave b
            a joined generation 2 by range, leader a, members a
            leave NONE: NONE
    """)


def test_leaving_a_group_that_does_not_exist_is_refused_by_member() -> None:
    check("""
        leave a id=x v=2
            leave UNKNOWN_MEMBER_ID
        leave a id=x v=3
            leave NONE: UNKNOWN_MEMBER_ID
    """)


def test_an_emptied_group_starts_over_with_the_next_generation() -> None:
    check("""
        empty a
        join b v=0
        pass 0
            b joined generation 3 by range, leader b, members b
    """)


def test_a_new_group_that_everyone_leaves_while_it_waits_is_empty() -> None:
    check("""
        set initial_rebalance_delay_ms=3000
        join a v=0
        join b v=4
            b join MEMBER_ID_REQUIRED
        leave b
            leave NONE: NONE
        pass 1000
        describe
            readers PreparingRebalance consumer by -, a'() -
        pass 2000
            a joined generation 1 by range, leader a, members a
    """)
