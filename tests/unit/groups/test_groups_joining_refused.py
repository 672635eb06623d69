"""JoinGroup: who is refused, and who is one too many."""

from __future__ import annotations

from groups_transcript import play, told


def test_a_joiner_without_a_common_protocol_is_refused() -> None:
    script = """
        join a v=0 by=range
        join b v=0 by=roundrobin
            b join INCONSISTENT_GROUP_PROTOCOL
        join b v=0 by=range type=connect
            b join INCONSISTENT_GROUP_PROTOCOL
        join b v=0 by=
            b join INCONSISTENT_GROUP_PROTOCOL
        pass 3000
            a joined generation 1 by range, leader a, members a
    """
    assert play(script) == told(script)


def test_the_first_joiner_has_to_bring_a_type_and_a_protocol() -> None:
    script = """
        join a v=0 by=
            a join INCONSISTENT_GROUP_PROTOCOL
        join a v=0 type=
            a join INCONSISTENT_GROUP_PROTOCOL
        list
            groups none NONE
    """
    assert play(script) == told(script)


def test_a_session_timeout_out_of_bounds_is_refused() -> None:
    script = """
        join a session=99
            a join INVALID_SESSION_TIMEOUT
        join a session=1800001
            a join INVALID_SESSION_TIMEOUT
        list
            groups none NONE
    """
    assert play(script) == told(script)


def test_an_unknown_member_id_is_refused() -> None:
    script = """
        join a id=made-up
            a join UNKNOWN_MEMBER_ID
        join b v=0
        join a id=made-up
            a join UNKNOWN_MEMBER_ID
    """
    assert play(script) == told(script)


def test_an_empty_group_id_is_refused() -> None:
    script = """
        join a group=
            a join INVALID_GROUP_ID
        heartbeat a group=
            a heartbeat INVALID_GROUP_ID
        leave a group=
            leave INVALID_GROUP_ID
    """
    assert play(script) == told(script)


def test_a_full_group_turns_new_members_away() -> None:
    script = """
        set max_size=2 initial_rebalance_delay_ms=0
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
    """
    assert play(script) == told(script)


def test_a_group_over_a_lowered_limit_loses_who_comes_last() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        join b v=0
        join c v=0
        pass 0
            a joined generation 1 by range, leader a, members a b' c'
            b joined generation 1 by range, leader a
            c joined generation 1 by range, leader a
        set max_size=2
        join a by=range:changed
        join b
        join c
            c join GROUP_MAX_SIZE_REACHED
            a joined generation 2 by range, leader a, members a(changed) b
            b joined generation 2 by range, leader a
        heartbeat c
            c heartbeat UNKNOWN_MEMBER_ID
    """
    assert play(script) == told(script)


def test_a_joiner_turned_away_is_not_waited_for_any_more() -> None:
    script = """
        set max_size=2 initial_rebalance_delay_ms=0
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        join b v=4
            b join MEMBER_ID_REQUIRED
        join c v=0
        join a
        join b v=4
            b join GROUP_MAX_SIZE_REACHED
            a joined generation 2 by range, leader a, members a c'
            c joined generation 2 by range, leader a
    """
    assert play(script) == told(script)
