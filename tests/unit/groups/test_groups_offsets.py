"""Committed offsets: who may commit, what a fetch shows, which of several commits wins."""

from __future__ import annotations

from groups_transcript import check
from hypothesis import given
from hypothesis import strategies as st

from kdist.groups.group import CommittedOffset, GroupOffsets, Totals
from kdist.model import TopicPartition

WHERE = TopicPartition("t", 0)


def test_a_client_outside_commits_to_a_group_without_members() -> None:
    check("""
        committed t-0:5 t-1:6
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
    """)


def test_a_client_outside_may_not_commit_beside_members() -> None:
    check("""
        join a v=0
        commit outside t-0:5
            outside committed t-0 UNKNOWN_MEMBER_ID
        pass 0
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
    """)


def test_members_commit_except_while_they_are_assigned() -> None:
    check("""
        completing a
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
    """)


def test_a_commit_of_another_generation_or_member_is_refused() -> None:
    check("""
        commit a t-0:1 generation=1 id=x
            a committed t-0 ILLEGAL_GENERATION
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
    """)


def test_partitions_that_do_not_exist_are_refused_one_by_one() -> None:
    check("""
        commit outside nowhere-0:1 t-0:2
            log: readers t-0 2
            outside committed nowhere-0 UNKNOWN_TOPIC_OR_PARTITION, t-0 NONE
        commit outside nowhere-0:1
            outside committed nowhere-0 UNKNOWN_TOPIC_OR_PARTITION
        fetch nowhere-0 t-0
            offsets nowhere-0 -1, t-0 2
    """)


def test_nothing_known_in_a_commit_leaves_no_group_behind() -> None:
    check("""
        commit outside nowhere-0:1
            outside committed nowhere-0 UNKNOWN_TOPIC_OR_PARTITION
        list
            groups none NONE
    """)


def test_metadata_that_is_too_long_is_refused() -> None:
    check("""
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
    """)


def test_an_offset_counts_when_it_is_in_the_log() -> None:
    check("""
        committed t-0:1
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
    """)


def test_a_commit_that_does_not_get_into_the_log_does_not_count() -> None:
    check("""
        committed t-0:1
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
    """)


def test_a_group_that_nobody_knows_has_committed_nothing() -> None:
    check("""
        fetch t-0 t-1
            offsets t-0 -1, t-1 -1
        fetch
            offsets none
        list
            groups none NONE
    """)


def test_the_empty_group_id_may_commit_and_fetch() -> None:
    check("""
        commit outside t-0:1 group=
            log:  t-0 1
            outside committed t-0 NONE
        fetch group=
            offsets t-0 1
    """)


@given(st.data())
def test_the_last_successful_commit_in_the_log_wins(data: st.DataObject) -> None:
    offsets = GroupOffsets()
    count = data.draw(st.integers(1, 6))
    succeeds = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    commits = [{WHERE: CommittedOffset(number)} for number in range(count)]
    numbers = [offsets.begin(each) for each in commits]
    for index in data.draw(st.permutations(range(count))):
        assert offsets.is_under_way(WHERE)
        if succeeds[index]:
            offsets.finish(numbers[index], commits[index])
        else:
            offsets.fail(numbers[index], commits[index])
    expected = max((index for index in range(count) if succeeds[index]), default=-1)
    assert offsets.get(WHERE).offset == expected
    assert not offsets.is_under_way(WHERE)
    assert bool(offsets) == (expected >= 0)


@given(st.data())
def test_a_deletion_counts_as_a_commit_of_nothing(data: st.DataObject) -> None:
    totals = Totals()
    offsets = GroupOffsets(totals)
    offsets.load(WHERE, CommittedOffset(7))
    kinds = data.draw(st.lists(st.sampled_from(("commit", "delete", "fail")), min_size=1))
    numbers = [offsets.begin([WHERE]) for _ in kinds]
    for index in data.draw(st.permutations(range(len(kinds)))):
        if kinds[index] == "commit":
            offsets.finish(numbers[index], {WHERE: CommittedOffset(index)})
        elif kinds[index] == "delete":
            offsets.finish_deletion(numbers[index], [WHERE])
        else:
            offsets.fail(numbers[index], [WHERE])
    last = max((index for index, kind in enumerate(kinds) if kind != "fail"), default=-1)
    expected = 7 if last < 0 else last if kinds[last] == "commit" else -1
    assert offsets.get(WHERE).offset == expected
    assert not offsets.is_under_way(WHERE)
    assert totals.offsets == len(offsets) == (expected >= 0)


def test_a_commit_begun_before_its_topic_was_deleted_does_not_come_back() -> None:
    offsets = GroupOffsets()
    before, after = {WHERE: CommittedOffset(1)}, {WHERE: CommittedOffset(2)}
    first = offsets.begin(before)
    assert offsets.forget([WHERE]) == [WHERE]
    second = offsets.begin(after)
    offsets.finish(first, before)
    assert offsets.get(WHERE).offset == -1
    offsets.fail(second, after)
    assert not offsets
