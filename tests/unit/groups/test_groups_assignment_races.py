"""What comes between a generation and its assignment: joins, leaves, deaths, the log."""

from __future__ import annotations

from groups_transcript import play, told


def test_a_join_during_the_assignment_sends_everyone_to_join() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        join b v=0
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
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
    """
    assert play(script) == told(script)


def test_a_rebalance_while_the_assignment_goes_to_the_log_wins() -> None:
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
    """
    assert play(script) == told(script)


def test_an_assignment_of_an_earlier_generation_comes_too_late() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
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
    """
    assert play(script) == told(script)


def test_the_leader_leaving_during_the_assignment_begins_a_new_rebalance() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        join b v=0
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
        sync b
        leave a
            b sync REBALANCE_IN_PROGRESS
            leave NONE: NONE
        join b
            b joined generation 2 by range, leader b, members b
    """
    assert play(script) == told(script)


def test_a_member_that_leaves_while_its_sync_waits_is_answered() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        join b v=0
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
        sync b
        leave b
            b sync UNKNOWN_MEMBER_ID
            leave NONE: NONE
        sync a give=a:all
            a sync REBALANCE_IN_PROGRESS
    """
    assert play(script) == told(script)


def test_the_leader_dying_during_the_assignment_begins_a_new_rebalance() -> None:
    script = """
        set initial_rebalance_delay_ms=0
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
    """
    assert play(script) == told(script)


def test_an_assignment_that_cannot_be_stored_fails_with_an_error_that_members_know() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        join b v=0
        pass 0
            a joined generation 1 by range, leader a, members a b'
            b joined generation 1 by range, leader a
        log fails NOT_ENOUGH_REPLICAS
        sync b
        sync a give=a:p0,b:p1
        pass 1000
            b sync COORDINATOR_NOT_AVAILABLE
            a sync COORDINATOR_NOT_AVAILABLE
        join b
        join a
            a joined generation 2 by range, leader a, members a b
            b joined generation 2 by range, leader a
        log fails NOT_LEADER_OR_FOLLOWER
        sync a give=a:p0,b:p1
        pass 1000
            a sync NOT_COORDINATOR
        join a
        join b
            a joined generation 3 by range, leader a, members a b
            b joined generation 3 by range, leader a
        log fails REQUEST_TIMED_OUT
        sync a give=a:p0,b:p1
        pass 1000
            a sync REBALANCE_IN_PROGRESS
        join a
        join b
            a joined generation 4 by range, leader a, members a b
            b joined generation 4 by range, leader a
        log fails MESSAGE_TOO_LARGE
        sync a give=a:p0,b:p1
        pass 1000
            a sync UNKNOWN_SERVER_ERROR
        join a
        join b
            a joined generation 5 by range, leader a, members a b
            b joined generation 5 by range, leader a
        log works
        sync a give=a:p0,b:p1
            log: readers generation 5 a:p0 b:p1
            a is assigned p0
    """
    assert play(script) == told(script)


def test_after_an_assignment_that_was_not_stored_the_next_is_asked_for_a_second_later() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
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
    """
    assert play(script) == told(script)
