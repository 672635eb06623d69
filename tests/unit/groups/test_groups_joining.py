"""JoinGroup: new members, members that join again, timeouts of a rebalance, and who is refused."""

from __future__ import annotations

from groups_transcript import check


def test_a_new_group_waits_for_more_members_before_its_first_generation() -> None:
    check("""
        set initial_rebalance_delay_ms=3000
        join a v=0
        pass 2999
        join b v=0
        pass 2999
        pass 2
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
    """)


def test_the_wait_of_a_new_group_ends_with_the_rebalance_timeout() -> None:
    check("""
        set initial_rebalance_delay_ms=3000
        join a v=1 rebalance=7000
        pass 2000
        join b v=1 rebalance=7000
        pass 2000
        join c v=1 rebalance=7000
        pass 2500
        join d v=1 rebalance=7000
        pass 1000
            a joined generation 1 by range, leader a, members a b' c' d'
            b joined generation 1 by range, leader a
            c joined generation 1 by range, leader a
            d joined generation 1 by range, leader a
    """)


def test_without_an_initial_delay_the_first_member_is_alone_at_once() -> None:
    check("""
        set initial_rebalance_delay_ms=0
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
        join b v=0
        heartbeat a
            a heartbeat REBALANCE_IN_PROGRESS
        join a
            a joined generation 2 by range, leader a, members a b'
            b joined generation 2 by range, leader a
    """)


def test_a_dynamic_member_of_version_4_is_first_given_its_id() -> None:
    check("""
        join a v=4
            a join MEMBER_ID_REQUIRED
        list
            groups readers Empty - NONE
        join a v=4
        pass 0
            a joined generation 1 by range, leader a, members a
    """)


def test_an_id_that_is_not_joined_with_in_time_is_forgotten() -> None:
    check("""
        join a v=4 session=1000
            a join MEMBER_ID_REQUIRED
        pass 1000
        join a v=4
            a join UNKNOWN_MEMBER_ID
    """)


def test_a_rebalance_waits_for_ids_that_were_given_out() -> None:
    check("""
        stable a
        join b v=4 session=5000
            b join MEMBER_ID_REQUIRED
        join a
        heartbeat a
            a heartbeat REBALANCE_IN_PROGRESS
        join b v=4
            a joined generation 2 by range, leader a, members a b
            b joined generation 2 by range, leader a
    """)


def test_a_rebalance_goes_on_without_an_id_that_expires() -> None:
    check("""
        stable a
        join b v=4 session=5000
            b join MEMBER_ID_REQUIRED
        join a
        pass 5000
            a joined generation 2 by range, leader a, members a
    """)


def test_a_member_that_does_not_join_again_in_time_is_out() -> None:
    check("""
        completing a rebalance=5000
        join b v=1 rebalance=5000
        join a v=1 rebalance=5000
            a joined generation 2 by range, leader a, members a b'
            b joined generation 2 by range, leader a
        join c v=1 rebalance=5000
        heartbeat a
            a heartbeat REBALANCE_IN_PROGRESS
        join b v=1 rebalance=5000
        pass 4999
        pass 1
            b joined generation 3 by range, leader b, members b c'
            c joined generation 3 by range, leader b
        heartbeat a
            a heartbeat UNKNOWN_MEMBER_ID
    """)


def test_the_longest_rebalance_timeout_of_all_members_counts() -> None:
    check("""
        stable a rebalance=2000
        join b v=1 rebalance=8000
        pass 7999
        pass 1
            b joined generation 2 by range, leader b, members b
    """)


def test_version_0_uses_the_session_timeout_for_the_rebalance() -> None:
    check("""
        completing a v=0 session=2000 rebalance=-1
        join b v=0 session=3000 rebalance=-1
        pass 1999
        heartbeat a
            a heartbeat REBALANCE_IN_PROGRESS
        pass 1000
        pass 1
            b joined generation 2 by range, leader b, members b
    """)


def test_if_the_leader_does_not_come_back_another_leads() -> None:
    check("""
        completing a session=90000
        join b v=1 session=90000
        join a v=1 session=90000
            a joined generation 2 by range, leader a, members a b'
            b joined generation 2 by range, leader a
        join b v=1 by=range:changed session=90000
        pass 60000
            b joined generation 3 by range, leader b, members b(changed)
    """)


def test_members_vote_for_a_protocol_that_all_support() -> None:
    check("""
        join a v=0 by=sticky:1,range:2,roundrobin:3
        join b v=0 by=roundrobin:4,range:5
        join c v=0 by=roundrobin:6,range:7
        pass 0
            a joined generation 1 by roundrobin, leader a, members a(3) b'(4) c'(6)
            b joined generation 1 by roundrobin, leader a
            c joined generation 1 by roundrobin, leader a
    """)


def test_a_protocol_named_twice_counts_once() -> None:
    check("""
        join a v=0 by=range:1,range:2
        pass 0
            a joined generation 1 by range, leader a, members a(1)
    """)


