"""The controller's requests and their effect: logs created, led, resigned, deleted, replaced."""

from __future__ import annotations

import errno
import uuid
from dataclasses import replace
from typing import Any

import pytest

from kdist.config.topic import TopicSettings
from kdist.errors import ApiError, DiskFailed, DiskFull, Error
from kdist.model import ZERO_UUID, TopicPartition
from kdist.protocol.leader_and_isr import LeaderAndIsrResponse
from kdist.protocol.stop_replica import StopReplicaResponse
from kdist.replication.partition import Partition
from kdist.storage.meta import decode_partition_metadata
from tests.refusals import refused
from tests.unit.replication.replication_world import (
    BROKER,
    CLICKS,
    TOPIC_ID,
    VIEWS,
    World,
    append,
    error_of,
    leader_request,
    stop_request,
)

OTHER_ID = uuid.UUID(int=8)


@pytest.fixture
def world() -> World:
    return World()


def refusal_of(world: World, key: TopicPartition = CLICKS) -> Error:
    """The error that a request for the partition gets."""
    with pytest.raises(ApiError) as refused:
        world.replicas.get(key).require_leader()
    return refused.value.error


# --- becoming leader ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(8))
def test_every_version_of_leader_and_isr_makes_a_leader(world: World, version: int) -> None:
    answer = world.tell(version=version)
    assert error_of(answer) is Error.NONE
    if version < 5:
        assert answer.partition_errors[0].topic_name == "clicks"
    else:
        assert answer.topics[0].topic_id == TOPIC_ID
    partition = world.replicas.get(CLICKS)
    partition.require_leader(0)
    assert partition.topic_id == (ZERO_UUID if version < 2 else TOPIC_ID)
    assert CLICKS in world.directory.logs


def test_all_partitions_of_one_request_are_created(world: World) -> None:
    keys = [TopicPartition("clicks", number) for number in range(20)]
    heard: list[LeaderAndIsrResponse] = []
    world.replicas.apply_leader_and_isr(leader_request(keys), 7, heard.append)
    world.settle(1000)
    assert [each.error_code for each in heard[0].topics[0].partition_errors] == [0] * 20
    assert set(world.replicas.partitions) == set(keys)


def test_a_partition_named_twice_in_one_request_is_created_once(world: World) -> None:
    heard: list[LeaderAndIsrResponse] = []
    world.replicas.apply_leader_and_isr(leader_request([CLICKS, CLICKS]), 7, heard.append)
    world.settle(1000)
    assert len(heard[0].topics[0].partition_errors) == 1


def test_a_partition_without_leader_is_hosted_and_not_led(world: World) -> None:
    world.tell(leader=-1)
    assert refusal_of(world) is Error.NOT_LEADER_OR_FOLLOWER


def test_unknown_partitions_and_those_led_elsewhere_have_different_errors(world: World) -> None:
    assert refusal_of(world) is Error.UNKNOWN_TOPIC_OR_PARTITION
    world.known.add(CLICKS)
    assert refusal_of(world) is Error.NOT_LEADER_OR_FOLLOWER


def test_listeners_are_told_of_each_new_leader_epoch_and_of_resigning(world: World) -> None:
    told: list[tuple[str, int]] = []
    world.replicas.on_leader.append(lambda p: told.append(("leader", p.leader_epoch)))
    world.replicas.on_resign.append(lambda p: told.append(("resign", p.leader_epoch)))
    world.tell()
    world.tell()
    world.tell(leader_epoch=1, partition_epoch=1)
    world.tell(leader_epoch=2, partition_epoch=2, leader=-1)
    world.tell(leader_epoch=3, partition_epoch=3)
    world.stop()
    assert told == [("leader", 0), ("leader", 1), ("resign", 2), ("leader", 3), ("resign", 3)]


def test_a_new_leader_records_where_its_epoch_begins(world: World) -> None:
    partition = world.lead()
    append(world, partition, b"a", b"b")
    world.tell(leader_epoch=4, partition_epoch=1)
    assert partition.epoch_end(0) == (0, 2)
    assert partition.epoch_end(4) == (4, 2)
    assert partition.epoch_end(5) == (-1, -1)


