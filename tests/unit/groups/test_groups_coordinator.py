"""The front door: order of answers, versions with own forms, loads, maintenance, metrics."""

from __future__ import annotations

import dataclasses
import re

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

from kdist.errors import Error
from kdist.groups.context import Actions
from kdist.groups.coordinator import Caller
from kdist.protocol.compiler import codec_for
from kdist.protocol.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kdist.protocol.join_group import JoinGroupResponse
from kdist.protocol.metadata import OMITTED, ON_GROUP
from kdist.protocol.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
)
from kdist.protocol.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from kdist.protocol.sync_group import SyncGroupAssignment, SyncGroupRequest, SyncGroupResponse


def test_an_answer_that_brings_the_next_request_at_once_finds_the_group_in_order() -> None:
    world = GroupsWorld(initial_rebalance_delay_ms=0)
    noted: list[str] = []

    def synced(name: str, response: SyncGroupResponse) -> None:
        noted.append(f"{name} {Error.of(response.error_code).name} {response.assignment.decode()}")

    def joined(name: str, response: JoinGroupResponse) -> None:
        request = SyncGroupRequest(
            group_id="g",
            generation_id=response.generation_id,
            member_id=response.member_id,
            assignments=[
                SyncGroupAssignment(member_id=each.member_id, assignment=b"x")
                for each in response.members
            ],
        )
        caller = CALLER._replace(version=3)
        world.coordinator.sync_group(request, caller, lambda answer: synced(name, answer))

    for name in ("a", "b"):
        caller = Caller(3, name, "/h")
        world.coordinator.join_group(
            join_request(), caller, lambda answer, name=name: joined(name, answer)
        )
    world.tasks.run_for_ms(0)
    assert sorted(noted) == ["a NONE x", "b NONE x"]


def test_member_ids_are_the_client_id_or_instance_id_and_a_uuid() -> None:
    world = GroupsWorld()
    answers: list[JoinGroupResponse] = []
    world.coordinator.join_group(join_request(), CALLER, answers.append)
    (first,) = answers
    uuid = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert re.fullmatch(f"client-{uuid}", first.member_id)
    static = dataclasses.replace(join_request(), group_instance_id="one")
    world.coordinator.join_group(static, CALLER, answers.append)
    world.coordinator.join_group(static, CALLER, answers.append)
    fenced = answers[1]
    assert re.fullmatch(f"one-{uuid}", fenced.member_id)


def test_a_member_id_fits_whatever_the_clients_id_is() -> None:
    world = GroupsWorld()
    answers: list[JoinGroupResponse] = []
    caller = Caller(4, "ü" * 16_383, "/h")
    world.coordinator.join_group(join_request(), caller, answers.append)
    codec_for(JoinGroupResponse, 4).encode(
        dataclasses.replace(answers[0], protocol_name=""), bytearray()
    )
    assert len(answers[0].member_id.encode()) < 32_768


def test_a_missing_protocol_name_is_empty_before_version_7() -> None:
    world = GroupsWorld()
    answers: list[JoinGroupResponse] = []
    for version in (6, 7):
        caller = CALLER._replace(version=version)
        world.coordinator.join_group(join_request(member_id="ghost"), caller, answers.append)
    assert [each.protocol_name for each in answers] == ["", None]


def test_many_groups_are_fetched_at_once_from_version_8() -> None:
    world = GroupsWorld()
    commit(world, "one", 11)
    commit(world, "two", 22)
    world.coordinator.unload(home_of(world.coordinator, "three"))
    asked = [
        OffsetFetchGroup(group_id="one", topics=None),
        OffsetFetchGroup(
            group_id="two", topics=[OffsetFetchTopic(name="t", partition_indexes=[0, 1])]
        ),
        OffsetFetchGroup(group_id="three", topics=None),
    ]
    assert home_of(world.coordinator, "three") not in {
        home_of(world.coordinator, each) for each in ("one", "two")
    }
    found = fetch(world, OffsetFetchRequest(groups=asked), 8).groups
    offsets = [[p.committed_offset for t in g.topics for p in t.partitions] for g in found]
    assert [each.group_id for each in found] == ["one", "two", "three"]
    assert offsets == [[11], [22, -1], []]
    assert [each.error_code for each in found] == [0, 0, Error.NOT_COORDINATOR]


