"""Heartbeats, leaving, and sessions that end."""

from __future__ import annotations

from groups_transcript import play, told


def test_a_heartbeat_is_told_of_a_rebalance_only_while_joins_wait() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        join b v=0
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
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
    """
    assert play(script) == told(script)


def test_heartbeats_of_others_are_refused() -> None:
    script = """
        heartbeat a id=x generation=1
            a heartbeat UNKNOWN_MEMBER_ID
        set initial_rebalance_delay_ms=0
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
    """
    assert play(script) == told(script)


def test_a_member_that_is_not_heard_of_is_out() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0 session=6000
        join b v=0 session=6000
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
        sync a give=a:p0,b:p1
            log: readers generation 1 a:p0 b:p1
            a is assigned p0
        sync b
            b is assigned p1
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
    """
    assert play(script) == told(script)


def test_commits_and_syncs_keep_a_member_alive() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0 session=6000
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        pass 5999
        commit a t-0:1
            log: readers t-0 1
            a committed t-0 NONE
        pass 5999
        sync a
            a is assigned all
        pass 5999
        heartbeat a
            a heartbeat NONE
        pass 6000
            log: readers generation 2 empty
        heartbeat a
            a heartbeat UNKNOWN_MEMBER_ID
    """
    assert play(script) == told(script)


def test_a_member_that_waits_to_join_need_not_heartbeat() -> None:
    script = """
        set initial_rebalance_delay_ms=0
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
    """
    assert play(script) == told(script)


def test_a_member_lost_while_others_wait_lets_the_rebalance_go_on() -> None:
    script = """
        set initial_rebalance_delay_ms=0
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
    """
    assert play(script) == told(script)


def test_the_last_member_leaving_empties_the_group() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        leave a v=0
            log: readers generation 2 empty
            leave NONE
        describe
            readers Empty consumer by -
        heartbeat a
            a heartbeat UNKNOWN_MEMBER_ID
        leave a v=0
            leave UNKNOWN_MEMBER_ID
    """
    assert play(script) == told(script)


def test_a_member_that_leaves_while_its_join_waits_is_answered() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        join b v=0
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
        join b by=range:changed
        leave b
            b join UNKNOWN_MEMBER_ID
            leave NONE: NONE
        join a
            a joined generation 2 by range, leader a, members a
    """
    assert play(script) == told(script)


def test_who_leaves_while_others_wait_for_it_lets_the_rebalance_go_on() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        join b v=0
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
        join b by=range:changed
        leave a
            b joined generation 2 by range, leader b, members b(changed)
            leave NONE: NONE
    """
    assert play(script) == told(script)


def test_many_members_leave_at_once_from_version_3() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        join b v=0
        join c v=0
        pass 0
            a joined generation 1 by range, leader a, members a b' c'
            b joined generation 1 by range, leader a
            c joined generation 1 by range, leader a
        leave a b nobody v=3
            leave NONE: NONE NONE UNKNOWN_MEMBER_ID
        join c
            c joined generation 2 by range, leader c, members c
    """
    assert play(script) == told(script)


def test_an_id_that_was_given_out_may_leave() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        join b v=4
            b join MEMBER_ID_REQUIRED
        join a
        leave b
            a joined generation 2 by range, leader a, members a
            leave NONE: NONE
    """
    assert play(script) == told(script)


def test_leaving_a_group_that_does_not_exist_is_refused_by_member() -> None:
    script = """
        leave a id=x v=2
            leave UNKNOWN_MEMBER_ID
        leave a id=x v=3
            leave NONE: UNKNOWN_MEMBER_ID
    """
    assert play(script) == told(script)


def test_an_emptied_group_starts_over_with_the_next_generation() -> None:
    script = """
        join a v=0
        pass 3000
            a joined generation 1 by range, leader a, members a
        leave a
            log: readers generation 2 empty
            leave NONE: NONE
        join b v=0
        pass 3000
            b joined generation 3 by range, leader b, members b
    """
    assert play(script) == told(script)


def test_a_new_group_that_everyone_leaves_while_it_waits_is_empty() -> None:
    script = """
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
    """
    assert play(script) == told(script)
