"""Static members (KIP-345): a later member with an instance id fences the earlier one."""

from __future__ import annotations

from groups_transcript import play, told


def test_of_two_members_that_return_under_one_instance_id_the_later_fences_the_earlier() -> None:
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
        join a3 v=5 instance=one
            a2 join FENCED_INSTANCE_ID
            log: readers generation 1 one':all
        log continues
            a3 joined generation 1 by range, leader one'
        heartbeat a3 instance=one
            a3 heartbeat NONE
    """
    assert play(script) == told(script)


def test_a_waiting_sync_of_the_old_id_is_fenced() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        join b v=5 instance=two
        pass 0
            a joined generation 1 by range, leader a, members a two'
            b joined generation 1 by range, leader a
        sync b instance=two
        join b2 v=5 instance=two
            b sync FENCED_INSTANCE_ID
        join a
            a joined generation 2 by range, leader a, members a two'
            b2 joined generation 2 by range, leader a
    """
    assert play(script) == told(script)


def test_requests_of_a_fenced_member_are_refused() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=5 instance=one
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        join a2 v=5 instance=one
            log: readers generation 1 one':all
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
    """
    assert play(script) == told(script)


def test_requests_under_an_instance_id_that_nobody_has_are_refused() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
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
    """
    assert play(script) == told(script)


def test_an_id_that_was_given_out_cannot_become_static() -> None:
    script = """
        join a v=4
            a join MEMBER_ID_REQUIRED
        join a v=5 instance=one
            a join UNKNOWN_MEMBER_ID
    """
    assert play(script) == told(script)