def test_authorized_operations_are_returned_if_asked_for() -> None:
    coordinator = GroupsWorld().coordinator
    for asks, told in ((False, OMITTED), (True, ON_GROUP)):
        heard: list[DescribeGroupsResponse] = []
        request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=asks)
        coordinator.describe_groups(request, Caller(5, "me", "/here"), heard.append)
        assert heard[0].groups[0].authorized_operations == told


def test_authorized_operations_are_returned_by_the_coordinator_alone() -> None:
    coordinator = GroupsWorld().coordinator
    coordinator.unload(home_of(coordinator, "g"))
    heard: list[DescribeGroupsResponse] = []
    request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
    coordinator.describe_groups(request, Caller(5, "me", "/here"), heard.append)
    described = heard[0].groups[0]
    assert described.error_code == Error.NOT_COORDINATOR
    assert described.authorized_operations == OMITTED


def test_an_empty_list_of_topics_fetches_nothing() -> None:
    world = GroupsWorld()
    commit(world, "g")
    assert fetch(world, OffsetFetchRequest(group_id="g", topics=[]), 7).topics == []


def test_metadata_and_leader_epoch_come_back_with_the_offset() -> None:
    world = GroupsWorld()
    commit(world, "g", 5, committed_leader_epoch=3)
    ((partition,),) = (
        topic.partitions
        for topic in fetch(world, OffsetFetchRequest(group_id="g", topics=None), 7).topics
    )
    assert (partition.committed_leader_epoch, partition.metadata) == (3, "")


def test_version_1_commits_with_the_clients_timestamp() -> None:
    world = GroupsWorld(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1000)
    long_ago_ms = world.clock.now_ms() - 59_000
    commit(world, "g", 5, commit_timestamp=long_ago_ms)
    world.coordinator.start()
    world.tasks.run_for_ms(1000)
    assert group_ids(world) == []


def test_a_load_that_was_overtaken_by_an_unload_has_no_effect() -> None:
    world = GroupsWorld()
    commit(world, "g", 5)
    partition = home_of(world.coordinator, "g")
    world.coordinator.unload(partition)
    first = world.coordinator.begin_loading(partition)
    world.coordinator.unload(partition)
    second = world.coordinator.begin_loading(partition)
    replay(first, *world.log.batches(partition))
    world.coordinator.finish_loading(first)
    assert commit(world, "g", 6) is Error.COORDINATOR_LOAD_IN_PROGRESS
    world.coordinator.finish_loading(second)
    assert group_ids(world) == []


def test_loading_a_partition_does_not_touch_the_others() -> None:
    world = GroupsWorld()
    homes = {f"g{n}": home_of(world.coordinator, f"g{n}") for n in range(20)}
    assert set(homes.values()) == set(range(PARTITIONS))
    for group_id in homes:
        commit(world, group_id)
    world.coordinator.unload(1)
    assert group_ids(world) == sorted(each for each in homes if homes[each] != 1)
    load(world.coordinator, 1, world.log.batches(1))
    assert group_ids(world) == sorted(homes)


def test_a_stop_answers_waiting_requests_and_ends_the_maintenance() -> None:
    world = GroupsWorld()
    answers: list[JoinGroupResponse] = []
    world.coordinator.start()
    world.coordinator.join_group(join_request(), CALLER._replace(version=0), answers.append)
    world.coordinator.stop()
    assert [each.error_code for each in answers] == [Error.NOT_COORDINATOR]
    world.tasks.run_until_idle()  # would not return if a timer renewed itself


def test_an_unloaded_group_leaves_no_timers_behind() -> None:
    world = GroupsWorld()
    for version in (0, 4):
        caller = CALLER._replace(version=version)
        world.coordinator.join_group(join_request(), caller, lambda _answer: None)
    world.coordinator.unload(home_of(world.coordinator, "g"))
    timers = [timer for _, _, timer in world.tasks.loop._scheduled]
    assert [each for each in timers if not each.cancelled()] == []