def test_other_protocol_types_are_as_good_as_consumers() -> None:
    check("""
        join a v=0 type=connect by=sessioned,default
        pass 0
            a joined generation 1 by sessioned, leader a, members a
        sync a v=5 type=connect by=sessioned give=a:tasks
            log: readers generation 1 a:tasks
            a is assigned tasks
        describe
            readers Stable connect by sessioned, a() tasks
    """)


def test_a_member_whose_answer_was_lost_gets_the_generation_again() -> None:
    check("""
        completing a b
        join a
            a joined generation 1 by range, leader a, members a b
        join b
            b joined generation 1 by range, leader a
        sync a give=a:p0,b:p1
            log: readers generation 1 a:p0 b:p1
            a is assigned p0
        join b
            b joined generation 1 by range, leader a
        sync b
            b is assigned p1
    """)


def test_a_changed_subscription_during_the_assignment_begins_a_new_rebalance() -> None:
    check("""
        completing a b
        sync b
        join b by=range:changed
            b sync REBALANCE_IN_PROGRESS
        sync a give=a:p0,b:p1
            a sync REBALANCE_IN_PROGRESS
        join a
            a joined generation 2 by range, leader a, members a b(changed)
            b joined generation 2 by range, leader a
    """)


def test_a_changed_subscription_in_a_stable_group_rebalances() -> None:
    check("""
        stable a b
        join b by=range:changed
        heartbeat a
            a heartbeat REBALANCE_IN_PROGRESS
        join a
            a joined generation 2 by range, leader a, members a b(changed)
            b joined generation 2 by range, leader a
    """)


def test_a_leader_that_joins_again_rebalances_a_stable_group() -> None:
    check("""
        stable a b
        join a
        heartbeat b
            b heartbeat REBALANCE_IN_PROGRESS
        join b
            a joined generation 2 by range, leader a, members a b
            b joined generation 2 by range, leader a
    """)


def test_a_second_join_takes_the_place_of_one_that_waits() -> None:
    check("""
        completing a b
        join a by=range:changed
        join a by=range:again
            a join REBALANCE_IN_PROGRESS
        join b
            a joined generation 2 by range, leader a, members a(again) b
            b joined generation 2 by range, leader a
    """)


def test_a_new_member_that_gives_up_waiting_does_not_stay_for_ever() -> None:
    check("""
        completing a session=1800000 rebalance=1800000
        join b v=1 session=10000 rebalance=1800000
        pass 299999
        pass 1
            b join UNKNOWN_MEMBER_ID
        join a
            a joined generation 2 by range, leader a, members a
    """)


def test_a_joiner_without_a_common_protocol_is_refused() -> None:
    check("""
        join a v=0 by=range
        join b v=0 by=roundrobin
            b join INCONSISTENT_GROUP_PROTOCOL
        join b v=0 by=range type=connect
            b join INCONSISTENT_GROUP_PROTOCOL
        join b v=0 by=
            b join INCONSISTENT_GROUP_PROTOCOL
        pass 0
            a joined generation 1 by range, leader a, members a
    """)


def test_the_first_joiner_has_to_bring_a_type_and_a_protocol() -> None:
    check("""
        join a v=0 by=
            a join INCONSISTENT_GROUP_PROTOCOL
        join a v=0 type=
            a join INCONSISTENT_GROUP_PROTOCOL
        list
            groups none NONE
    """)


def test_a_session_timeout_out_of_bounds_is_refused() -> None:
    check("""
        join a session=99
            a join INVALID_SESSION_TIMEOUT
        join a session=1800001
            a join INVALID_SESSION_TIMEOUT
        list
            groups none NONE
    """)


def test_an_unknown_member_id_is_refused() -> None:
    check("""
        join a id=made-up
            a join UNKNOWN_MEMBER_ID
        join b v=0
        join a id=made-up
            a join UNKNOWN_MEMBER_ID
    """)


def test_an_empty_group_id_is_refused() -> None:
    check("""
        join a group=
            a join INVALID_GROUP_ID
        heartbeat a group=
            a heartbeat INVALID_GROUP_ID
        leave a group=
            leave INVALID_GROUP_ID
    """)


def test_a_full_group_turns_new_members_away() -> None:
    check("""
        set max_size=2
        join a v=0
        join b v=0
        join c v=0
            c join GROUP_MAX_SIZE_REACHED
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
        join c v=4
            c join GROUP_MAX_SIZE_REACHED
        join a
            a joined generation 1 by range, leader a, members a b
    """)


def test_a_group_over_a_lowered_limit_loses_who_comes_last() -> None:
    check("""
        completing a b c
        set max_size=2
        join a by=range:changed
        join b
        join c
            c join GROUP_MAX_SIZE_REACHED
            a joined generation 2 by range, leader a, members a(changed) b
            b joined generation 2 by range, leader a
        heartbeat c
            c heartbeat UNKNOWN_MEMBER_ID
    """)


def test_a_joiner_turned_away_is_not_waited_for_any_more() -> None:
    check("""
        set max_size=2
        stable a
        join b v=4
            b join MEMBER_ID_REQUIRED
        join c v=0
        join a
        join b v=4
            b join GROUP_MAX_SIZE_REACHED
            a joined generation 2 by range, leader a, members a c'
            c joined generation 2 by range, leader a
    """)
