"""Committed offsets that expire, or whose partitions are deleted."""

from __future__ import annotations

from groups_transcript import play, told


def test_offsets_of_a_simple_consumer_expire_since_their_commit() -> None:
    script = """
        set offsets_retention_minutes=10 offsets_retention_check_interval_ms=60000
        commit outside t-0:1
            log: readers t-0 1
            outside committed t-0 NONE
        pass 300000
        commit outside t-1:2
            log: readers t-1 2
            outside committed t-1 NONE
        pass 200000
        expire
        pass 39999
        expire
            log: readers t-0 gone
        fetch
            offsets t-1 2
        pass 200000
        expire
            log: readers t-1 gone
        list
            groups none NONE
    """
    assert play(script) == told(script)


def test_offsets_of_an_empty_group_expire_since_it_became_empty() -> None:
    script = """
        set initial_rebalance_delay_ms=0 offsets_retention_minutes=10
        set offsets_retention_check_interval_ms=60000 max_session_timeout_ms=2000000000
        join a v=0 session=1000000000
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        commit a t-0:1
            log: readers t-0 1
            a committed t-0 NONE
        pass 1000000
        leave a
            log: readers generation 2 empty
            leave NONE: NONE
        pass 539999
        expire
        expire
            log: readers t-0 gone
            log: readers gone
        list
            groups none NONE
    """
    assert play(script) == told(script)


def test_a_stable_group_keeps_its_offsets_while_it_is_not_known_what_it_reads() -> None:
    script = """
        set initial_rebalance_delay_ms=0 offsets_retention_minutes=10
        set offsets_retention_check_interval_ms=60000 max_session_timeout_ms=2000000000
        join a v=0 session=1000000000 type=connect
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        commit a t-0:1
            log: readers t-0 1
            a committed t-0 NONE
        pass 1000000
        expire
        fetch
            offsets t-0 1
    """
    assert play(script) == told(script)


def test_a_retention_of_the_largest_number_there_is_means_for_ever() -> None:
    script = f"""
        commit outside t-0:1 retention={2**63 - 1}
            log: readers t-0 1
            outside committed t-0 NONE
    """
    assert play(script) == told(script)


def test_a_retention_of_the_clients_own_counts() -> None:
    script = """
        set offsets_retention_check_interval_ms=1000
        commit outside t-0:1 retention=5000
            log: readers t-0 1
            outside committed t-0 NONE
        commit outside t-1:1
            log: readers t-1 1
            outside committed t-1 NONE
        pass 3999
        expire
        expire
            log: readers t-0 gone
        fetch
            offsets t-1 1
    """
    assert play(script) == told(script)


def test_offsets_with_a_commit_under_way_do_not_expire() -> None:
    script = """
        set offsets_retention_minutes=10 offsets_retention_check_interval_ms=60000
        commit outside t-0:1
            log: readers t-0 1
            outside committed t-0 NONE
        pass 600000
        log holds
        commit outside t-0:2
            log: readers t-0 2
        expire
        log continues
            outside committed t-0 NONE
        fetch
            offsets t-0 2
    """
    assert play(script) == told(script)


def test_deleted_partitions_take_their_offsets_along() -> None:
    script = """
        commit outside t-0:1 t-1:2 u-0:3
            log: readers t-0 1
            log: readers t-1 2
            log: readers u-0 3
            outside committed t-0 NONE, t-1 NONE, u-0 NONE
        delete t-0 t-1
            log: readers t-0 gone
            log: readers t-1 gone
        fetch
            offsets u-0 3
        delete u-0
            log: readers u-0 gone
        list
            groups none NONE
    """
    assert play(script) == told(script)


def test_a_commit_under_way_to_a_deleted_partition_is_forgotten() -> None:
    script = """
        commit outside u-0:1
            log: readers u-0 1
            outside committed u-0 NONE
        log holds
        commit outside t-0:2
            log: readers t-0 2
        delete t-0
            log: readers t-0 gone
        log continues
            outside committed t-0 NONE
        fetch t-0 u-0
            offsets t-0 -1, u-0 1
    """
    assert play(script) == told(script)


def test_a_group_with_members_survives_the_loss_of_its_offsets() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        commit a t-0:1
            log: readers t-0 1
            a committed t-0 NONE
        delete t-0
            log: readers t-0 gone
        heartbeat a
            a heartbeat NONE
    """
    assert play(script) == told(script)


def test_an_empty_group_without_offsets_goes_with_the_next_look() -> None:
    script = """
        set initial_rebalance_delay_ms=0 offsets_retention_check_interval_ms=1000
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
        leave a
            log: readers generation 2 empty
            leave NONE: NONE
        list
            groups readers Empty consumer NONE
        expire
            log: readers gone
        list
            groups none NONE
    """
    assert play(script) == told(script)


def test_a_group_that_an_id_was_given_out_for_stays() -> None:
    script = """
        set offsets_retention_check_interval_ms=1000
        join a v=4
            a join MEMBER_ID_REQUIRED
        expire
        join a v=4
        pass 3000
            a joined generation 1 by range, leader a, members a
    """
    assert play(script) == told(script)
