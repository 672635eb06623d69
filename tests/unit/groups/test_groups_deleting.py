"""DeleteGroups and OffsetDelete: who is refused, when it counts, and what comes meanwhile."""

from __future__ import annotations

import pytest
from groups_transcript import GROUP, check
from groups_world import CALLER, GroupsWorld, commit

from kdist.errors import Error
from kdist.groups.context import LogRecord
from kdist.protocol.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse


def test_an_empty_group_is_deleted_with_its_offsets_and_stays_deleted() -> None:
    check("""
        completing a
        commit a t-0:1
            a committed t-0 REBALANCE_IN_PROGRESS
        leave a
            log: readers generation 2 empty
            leave NONE: NONE
        commit outside t-0:1 t-1:2
            log: readers t-0 1
            log: readers t-1 2
            outside committed t-0 NONE, t-1 NONE
        remove
            log: readers t-0 gone
            log: readers t-1 gone
            log: readers gone
            removed readers NONE
        list
            groups none NONE
        unload
        load
        list
            groups none NONE
    """)


def test_a_group_with_members_is_not_deleted() -> None:
    check("""
        join a v=0
        remove
            removed readers NON_EMPTY_GROUP
        pass 0
            a joined generation 1 by range, leader a, members a
        remove
            removed readers NON_EMPTY_GROUP
        sync a give=a:all
            log: readers generation 1 a:all
            a is assigned all
        remove
            removed readers NON_EMPTY_GROUP
    """)


def test_each_group_is_answered_for_itself_and_once() -> None:
    check("""
        committed t-0:1
        remove readers nobody readers
            log: readers t-0 gone
            removed nobody GROUP_ID_NOT_FOUND, readers NONE
    """)


def test_groups_that_are_elsewhere_or_not_loaded_are_not_deleted_here() -> None:
    check("""
        unload
        remove
            removed readers NOT_COORDINATOR
        forget t-0
            forgot NOT_COORDINATOR
        begin_loading
        remove
            removed readers COORDINATOR_LOAD_IN_PROGRESS
        forget t-0
            forgot COORDINATOR_LOAD_IN_PROGRESS
    """)


def test_the_answer_waits_for_the_log_and_says_if_it_failed() -> None:
    check("""
        committed t-0:1
        log holds
        remove
            log: readers t-0 gone
        log continues
            removed readers NONE
        commit outside t-0:1
            log: readers t-0 1
            outside committed t-0 NONE
        log fails NOT_ENOUGH_REPLICAS
        remove
            removed readers COORDINATOR_NOT_AVAILABLE
    """)


def test_a_group_is_seen_until_its_deletion_is_in_the_log() -> None:
    """Else it is seen to be gone, and comes back with the next coordinator."""
    check("""
        committed t-0:1
        log holds
        remove
            log: readers t-0 gone
        fetch
            offsets t-0 1
        list
            groups readers Empty - NONE
        remove
            log: readers t-0 gone
        log continues
            removed readers NONE
            removed readers NONE
        fetch
            offsets none
        remove
            removed readers GROUP_ID_NOT_FOUND
    """)


def test_a_deletion_that_failed_can_be_tried_again() -> None:
    check("""
        committed t-0:1
        log fails NOT_ENOUGH_REPLICAS
        remove
            removed readers COORDINATOR_NOT_AVAILABLE
        fetch
            offsets t-0 1
        log works
        remove
            log: readers t-0 gone
            removed readers NONE
        unload
        load
        list
            groups none NONE
    """)


def test_a_deletion_of_single_offsets_that_failed_can_be_tried_again() -> None:
    check("""
        committed t-0:1
        log fails NOT_ENOUGH_REPLICAS
        forget t-0
            forgot t-0 COORDINATOR_NOT_AVAILABLE
        fetch
            offsets t-0 1
        log works
        log holds
        forget t-0
            log: readers t-0 gone
        fetch
            offsets t-0 1
        log continues
            forgot t-0 NONE
        list
            groups none NONE
    """)


def test_what_a_group_commits_while_it_is_deleted_stays() -> None:
    check("""
        committed t-0:1 t-1:2
        log holds
        remove
            log: readers t-0 gone
            log: readers t-1 gone
        commit outside t-0:3
            log: readers t-0 3
        log continues
            removed readers NONE
            outside committed t-0 NONE
        fetch
            offsets t-0 3
    """)


def test_a_group_that_is_joined_and_left_while_it_is_deleted_stays() -> None:
    check("""
        committed t-0:1
        log holds
        remove
            log: readers t-0 gone
        join a v=0
        pass 0
            a joined generation 1 by range, leader a, members a
        leave a
            log: readers generation 2 empty
            leave NONE: NONE
        log continues
            removed readers NONE
        list
            groups readers Empty consumer NONE
        fetch
            offsets none
        unload
        load
        list
            groups readers Empty consumer NONE
    """)


