"""What concerns thousands of groups or offsets is done in slices; what comes between two."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

import pytest
from groups_world import (
    CALLER,
    PARTITIONS,
    GroupsWorld,
    commit,
    fetch,
    group_ids,
    home_of,
    join_request,
    load,
    replay,
)

from kdist.broker.offsets_log import OffsetsLoader
from kdist.errors import Error
from kdist.groups.coordinator import Caller, GroupCoordinator
from kdist.groups.group import Totals
from kdist.groups.records import Loading
from kdist.model import TopicPartition
from kdist.protocol.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kdist.protocol.join_group import JoinGroupResponse
from kdist.protocol.list_groups import ListGroupsRequest, ListGroupsResponse
from kdist.protocol.offset_fetch import OffsetFetchRequest
from kdist.records.build import build_batch
from kdist.runtime.steps import SLICE_US, CountedSteps, Slices, take_slice

COMMITTED = TopicPartition("t", 0)
MANY = 2_000


def slices_of(steps: CountedSteps) -> int:
    count = 1
    while take_slice(steps):
        count += 1
    return count


def world_of_groups(count: int) -> GroupsWorld:
    """Each group has committed an offset of one partition."""
    world = GroupsWorld()
    for number in range(count):
        commit(world, f"g{number}")
    return world


def world_of_offsets(count: int, **settings: int) -> GroupsWorld:
    """Group g has committed offsets of so many partitions."""
    world = GroupsWorld(**settings)
    for first in range(0, count, 1_000):
        commit(world, "g", 7, partitions=range(first, first + 1_000))
    return world


def tombstones_in(world: GroupsWorld) -> int:
    appended = (b for batches in world.log.appended.values() for b in batches)
    return sum(value is None for batch in appended for _, value in batch)


def offset_of(world: GroupsWorld, group_id: str) -> int:
    answer = fetch(world, OffsetFetchRequest(group_id=group_id, topics=None), 7)
    return next((p.committed_offset for t in answer.topics for p in t.partitions), -1)


def half_decoded(world: GroupsWorld, group_id: str) -> Loading:
    """The group's partition, all read and some of it decoded."""
    partition = home_of(world.coordinator, group_id)
    world.coordinator.unload(partition)
    loading = world.coordinator.begin_loading(partition)
    replay(loading, *world.log.batches(partition))
    assert take_slice(world.coordinator.decode(loading))
    return loading


def finished(world: GroupsWorld, loading: Loading) -> None:
    deque(world.coordinator.decode(loading), 0)
    world.coordinator.finish_loading(loading)
    world.tasks.run_for_ms(1)


def test_a_load_is_read_and_decoded_in_slices() -> None:
    world = world_of_offsets(20_000)
    partition = home_of(world.coordinator, "g")
    world.coordinator.unload(partition)
    loading = world.coordinator.begin_loading(partition)
    steps = (step for each in world.log.batches(partition) for step in loading.replay(each))
    assert slices_of(steps) >= 3
    assert slices_of(world.coordinator.decode(loading)) >= 20
    world.coordinator.finish_loading(loading)
    assert offset_of(world, "g") == 7


def test_what_is_unloaded_while_it_is_decoded_is_not_served() -> None:
    world = world_of_groups(MANY * PARTITIONS)
    loading = half_decoded(world, "g0")
    world.coordinator.unload(loading.partition)
    finished(world, loading)
    assert commit(world, "g0") is Error.NOT_COORDINATOR


def test_a_load_that_begins_anew_while_the_first_is_decoded_counts_alone() -> None:
    world = world_of_groups(MANY * PARTITIONS)
    first = half_decoded(world, "g0")
    world.coordinator.unload(first.partition)
    second = world.coordinator.begin_loading(first.partition)
    finished(world, first)
    assert commit(world, "g0") is Error.COORDINATOR_LOAD_IN_PROGRESS
    replay(second, *world.log.batches(first.partition))
    finished(world, second)
    assert len(group_ids(world)) == MANY * PARTITIONS
    assert world.coordinator._registry.totals() == recounted(world.coordinator)


def test_a_load_that_begins_anew_is_not_ended_by_what_the_first_has_read() -> None:
    """As what was read of the first may have been cut off in the meantime."""
    world = world_of_groups(1)
    coordinator, failures = world.coordinator, list[BaseException]()
    partition = home_of(coordinator, "g0")
    coordinator.unload(partition)
    coordinator.slices.add(iter([SLICE_US] * 3))  # else the first step is done at once
    first = coordinator.begin_loading(partition)
    without_key = build_batch([b""], [None], timestamp_ms=0)
    loader = OffsetsLoader(coordinator, world.tasks, failures.append)
    loader._work(first, first.replay(without_key), lambda: None)
    coordinator.unload(partition)
    second = coordinator.begin_loading(partition)
    world.tasks.run_for_ms(10)
    replay(second, *world.log.batches(partition))
    finished(world, second)
    assert group_ids(world) == ["g0"]
    assert failures == []