def test_the_effects_of_an_action_come_after_those_decided_before() -> None:
    actions, done = Actions(), []

    def first() -> None:
        done.append("first")
        actions.add(lambda: done.append("brought about by first"))
        actions.run()
        done.append("end of first")

    actions.add(first)
    actions.add(lambda: done.append("second"))
    actions.run()
    assert done == ["first", "end of first", "second", "brought about by first"]


def test_more_groups_than_fit_in_a_slice_are_all_checked() -> None:
    world = GroupsWorld(offsets_retention_minutes=1, offsets_retention_check_interval_ms=60_000)
    count = 101  # more than a slice's worth
    for number in range(count):
        commit(world, f"g{number}")
    world.coordinator.start()
    world.tasks.run_for_ms(60_000)
    assert group_ids(world) == []
    assert world.metrics.expired_offsets == count
    world.coordinator.stop()


def test_expired_offsets_whose_tombstones_fail_come_back_with_the_next_load() -> None:
    world = GroupsWorld(offsets_retention_minutes=1, offsets_retention_check_interval_ms=60_000)
    commit(world, "g")
    world.log.error = Error.NOT_ENOUGH_REPLICAS
    world.coordinator.start()
    world.tasks.run_for_ms(60_000)
    assert (group_ids(world), world.metrics.failed_appends) == ([], 1)
    world.log.error = Error.NONE
    partition = home_of(world.coordinator, "g")
    world.coordinator.unload(partition)
    load(world.coordinator, partition, world.log.batches(partition))
    assert group_ids(world) == ["g"]
    world.tasks.run_for_ms(60_000)
    assert group_ids(world) == []


def test_metrics_show_the_groups_and_what_happened_to_them() -> None:
    world = GroupsWorld(initial_rebalance_delay_ms=0)
    answers: list[JoinGroupResponse] = []
    world.coordinator.join_group(join_request("a"), CALLER._replace(version=0), answers.append)
    commit(world, "b")
    metrics = world.metrics
    assert (metrics.groups(), metrics.members(), metrics.offsets()) == (2, 1, 1)
    assert metrics.rebalancing_groups() == 1
    world.tasks.run_for_ms(0)
    request = SyncGroupRequest(
        group_id="a", generation_id=1, member_id=answers[0].member_id, assignments=[]
    )
    world.coordinator.sync_group(request, CALLER._replace(version=3), lambda _answer: None)
    assert (metrics.rebalancing_groups(), metrics.finished_rebalances) == (0, 1)
    world.tasks.run_for_ms(10_000)
    assert (metrics.members(), metrics.expired_members, metrics.committed_offsets) == (0, 1, 1)


def test_a_reply_with_a_changed_topic_list_is_in_the_order_of_the_request() -> None:
    world = GroupsWorld()
    topics = [
        OffsetCommitTopic(
            name=name,
            partitions=[
                OffsetCommitPartition(
                    partition_index=index, committed_offset=1, committed_metadata=""
                )
                for index in (2, 0)
            ],
        )
        for name in ("z", "nowhere", "a")
    ]
    answers: list[OffsetCommitResponse] = []
    request = OffsetCommitRequest(group_id="g", topics=topics)
    world.coordinator.offset_commit(request, CALLER, answers.append)
    shown = [(t.name, [p.partition_index for p in t.partitions]) for t in answers[0].topics]
    assert shown == [("z", [2, 0]), ("nowhere", [2, 0]), ("a", [2, 0])]


def test_refused_joins_under_made_up_names_leave_no_groups_behind() -> None:
    world = GroupsWorld()
    answers: list[JoinGroupResponse] = []
    for number in range(100):
        request = dataclasses.replace(join_request(f"x{number}"), protocols=[])
        world.coordinator.join_group(request, CALLER, answers.append)
    assert {each.error_code for each in answers} == {Error.INCONSISTENT_GROUP_PROTOCOL}
    assert group_ids(world) == []