def test_a_deletion_that_ends_after_its_partition_was_loaded_anew_leaves_that_alone() -> None:
    check("""
        committed t-0:1
        log holds
        remove
            log: readers t-0 gone
        commit outside t-0:2
            log: readers t-0 2
        unload
        load
        log continues
            removed readers NONE
            outside committed t-0 NONE
        fetch
            offsets t-0 2
    """)


def test_a_commit_under_way_is_deleted_with_its_group() -> None:
    check("""
        log holds
        commit outside t-0:1
            log: readers t-0 1
        remove
            log: readers t-0 gone
        log continues
            outside committed t-0 NONE
            removed readers NONE
        fetch t-0
            offsets t-0 -1
    """)


def test_a_pending_member_id_does_not_keep_a_group() -> None:
    check("""
        join a v=4
            a join MEMBER_ID_REQUIRED
        remove
            removed readers NONE
        join a v=4
            a join UNKNOWN_MEMBER_ID
    """)


def test_single_offsets_are_forgotten_by_an_empty_group() -> None:
    check("""
        committed t-0:1 t-1:2
        forget t-0 u-7 nowhere-0
            log: readers t-0 gone
            forgot t-0 NONE, u-7 NONE, nowhere-0 UNKNOWN_TOPIC_OR_PARTITION
        fetch
            offsets t-1 2
        log fails NOT_LEADER_OR_FOLLOWER
        forget t-1 nowhere-0
            forgot t-1 NOT_COORDINATOR, nowhere-0 UNKNOWN_TOPIC_OR_PARTITION
    """)


def test_an_offset_delete_without_partitions_keeps_the_group() -> None:
    check("""
        empty a
        forget nowhere-0
            forgot nowhere-0 UNKNOWN_TOPIC_OR_PARTITION
        forget
            forgot NONE
        list
            groups readers Empty consumer NONE
        forget t-0
            log: readers gone
            forgot t-0 NONE
        list
            groups none NONE
    """)


def test_offsets_of_subscribed_topics_are_kept() -> None:
    check("""
        stable a
        commit a t-0:1 u-0:2
            log: readers t-0 1
            log: readers u-0 2
            a committed t-0 NONE, u-0 NONE
        forget t-0 u-0
            forgot t-0 GROUP_SUBSCRIBED_TO_TOPIC, u-0 GROUP_SUBSCRIBED_TO_TOPIC
        subscribe t
        forget t-0 u-0
            log: readers u-0 gone
            forgot t-0 GROUP_SUBSCRIBED_TO_TOPIC, u-0 NONE
        fetch
            offsets t-0 1
    """)


def test_a_group_of_another_protocol_type_keeps_all_offsets() -> None:
    check("""
        completing a type=connect
        forget t-0
            forgot NON_EMPTY_GROUP
    """)


@pytest.mark.parametrize(
    ("group", "error"), [("nobody", "GROUP_ID_NOT_FOUND"), ("", "INVALID_GROUP_ID")]
)
def test_an_offset_delete_in_a_missing_group_is_refused(group: str, error: str) -> None:
    check(f"""
        forget t-0 group={group}
            forgot {error}
    """)


COMMITTED = 3000
TOPIC = "t" * 240  # their tombstones are 750 kB


def committed_much() -> GroupsWorld:
    world = GroupsWorld()
    commit(world, GROUP, topic=TOPIC, partitions=range(COMMITTED))
    world.log.appended = {}
    return world


def removed(world: GroupsWorld) -> list[Error]:
    answers: list[DeleteGroupsResponse] = []
    request = DeleteGroupsRequest(groups_names=[GROUP])
    world.coordinator.delete_groups(request, CALLER, answers.append)
    world.tasks.run_for_ms(1)
    return [Error.of(each.results[0].error_code) for each in answers]


def test_many_tombstones_are_split_into_batches_that_the_topic_accepts() -> None:
    world = committed_much()
    assert removed(world) == [Error.NONE]
    (partition,) = world.log.appended
    batches = world.log.appended[partition]
    assert all(len(batch) < 200_000 for batch in world.log.batches(partition))
    keys = [key for batch in batches for key, value in batch if value is None]
    assert len(set(keys)) == len(keys) == COMMITTED


def test_many_tombstones_are_answered_once_and_with_the_error_of_those_that_failed() -> None:
    world = committed_much()

    def note(_partition: int, _records: list[LogRecord]) -> None:
        world.log.error = Error.NOT_LEADER_OR_FOLLOWER  # from the second batch on

    world.log.on_append = note
    assert removed(world) == [Error.NOT_COORDINATOR]
