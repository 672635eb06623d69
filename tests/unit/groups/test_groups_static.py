"""Static members (KIP-345): they keep their place over a restart, and fence who had it before."""

from __future__ import annotations

from groups_transcript import check


def test_a_static_member_that_comes_back_to_a_stable_group_changes_nothing() -> None:
    check("""
        stable a/one b/two
        join b2 v=5 instance=two
            log: readers generation 1 a:p0 two':p1
            b2 joined generation 1 by range, leader a
        heartbeat a
            a heartbeat NONE
        sync b2
            b2 is assigned p1
        describe
            readers Stable consumer by range, a=one() p0, b2=two() p1
        heartbeat b instance=two
            b heartbeat FENCED_INSTANCE_ID
        heartbeat b
            b heartbeat UNKNOWN_MEMBER_ID
    """)


def test_a_static_leader_that_comes_back_is_told_the_old_leader_before_version_9() -> None:
    check("""
        stable a/one b/two
        join a2 v=8 instance=one
            log: readers generation 1 one':p0 b:p1
            a2 joined generation 1 by range, leader a
        sync a2
            a2 is assigned p0
    """)


def test_a_static_leader_that_comes_back_skips_the_assignment_from_version_9() -> None:
    check("""
        stable a/one b/two v=9
        join b2 v=9 instance=two
            log: readers generation 1 a:p0 two':p1
            b2 joined generation 1 by range, leader a
        join a2 v=9 instance=one
            log: readers generation 1 one':p0 b2:p1
            a2 joined generation 1 by range, leader a2, members a2 b2, skips assignment
        sync a2
            a2 is assigned p0
    """)


def test_a_static_member_that_comes_back_is_answered_when_its_id_is_in_the_log() -> None:
    check("""
        stable a/one
        log holds
        join a2 v=5 instance=one
            log: readers generation 1 one':p0
        pass 60000
        log continues
            a2 joined generation 1 by range, leader a
        pass 9999
        pass 1
            log: readers generation 2 empty
    """)


def test_if_the_new_id_is_not_stored_the_old_one_stays() -> None:
    check("""
        join a v=5 instance=one by=range:old
        pass 0
            a joined generation 1 by range, leader a, members a(old)
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        log fails NOT_ENOUGH_REPLICAS
        join a2 v=5 instance=one by=range:new
            a2 join COORDINATOR_NOT_AVAILABLE
        describe
            readers Stable consumer by range, a=one(old) all
        heartbeat a instance=one
            a heartbeat NONE
        log works
        join a2 v=5 instance=one by=range:new
            log: readers generation 1 one':all
            a2 joined generation 1 by range, leader a
        describe
            readers Stable consumer by range, a2=one(new) all
    """)


def test_a_rebalance_meanwhile_answers_the_static_member_that_came_back() -> None:
    check("""
        stable a/one b
        log holds
        join a2 v=5 instance=one
            log: readers generation 1 one':p0 b:p1
        join c v=0
        join b
            a2 joined generation 2 by range, leader a2, members a2 b c'
            b joined generation 2 by range, leader a2
            c joined generation 2 by range, leader a2
        log continues
    """)


def test_a_static_member_that_changes_the_choice_of_protocol_rebalances() -> None:
    check("""
        join a v=5 instance=one by=range,roundrobin
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        join a2 v=5 instance=one by=roundrobin
            a2 joined generation 2 by roundrobin, leader a2, members a2
        sync a2 give=a2:all
            log: readers generation 2 a2:all
            a2 is assigned all
    """)


def test_a_static_member_that_comes_back_during_the_assignment_rebalances() -> None:
    check("""
        completing a/one b/two
        sync b
        join b2 v=5 instance=two
            b sync FENCED_INSTANCE_ID
        sync a give=a:p0
            a sync REBALANCE_IN_PROGRESS
        join a instance=one
            a joined generation 2 by range, leader a, members a two'
            b2 joined generation 2 by range, leader a
    """)


def test_a_static_member_that_comes_back_while_joins_wait_has_joined() -> None:
    check("""
        join a v=5 instance=one
        join a2 v=5 instance=one
            a join FENCED_INSTANCE_ID
        pass 0
            a2 joined generation 1 by range, leader a2, members a2
        sync a2 give=a2:all
            log: readers generation 1 a2:all
            a2 is assigned all
    """)