def test_a_partition_that_is_deleted_while_groups_are_decoded_takes_their_offsets() -> None:
    world = world_of_groups(MANY * PARTITIONS)
    loading = half_decoded(world, "g0")
    world.coordinator.forget_partitions([COMMITTED])
    finished(world, loading)
    world.tasks.run_for_ms(100)
    assert group_ids(world) == []
    assert tombstones_in(world) == MANY * PARTITIONS


def test_a_deleted_topics_offsets_go_in_slices() -> None:
    world = world_of_groups(MANY)
    world.coordinator.forget_partitions([COMMITTED])
    assert 0 < tombstones_in(world) < MANY / 10
    world.tasks.run_for_ms(1)
    assert tombstones_in(world) == MANY
    assert group_ids(world) == []


def test_a_commit_to_a_topic_that_was_created_again_outlives_the_deletion_of_the_first() -> None:
    world = world_of_groups(MANY)
    world.coordinator.forget_partitions([COMMITTED])
    late = {f"g{n}": commit(world, f"g{n}", 9) for n in (0, MANY // 2, MANY - 1)}
    assert set(late.values()) == {Error.NONE}
    world.tasks.run_for_ms(1)
    assert group_ids(world) == sorted(late)
    for partition in range(PARTITIONS):
        world.coordinator.unload(partition)
        load(world.coordinator, partition, world.log.batches(partition))
    assert {each: offset_of(world, each) for each in late} == dict.fromkeys(late, 9)


def test_a_group_without_its_deleted_topic_is_seen_at_once() -> None:
    world = world_of_groups(MANY)
    world.coordinator.forget_partitions([COMMITTED])
    assert {offset_of(world, f"g{n}") for n in range(0, MANY, 100)} == {-1}


def test_expiry_goes_through_a_group_of_many_offsets_in_slices() -> None:
    settings = {"offsets_retention_minutes": 1, "offsets_retention_check_interval_ms": 60_000}
    world = world_of_offsets(20_000, **settings)
    world.coordinator.start()
    world.tasks.run_until(lambda: tombstones_in(world) > 0)
    assert tombstones_in(world) < 10_000
    world.tasks.run_for_ms(1)
    assert tombstones_in(world) == 20_000
    assert group_ids(world) == []
    world.coordinator.stop()


@pytest.mark.parametrize("is_back", [False, True])
def test_a_group_that_a_refused_join_drops_while_others_expire_has_no_part_in_that(
    is_back: bool,
) -> None:
    world = world_of_groups(4_000)
    answers: list[JoinGroupResponse] = []
    world.coordinator.join_group(join_request(), Caller(5, "c", "h"), answers.append)
    world.tasks.run_for_ms(400_000)  # the id that it was given is not waited for any more
    assert "g" in group_ids(world)
    world.coordinator._deletion._begin_round()
    world.coordinator.join_group(join_request(member_id="x"), Caller(5, "c", "h"), answers.append)
    assert "g" not in group_ids(world)
    assert not is_back or commit(world, "g") is Error.NONE
    world.tasks.run_for_ms(100)
    assert ("g" in group_ids(world)) == is_back
    assert len(group_ids(world)) == 4_000 + is_back


def test_a_group_that_comes_again_while_its_tombstones_are_written_keeps_what_it_commits() -> None:
    world = world_of_offsets(20_000)
    answers = delete(world, "g")
    assert answers == []
    assert commit(world, "g", 9) is Error.NONE
    world.tasks.run_for_ms(1)
    assert answers == [[Error.NONE]]
    partition = home_of(world.coordinator, "g")
    world.coordinator.unload(partition)
    load(world.coordinator, partition, world.log.batches(partition))
    group = world.coordinator._registry.groups.get("g")
    assert group is not None
    assert [group.offsets.get(each).offset for each in group.offsets] == [9]


def delete(world: GroupsWorld, *group_ids: str) -> list[list[Error]]:
    answers: list[list[Error]] = []

    def reply(response: DeleteGroupsResponse) -> None:
        answers.append([Error.of(each.error_code) for each in response.results])

    request = DeleteGroupsRequest(groups_names=[*group_ids])
    world.coordinator.delete_groups(request, CALLER, reply)
    return answers


def test_a_deletion_whose_partition_is_led_elsewhere_meanwhile_says_so() -> None:
    world = world_of_offsets(20_000)
    answers = delete(world, "g")
    world.coordinator.unload(home_of(world.coordinator, "g"))
    world.tasks.run_for_ms(1)
    assert answers == [[Error.NOT_COORDINATOR]]
    assert tombstones_in(world) < 20_000


def test_all_groups_are_deleted_by_one_request_in_slices() -> None:
    world = world_of_groups(MANY)
    answers = delete(world, *(f"g{n}" for n in range(MANY)))
    assert answers == []
    assert len(group_ids(world)) > MANY / 2
    world.tasks.run_for_ms(1)
    assert Counter(answers[0]) == {Error.NONE: MANY}


def test_a_list_of_many_groups_is_answered_in_a_later_tick() -> None:
    world = world_of_groups(3 * MANY)
    answers: list[ListGroupsResponse] = []
    world.coordinator.list_groups(ListGroupsRequest(), CALLER, answers.append)
    assert answers == []
    world.coordinator.unload(0)
    world.tasks.run_for_ms(1)
    assert MANY < len(answers[0].groups) < 3 * MANY


def test_members_of_many_unloaded_groups_are_told_in_slices_and_rebalance_no_more() -> None:
    world = GroupsWorld(initial_rebalance_delay_ms=0)
    answers: list[JoinGroupResponse] = []
    caller = CALLER._replace(version=0)
    for number in range(MANY):
        world.coordinator.join_group(join_request(f"g{number}"), caller, answers.append)
    # The timers that end the joins are due in the tick in which not all groups are done with.
    for partition in range(PARTITIONS):
        world.coordinator.unload(partition)
    assert len(answers) < MANY
    world.tasks.run_for_ms(0)
    assert Counter(each.error_code for each in answers) == {Error.NOT_COORDINATOR: MANY}
    assert world.log.appended == {}
    world.tasks.run_until_idle()  # no timer is left that renews itself


def test_a_stop_in_the_midst_of_it_answers_everybody() -> None:
    world = world_of_offsets(20_000)
    answers = delete(world, "g")
    listed: list[ListGroupsResponse] = []
    world.coordinator.list_groups(ListGroupsRequest(), CALLER, listed.append)
    world.coordinator.stop()
    assert (len(answers), len(listed)) == (1, 1)


def test_a_stop_ends_a_load_in_its_midst() -> None:
    world = world_of_groups(MANY * PARTITIONS)
    loading = half_decoded(world, "g0")
    assert world.coordinator.is_wanted(loading)
    world.coordinator.stop()
    assert not world.coordinator.is_wanted(loading)
    finished(world, loading)
    assert group_ids(world) == []


def test_the_totals_are_those_of_the_groups() -> None:
    world = world_of_groups(50)
    caller = CALLER._replace(version=0)
    for number in range(20):
        world.coordinator.join_group(join_request(f"j{number}"), caller, lambda _: None)
    world.coordinator.forget_partitions([COMMITTED])
    commit(world, "g3")
    assert world.coordinator._registry.totals() == recounted(world.coordinator)
    world.tasks.run_for_ms(100_000)
    assert world.coordinator._registry.totals() == recounted(world.coordinator)
    world.coordinator.unload(1)
    assert world.coordinator._registry.totals() == recounted(world.coordinator)
    load(world.coordinator, 1, world.log.batches(1))
    assert world.coordinator._registry.totals() == recounted(world.coordinator)


def recounted(coordinator: GroupCoordinator) -> Totals:
    groups = coordinator.groups()
    rebalancing = ("PreparingRebalance", "CompletingRebalance")
    return Totals(
        sum(len(each.members) for each in groups),
        sum(len(each.offsets) for each in groups),
        sum(each.state.value in rebalancing for each in groups),
    )


def test_of_several_works_one_slice_is_done_in_each_tick() -> None:
    ticks: list[Callable[[], None]] = []
    slices, done = Slices(ticks.append), list[str]()

    def work(name: str) -> CountedSteps:
        for _ in range(2):
            done.append(name)
            yield SLICE_US

    for name in "ab":
        slices.add(work(name), lambda: done.append("end"))
    assert done == ["a"]
    while ticks:
        before = len(done)
        ticks.pop()()
        assert len(done) - before <= 1
        assert len(ticks) <= 1
    assert sorted(done) == ["a", "a", "b", "b", "end", "end"]
