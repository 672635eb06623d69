"""Committed offsets: who may commit, what is refused, what a fetch shows, and what expires."""

from __future__ import annotations

from groups_transcript import play, told


def test_a_client_outside_commits_to_a_group_without_members() -> None:
    script = """
        commit outside t-0:5 t-1:6
            log: readers t-0 5
            log: readers t-1 6
            outside committed t-0 NONE, t-1 NONE
        fetch t-0 t-1 t-2
            offsets t-0 5, t-1 6, t-2 -1
        fetch
            offsets t-0 5, t-1 6
        commit outside t-0:7
            log: readers t-0 7
            outside committed t-0 NONE
        fetch t-0
            offsets t-0 7
        list
            groups readers Empty - NONE
    """
    assert play(script) == told(script)


def test_a_client_outside_may_not_commit_beside_members() -> None:
    script = """
        join a v=0
        commit outside t-0:5
            outside committed t-0 UNKNOWN_MEMBER_ID
        pass 3000
            a joined generation 1 by range, leader a, members a
        commit outside t-0:5
            outside committed t-0 UNKNOWN_MEMBER_ID
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        commit outside t-0:5
            outside committed t-0 UNKNOWN_MEMBER_ID
        leave a
            log: readers generation 2 empty
            leave NONE: NONE
        commit outside t-0:5
            log: readers t-0 5
            outside committed t-0 NONE
    """
    assert play(script) == told(script)


def test_members_commit_except_while_they_are_assigned() -> None:
    script = """
        set initial_rebalance_delay_ms=0
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
        commit a t-0:1
            a committed t-0 REBALANCE_IN_PROGRESS
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        commit a t-0:2
            log: readers t-0 2
            a committed t-0 NONE
        join b v=0
        commit a t-0:3
            log: readers t-0 3
            a committed t-0 NONE
    """
    assert play(script) == told(script)


def test_a_commit_of_another_generation_or_member_is_refused() -> None:
    script = """
        commit a t-0:1 generation=1 id=x
            a committed t-0 ILLEGAL_GENERATION
        set initial_rebalance_delay_ms=0
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        commit a t-0:1 generation=0
            a committed t-0 ILLEGAL_GENERATION
        commit a t-0:1 generation=-1
            a committed t-0 ILLEGAL_GENERATION
        commit b t-0:1 generation=1 id=x
            b committed t-0 UNKNOWN_MEMBER_ID
        commit b t-0:1 generation=-1 id=x
            b committed t-0 UNKNOWN_MEMBER_ID
        leave a
            log: readers generation 2 empty
            leave NONE: NONE
        commit a t-0:1
            a committed t-0 UNKNOWN_MEMBER_ID
    """
    assert play(script) == told(script)


def test_partitions_that_do_not_exist_are_refused_one_by_one() -> None:
    script = """
        commit outside nowhere-0:1 t-0:2
            log: readers t-0 2
            outside committed nowhere-0 UNKNOWN_TOPIC_OR_PARTITION, t-0 NONE
        commit outside nowhere-0:1
            outside committed nowhere-0 UNKNOWN_TOPIC_OR_PARTITION
        fetch nowhere-0 t-0
            offsets nowhere-0 -1, t-0 2
    """
    assert play(script) == told(script)


def test_nothing_known_in_a_commit_leaves_no_group_behind() -> None:
    script = """
        commit outside nowhere-0:1
            outside committed nowhere-0 UNKNOWN_TOPIC_OR_PARTITION
        list
            groups none NONE
    """
    assert play(script) == told(script)


def test_metadata_that_is_too_long_is_refused() -> None:
    script = """
        set offset_metadata_max_bytes=3
        commit outside t-0:1 metadata=four
            outside committed t-0 OFFSET_METADATA_TOO_LARGE
        commit outside t-0:2 metadata=thr
            log: readers t-0 2
            outside committed t-0 NONE
        commit outside t-0:3 metadata=äöü
            log: readers t-0 3
            outside committed t-0 NONE
        commit outside t-0:4 metadata=💾💾
            outside committed t-0 OFFSET_METADATA_TOO_LARGE
        fetch
            offsets t-0 3
    """
    assert play(script) == told(script)


def test_an_offset_counts_when_it_is_in_the_log() -> None:
    script = """
        commit outside t-0:1
            log: readers t-0 1
            outside committed t-0 NONE
        log holds
        commit outside t-0:2
            log: readers t-0 2
        fetch t-0
            offsets t-0 1
        fetch t-0 t-1 stable=1
            offsets t-0 UNSTABLE_OFFSET_COMMIT, t-1 -1
        log continues
            outside committed t-0 NONE
        fetch t-0 stable=1
            offsets t-0 2
    """
    assert play(script) == told(script)


def test_a_commit_that_does_not_get_into_the_log_does_not_count() -> None:
    script = """
        commit outside t-0:1
            log: readers t-0 1
            outside committed t-0 NONE
        log fails NOT_ENOUGH_REPLICAS_AFTER_APPEND
        commit outside t-0:2
            outside committed t-0 COORDINATOR_NOT_AVAILABLE
        log fails KAFKA_STORAGE_ERROR
        commit outside t-0:2
            outside committed t-0 NOT_COORDINATOR
        log fails RECORD_LIST_TOO_LARGE
        commit outside t-0:2
            outside committed t-0 INVALID_COMMIT_OFFSET_SIZE
        log fails REQUEST_TIMED_OUT
        commit outside t-0:2
            outside committed t-0 REQUEST_TIMED_OUT
        fetch t-0 stable=1
            offsets t-0 1
    """
    assert play(script) == told(script)


def test_a_group_that_nobody_knows_has_committed_nothing() -> None:
    script = """
        fetch t-0 t-1
            offsets t-0 -1, t-1 -1
        fetch
            offsets none
        list
            groups none NONE
    """
    assert play(script) == told(script)


def test_the_empty_group_id_may_commit_and_fetch() -> None:
    script = """
        commit outside t-0:1 group=
            log:  t-0 1
            outside committed t-0 NONE
        fetch group=
            offsets t-0 1
    """
    assert play(script) == told(script)