def test_a_static_member_that_is_away_does_not_leave_with_the_rebalance() -> None:
    check("""
        stable a/one b/two session=30000 rebalance=5000
        join c v=1 session=30000 rebalance=5000
        join b v=5 instance=two session=30000 rebalance=5000
        pass 5000
            b joined generation 2 by range, leader b, members a b c'
            c joined generation 2 by range, leader b
        sync b give=b:p1,a:p0,c:p2
            log: readers generation 2 a:p0 b:p1 c:p2
            b is assigned p1
        sync c
            c is assigned p2
        describe
            readers Stable consumer by range, a=one() p0, b=two() p1, c() p2
    """)


def test_if_only_absent_static_members_are_left_their_sessions_decide() -> None:
    check("""
        stable a/one b session=30000 rebalance=5000
        leave b
            leave NONE: NONE
        pass 29999
        describe
            readers PreparingRebalance consumer by -, a=one() -
        pass 1
            log: readers generation 2 empty
        describe
            readers Empty consumer by -
    """)


def test_an_operator_removes_a_static_member_by_its_instance_id() -> None:
    check("""
        stable a/one b/two
        leave instance=two
            leave NONE: NONE
        heartbeat b instance=two
            b heartbeat UNKNOWN_MEMBER_ID
        join a instance=one
            a joined generation 2 by range, leader a, members a
    """)


def test_a_static_member_that_left_may_join_as_new() -> None:
    check("""
        empty a/one
        join a2 v=5 instance=one
        pass 0
            a2 joined generation 3 by range, leader a2, members a2
    """)


def test_a_new_static_member_that_joins_anew_is_waited_for_from_then_on() -> None:
    check("""
        completing a session=1800000 rebalance=1800000
        join b v=5 instance=two rebalance=1800000
        pass 299999
        join b2 v=5 instance=two rebalance=1800000
            b join FENCED_INSTANCE_ID
        pass 299999
        pass 1
            b2 join UNKNOWN_MEMBER_ID
    """)


def test_an_absent_static_member_without_a_rebalance_timeout_costs_nothing() -> None:
    check("""
        join a v=5 instance=one session=30000
        join b v=1
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
        sync a give=a:p0,b:p1
            log: readers generation 1 a:p0 b:p1
            a is assigned p0
        sync b
            b is assigned p1
        join a2 v=5 instance=one session=30000 rebalance=0
            log: readers generation 1 one':p0 b:p1
            a2 joined generation 1 by range, leader a
        leave b
            leave NONE: NONE
        pass 29999
        pass 1
            log: readers generation 2 empty
    """)


def test_of_two_members_that_return_under_one_instance_id_the_later_fences_the_earlier() -> None:
    check("""
        stable a/one
        log holds
        join a2 v=5 instance=one
            log: readers generation 1 one':p0
        join a3 v=5 instance=one
            a2 join FENCED_INSTANCE_ID
            log: readers generation 1 one':p0
        log continues
            a3 joined generation 1 by range, leader one'
        heartbeat a3 instance=one
            a3 heartbeat NONE
    """)


def test_a_waiting_sync_of_the_old_id_is_fenced() -> None:
    check("""
        completing a b/two
        sync b instance=two
        join b2 v=5 instance=two
            b sync FENCED_INSTANCE_ID
        join a
            a joined generation 2 by range, leader a, members a two'
            b2 joined generation 2 by range, leader a
    """)


def test_requests_of_a_fenced_member_are_refused() -> None:
    check("""
        stable a/one
        join a2 v=5 instance=one
            log: readers generation 1 one':p0
            a2 joined generation 1 by range, leader a
        join a v=5 instance=one
            a join FENCED_INSTANCE_ID
        sync a instance=one
            a sync FENCED_INSTANCE_ID
        heartbeat a instance=one
            a heartbeat FENCED_INSTANCE_ID
        commit a t-0:1 instance=one
            a committed t-0 FENCED_INSTANCE_ID
        leave a instance=one
            leave NONE: FENCED_INSTANCE_ID
    """)


def test_requests_under_an_instance_id_that_nobody_has_are_refused() -> None:
    check("""
        completing a
        sync a instance=ghost
            a sync UNKNOWN_MEMBER_ID
        heartbeat a instance=ghost
            a heartbeat UNKNOWN_MEMBER_ID
        commit a t-0:1 instance=ghost
            a committed t-0 UNKNOWN_MEMBER_ID
        leave a instance=ghost
            leave NONE: UNKNOWN_MEMBER_ID
        leave instance=ghost
            leave NONE: UNKNOWN_MEMBER_ID
    """)


def test_an_id_that_was_given_out_cannot_become_static() -> None:
    check("""
        join a v=4
            a join MEMBER_ID_REQUIRED
        join a v=5 instance=one
            a join UNKNOWN_MEMBER_ID
    """)