def test_records_are_there_after_a_restart_once_the_controller_says_who_leads(
    world: World,
) -> None:
    append(world, world.lead(), b"a", b"b")
    world.restart()
    assert refusal_of(world) is Error.UNKNOWN_TOPIC_OR_PARTITION
    world.tell(leader_epoch=1, partition_epoch=1)
    assert world.replicas.get(CLICKS).high_watermark == 2


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"replicas": [2, 3]}, Error.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 3}, Error.STALE_CONTROLLER_EPOCH),
        ({"partition_epoch": 4}, Error.STALE_CONTROLLER_EPOCH),
    ],
)
def test_an_inconsistent_request_is_refused_and_changes_nothing(
    world: World, changes: dict[str, Any], error: Error
) -> None:
    world.tell(leader_epoch=5, partition_epoch=5)
    before = world.replicas.get(CLICKS).state
    state = {"leader_epoch": 5, "partition_epoch": 5, **changes}
    assert error_of(world.tell(**state)) is error
    assert world.replicas.get(CLICKS).state == before


@pytest.mark.parametrize(
    "key", [TopicPartition("../clicks", 0), TopicPartition("", 0), TopicPartition("clicks", -1)]
)
def test_an_invalid_topic_name_is_refused(world: World, key: TopicPartition) -> None:
    assert error_of(world.tell(key)) is Error.INVALID_TOPIC_EXCEPTION


def test_a_controller_that_was_replaced_is_refused(world: World) -> None:
    world.tell(controller_epoch=7)
    assert world.tell(VIEWS, controller_epoch=6).error_code == Error.STALE_CONTROLLER_EPOCH
    assert VIEWS not in world.replicas.partitions


@pytest.mark.parametrize("broker_epoch", [-1, 4])
def test_a_request_with_an_old_broker_epoch_or_none_is_refused(
    world: World, broker_epoch: int
) -> None:
    assert world.tell(broker_epoch=broker_epoch).error_code == Error.STALE_BROKER_EPOCH
    assert not world.replicas.partitions


@pytest.mark.parametrize("broker_epoch", [5, 6])
def test_a_broker_epoch_equal_to_ours_or_ahead_is_accepted(world: World, broker_epoch: int) -> None:
    assert world.tell(broker_epoch=broker_epoch).error_code == 0


def test_on_a_full_disk_a_new_partition_refuses_records_until_there_is_room(
    world: World,
) -> None:
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "make_directory", forever=False)
    partition = world.lead()
    with pytest.raises(DiskFull):
        append(world, partition, b"a")
    append(world, partition, b"a")
    assert partition.high_watermark == 1


def test_a_disk_failure_while_a_partitions_files_are_created_ends_the_broker(
    world: World,
) -> None:
    world.disk.fail(when=lambda call: call.name == "make_directory")
    assert error_of(world.tell()) is Error.NONE
    world.settle(1_500)
    assert [type(failure) for failure in world.failures] == [DiskFailed]


# --- stopping and deleting ------------------------------------------------------------------------


def test_a_stopped_partition_keeps_its_log(world: World) -> None:
    partition = world.lead()
    append(world, partition, b"a")
    assert error_of(world.stop(delete=False, leader_epoch=0)) is Error.NONE
    assert refusal_of(world) is Error.NOT_LEADER_OR_FOLLOWER
    assert world.directory.logs[CLICKS].end_offset == 1


def test_a_deleted_partition_is_gone_and_deleting_it_again_is_no_error(world: World) -> None:
    append(world, world.lead(), b"a")
    assert error_of(world.stop()) is Error.NONE
    assert refusal_of(world) is Error.UNKNOWN_TOPIC_OR_PARTITION
    assert CLICKS not in world.directory.logs
    assert error_of(world.stop()) is Error.NONE


def test_a_deletion_asked_for_again_fails_as_long_as_a_full_disk_may_bring_the_log_back(
    world: World,
) -> None:
    append(world, world.lead(), b"a")
    world.settle()
    world.disk.fail(errno.ENOSPC, when=lambda call: call.path.endswith("checkpoint.tmp"))
    assert error_of(world.stop()) is Error.KAFKA_STORAGE_ERROR
    assert error_of(world.stop()) is Error.KAFKA_STORAGE_ERROR
    world.disk.heal()
    assert error_of(world.stop()) is Error.NONE


def test_a_log_that_is_not_hosted_yet_can_be_deleted(world: World) -> None:
    world.lead()
    world.restart()
    assert error_of(world.stop()) is Error.NONE
    assert CLICKS not in world.directory.logs


@pytest.mark.parametrize("version", [0, 1, 3])
def test_every_form_of_stop_replica_deletes(world: World, version: int) -> None:
    world.lead()
    heard: list[StopReplicaResponse] = []
    request = stop_request(CLICKS, -2, delete=True, version=version)
    world.replicas.apply_stop_replica(request, heard.append)
    world.settle()
    assert [(r.topic_name, r.error_code) for r in heard[0].partition_errors] == [("clicks", 0)]
    assert CLICKS not in world.directory.logs


@pytest.mark.parametrize(
    ("leader_epoch", "error"),
    [
        (-2, Error.NONE),
        (-1, Error.NONE),
        (2, Error.FENCED_LEADER_EPOCH),
        (3, Error.NONE),
        (4, Error.NONE),
    ],
)
def test_a_stop_replica_of_an_earlier_leader_epoch_is_fenced(
    world: World, leader_epoch: int, error: Error
) -> None:
    world.tell(leader_epoch=3)
    assert error_of(world.stop(leader_epoch=leader_epoch)) is error
    assert (CLICKS in world.directory.logs) == bool(error)


def test_a_recreated_topic_has_none_of_the_old_records(world: World) -> None:
    append(world, world.lead(), b"old")
    heard: list[object] = []
    world.replicas.apply_stop_replica(stop_request(CLICKS, -2, delete=True), heard.append)
    request = leader_request([CLICKS], topic_id=OTHER_ID)
    world.replicas.apply_leader_and_isr(request, 7, heard.append)
    world.settle(1000)
    assert [type(answer) for answer in heard] == [StopReplicaResponse, LeaderAndIsrResponse]
    partition = world.replicas.get(CLICKS)
    assert (partition.high_watermark, partition.topic_id) == (0, OTHER_ID)


def test_a_log_of_another_topic_found_at_start_is_set_aside_and_not_deleted(world: World) -> None:
    """As after ZooKeeper was restored from a backup, and the topic was recreated."""
    append(world, world.lead(), b"old")
    world.restart()
    assert error_of(world.tell(topic_id=OTHER_ID)) is Error.NONE
    assert world.replicas.get(CLICKS).high_watermark == 0
    world.settle(120_000)
    world.restart()
    world.tell(topic_id=OTHER_ID)
    assert world.replicas.get(CLICKS).topic_id == OTHER_ID
    (stray,) = [name for name in world.disk.list("/d01") if name.endswith("-stray")]
    assert b"old" in world.disk.read(f"/d01/{stray}/{0:020d}.log")
    path = f"/d01/{stray}/partition.metadata"
    assert decode_partition_metadata(world.disk.read(path), path) == TOPIC_ID


@pytest.mark.parametrize("has_files", [True, False])
def test_a_hosted_log_of_another_topic_is_replaced(world: World, has_files: bool) -> None:
    """As after the topic's znodes were removed by hand, and it was recreated."""
    world.tell(leader_epoch=5)
    before = world.replicas.get(CLICKS)
    if has_files:
        append(world, before, b"old")
    assert error_of(world.tell(topic_id=OTHER_ID)) is Error.NONE
    partition = world.replicas.get(CLICKS)
    assert not before.is_leader
    append(world, partition, b"new")
    world.settle(120_000)
    world.restart()
    assert error_of(world.tell(topic_id=OTHER_ID)) is Error.NONE
    assert world.replicas.get(CLICKS).log.end_offset == 1
    strays = [name for name in world.disk.list("/d01") if name.endswith("-stray")]
    assert [b"old" in world.disk.read(f"/d01/{each}/{0:020d}.log") for each in strays] == (
        [True] if has_files else []
    )


def test_replacing_a_log_of_another_topic_waits_for_a_write_under_way(world: World) -> None:
    partition = world.lead()
    partition._context.writers.thread_until_ns = world.clock.monotonic_ns() + 10**9
    heard: list[Any] = []
    append(world, partition, b"x", heard=heard)
    assert error_of(world.tell(topic_id=OTHER_ID)) is Error.NONE
    assert [outcome.start_offset for outcome in heard] == [0]
    assert world.replicas.get(CLICKS).log.end_offset == 0
    assert not world.failures


def test_a_log_keeps_its_topic_id_where_the_controller_tells_none(world: World) -> None:
    world.lead()
    world.restart()
    assert error_of(world.tell(version=1)) is Error.NONE
    assert world.replicas.get(CLICKS).topic_id == TOPIC_ID


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_a_log_without_a_readable_topic_id_is_adopted_and_given_one(
    world: World, content: bytes | None
) -> None:
    append(world, world.lead(), b"kept")
    world.restart()  # the file is in place, and will not be written again
    path = "/d01/clicks-0/partition.metadata"
    world.disk.remove(path)
    if content is not None:
        world.disk.replace(path, content)
    world.restart()
    world.tell()
    assert world.replicas.get(CLICKS).high_watermark == 1
    assert decode_partition_metadata(world.disk.read(path), path) == TOPIC_ID
    world.restart()
    assert error_of(world.tell(topic_id=OTHER_ID)) is Error.NONE
    assert world.replicas.get(CLICKS).high_watermark == 0  # it was known for another topic's


def test_a_log_that_cannot_be_opened_without_descriptors_is_led_once_it_can(
    world: World,
) -> None:
    append(world, world.lead(), b"kept")
    world.settle()
    world.restart()
    world.disk.fail(errno.EMFILE, when=lambda call: call.path.endswith("partition.metadata"))
    assert error_of(world.tell()) is Error.KAFKA_STORAGE_ERROR
    world.disk.heal()
    assert error_of(world.tell()) is Error.NONE
    assert world.replicas.get(CLICKS).high_watermark == 1
    assert not world.failures


def test_a_deletion_waits_for_a_write_that_is_under_way(world: World) -> None:
    partition = world.lead()
    partition._context.writers.thread_until_ns = world.clock.monotonic_ns() + 10**9
    heard: list[Any] = []
    append(world, partition, b"x", heard=heard)
    assert error_of(world.stop()) is Error.NONE
    assert [outcome.start_offset for outcome in heard] == [0]
    assert not world.failures


# --- settings, draining, numbers ------------------------------------------------------------------


def test_new_topic_settings_apply_from_the_next_append(world: World) -> None:
    partition = world.lead()
    append(world, partition, bytes(500))
    world.replicas.configure("clicks", replace(TopicSettings(), max_message_bytes=100))
    with refused(Error.MESSAGE_TOO_LARGE):
        append(world, partition, bytes(500))


def test_settings_reach_a_log_that_is_not_hosted_yet(world: World) -> None:
    world.lead()
    world.restart()
    changed = replace(TopicSettings(), retention_ms=1)
    world.replicas.configure("clicks", changed)
    assert world.directory.logs[CLICKS].settings is changed


def test_a_drained_broker_leads_nothing_and_can_close(world: World) -> None:
    partition = world.lead()
    partition._context.writers.thread_until_ns = world.clock.monotonic_ns() + 10**9
    append(world, partition, b"x", heard=[])
    done: list[bool] = []
    world.replicas.drain(lambda: done.append(True))
    assert not done
    world.settle()
    assert done == [True]
    assert refusal_of(world) is Error.NOT_LEADER_OR_FOLLOWER
    world.directory.close()


def test_the_gauges_count_hosted_led_and_under_replicated_partitions(world: World) -> None:
    world.lead(replicas=(BROKER, BROKER + 1))
    world.tell(VIEWS, leader=-1)
    metrics = world.metrics
    assert (metrics.partitions(), metrics.leaders(), metrics.under_min_isr()) == (2, 1, 0)
    world.replicas.configure("clicks", replace(TopicSettings(), min_insync_replicas=2))
    assert metrics.under_min_isr() == 1


def test_waiters_get_an_error_when_their_partition_is_gone(world: World) -> None:
    world.topic = replace(world.topic, flush_before_expose=True)
    partition: Partition = world.lead()
    append(world, partition, b"x")
    heard: list[Error] = []
    partition.await_committed(partition.role, 1, 1000, None, heard.append)
    world.stop()
    world.settle()
    assert heard == [Error.UNKNOWN_TOPIC_OR_PARTITION]
