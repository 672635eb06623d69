"""One partition: appends, what it exposes to whom, and waiting for its high watermark."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from kdist.errors import ApiError, Error
from kdist.records.batch import Batch, read_header
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from kdist.replication.delayed import DelayedOperation
from kdist.replication.partition import READ_COMMITTED, Partition
from kdist.runtime.steps import run_steps
from kdist.storage.flushing import flush_now
from tests.refusals import refused
from tests.unit.replication.replication_world import (
    BROKER,
    CLICKS,
    START_MS,
    VIEWS,
    World,
    append,
    append_open,
    batch,
)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def partition(world: World) -> Partition:
    return world.lead()


@pytest.fixture
def careful(world: World) -> Partition:
    """A partition that exposes flushed records only."""
    return world.lead(flush_before_expose=True)


def refusal(
    partition: Partition, data: bytes | bytearray, version: int = 9, acks: int = 1
) -> Error:
    with pytest.raises(ApiError) as refused:
        run_steps(partition.check(data, version, acks, START_MS))
    return refused.value.error


# --- appending ------------------------------------------------------------------------------------


def test_offsets_are_dense_and_batches_carry_the_leader_epoch(
    world: World, partition: Partition
) -> None:
    world.tell(leader_epoch=3, partition_epoch=1)
    assert [append(world, partition, b"a", b"b"), append(world, partition, b"c")] == [0, 2]
    header = read_header(partition.log.active.file.read(0, 61))
    assert header.partition_leader_epoch == 3


def test_a_follower_takes_no_records(world: World, partition: Partition) -> None:
    world.tell(leader=-1, leader_epoch=1, partition_epoch=1)
    assert refusal(partition, batch([b"a"])) is Error.NOT_LEADER_OR_FOLLOWER
    data = batch([b"a"])
    with pytest.raises(ApiError):
        partition.append([Batch(read_header(data), data)], START_MS)


def test_an_empty_message_set_has_no_batches(partition: Partition) -> None:
    assert run_steps(partition.check(b"", 2, 1, START_MS)) == []


def test_a_batch_larger_than_a_segment_is_refused(world: World) -> None:
    partition = world.lead(segment_bytes=200)
    assert refusal(partition, batch([bytes(300)])) is Error.RECORD_LIST_TOO_LARGE


def test_a_batch_that_fits_a_segment_once_compressed_is_accepted(world: World) -> None:
    partition = world.lead(segment_bytes=200, compression_type="gzip")
    assert append(world, partition, bytes(300)) == 0
    assert partition.log.size < 200


def test_a_batch_that_outgrows_a_segment_by_conversion_is_refused(world: World) -> None:
    partition = world.lead(segment_bytes=200, compression_type="uncompressed")
    packed = build_batch([bytes(300)], timestamp_ms=START_MS, codec=Codec.GZIP)
    assert len(packed) < 200
    assert refusal(partition, packed) is Error.RECORD_LIST_TOO_LARGE


def test_acks_all_needs_min_insync_replicas(world: World) -> None:
    partition = world.lead(replicas=(BROKER, BROKER + 1), min_insync_replicas=2)
    assert refusal(partition, batch([b"a"]), acks=-1) is Error.NOT_ENOUGH_REPLICAS
    assert append(world, partition, b"a") == 0  # acks=1 does not ask for them


def test_acks_all_needs_no_more_replicas_than_are_assigned(world: World) -> None:
    partition = world.lead(min_insync_replicas=2)
    assert len(run_steps(partition.check(batch([b"a"]), 9, -1, START_MS))) == 1


# --- epochs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, None),
        (5, None),
        (0, Error.FENCED_LEADER_EPOCH),
        (4, Error.FENCED_LEADER_EPOCH),
        (6, Error.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_a_clients_leader_epoch_is_checked(
    world: World, partition: Partition, epoch: int, error: Error | None
) -> None:
    world.tell(leader_epoch=5, partition_epoch=1)
    if error is None:
        partition.require_leader(epoch)
        return
    with refused(error):
        partition.require_leader(epoch)


# --- what is visible ------------------------------------------------------------------------------


def test_read_committed_stops_before_an_open_transaction(
    world: World, partition: Partition
) -> None:
    append(world, partition, b"plain")
    append_open(world, partition, b"open")
    append(world, partition, b"behind")
    assert partition.last_stable_offset == 1
    assert partition.visible_end(-1, READ_COMMITTED) == 1
    assert partition.visible_end(-1, 0) == 3


def test_unflushed_records_are_visible_to_followers_only(world: World, careful: Partition) -> None:
    append(world, careful, b"a")
    assert (careful.high_watermark, careful.last_stable_offset) == (0, 0)
    assert (careful.visible_end(-1, 0), careful.visible_end(2, 0)) == (0, 1)
    careful.request_flush()
    world.settle()
    assert careful.visible_end(-1, 0) == 1


def test_the_high_watermark_stays_when_only_flushed_records_are_to_be_exposed_from_now_on(
    world: World, partition: Partition
) -> None:
    append(world, partition, b"a")
    partition.configure(replace(partition.log.settings, flush_before_expose=True))
    append(world, partition, b"b")
    assert (partition.log.recovery_point, partition.high_watermark) == (0, 1)
    partition.request_flush()
    world.settle()
    assert partition.high_watermark == 2


def test_while_the_mark_of_a_log_that_was_flushed_first_is_there_nothing_else_is_exposed(
    world: World, careful: Partition
) -> None:
    append(world, careful, b"a")
    careful.configure(replace(careful.log.settings, flush_before_expose=False))
    append(world, careful, b"b")
    assert (careful.log.is_flushed_first, careful.high_watermark) == (True, 0)
    world.settle()
    assert (careful.log.flush_mark, careful.high_watermark) == (None, 2)
    append(world, careful, b"c")
    assert (careful.log.recovery_point, careful.high_watermark) == (2, 3)


def test_what_is_appended_while_this_broker_no_longer_leads_is_not_committed(
    world: World, partition: Partition
) -> None:
    append(world, partition, b"a")
    world.tell(leader=2, leader_epoch=1, partition_epoch=1)
    data = batch([b"b"])
    partition.log.append_as_leader([Batch(read_header(data), data)], 1, START_MS)
    partition.advance_high_watermark()
    assert partition.high_watermark == 1
    world.tell(leader_epoch=2, partition_epoch=2)
    assert partition.high_watermark == 2


def test_the_high_watermark_is_not_above_the_end_of_a_truncated_log(
    world: World, partition: Partition
) -> None:
    append(world, partition, b"a", b"b")
    append(world, partition, b"c")
    world.tell(leader=2, leader_epoch=1, partition_epoch=1, replicas=[BROKER, 2])
    ends: list[tuple[int, int]] = []
    world.directory.trimmer.truncate(
        partition.log,
        2,
        lambda _: ends.append((partition.log.end_offset, partition.high_watermark)),
    )
    world.settle(1000)
    assert ends == [(2, 2)]
    assert world.replicas.high_watermarks() == {CLICKS: 2}


@pytest.mark.parametrize(("saved", "restored"), [(0, 0), (1, 1), (2, 2), (9, 2)])
def test_a_followers_high_watermark_is_the_saved_one_within_its_log(
    world: World, partition: Partition, saved: int, restored: int
) -> None:
    append(world, partition, b"a", b"b")
    world.restart(saved_high_watermarks={CLICKS: saved, VIEWS: 7})
    assert world.replicas.high_watermarks() == {CLICKS: saved}
    world.tell(leader=2, leader_epoch=1, partition_epoch=1, replicas=[BROKER, 2])
    assert world.replicas.partitions[CLICKS].high_watermark == restored
    assert world.replicas.high_watermarks() == {CLICKS: restored}


# --- waiting for the high watermark ---------------------------------------------------------------


def test_without_flush_before_expose_records_are_committed_at_once(
    world: World, partition: Partition
) -> None:
    append(world, partition, b"a")
    heard: list[Error] = []
    partition.await_committed(partition.role, 1, 100, None, heard.append)
    assert heard == [Error.NONE]


def test_many_waiters_share_a_flush(world: World, careful: Partition) -> None:
    heard: list[Error] = []
    append(world, careful, b"a")
    careful.await_committed(careful.role, 1, 5000, None, heard.append)
    world.settle(500)  # the first flush makes the log itself last, too
    before = world.disk.calls["sync"]
    for number in range(20):
        append(world, careful, b"a")
        careful.await_committed(careful.role, number + 2, 5000, None, heard.append)
    world.settle(500)
    assert heard == [Error.NONE] * 21
    assert world.disk.calls["sync"] - before <= 2


def test_a_waiter_that_comes_during_a_flush_waits_for_the_next(
    world: World, careful: Partition
) -> None:
    heard: list[Error] = []
    append(world, careful, b"a")
    careful.await_committed(careful.role, 1, 5000, None, heard.append)
    world.tasks.run_for_ms(0)
    append(world, careful, b"b")
    careful.await_committed(careful.role, 2, 5000, None, lambda error: heard.append(error))
    world.tasks.run_until(lambda: len(heard) == 1, 5000)
    assert careful.high_watermark == 1
    world.settle()
    assert heard == [Error.NONE] * 2
    assert careful.high_watermark == 2


def test_a_waiter_times_out_once(world: World, careful: Partition) -> None:
    append(world, careful, b"a")
    heard: list[Error] = []
    careful.await_committed(careful.role, 1, 0, None, heard.append)
    world.settle(1000)
    assert heard == [Error.REQUEST_TIMED_OUT]


def test_a_full_disk_fails_the_waiters(world: World, careful: Partition) -> None:
    append(world, careful, b"a")
    world.tell(leader_epoch=1, partition_epoch=1)  # a small file for the flush to write
    world.disk.fail(errno.ENOSPC, when=lambda call: "leader-epoch" in call.path, forever=False)
    heard: list[Error] = []
    careful.await_committed(careful.role, 1, 5000, None, heard.append)
    world.settle(500)
    assert heard == [Error.KAFKA_STORAGE_ERROR]
    careful.await_committed(careful.role, 1, 5000, None, heard.append)
    world.settle(500)
    assert heard[1:] == [Error.NONE]


def test_resigning_fails_the_waiters(world: World, careful: Partition) -> None:
    append(world, careful, b"a")
    heard: list[Error] = []
    careful.await_committed(careful.role, 1, 5000, None, heard.append)
    careful.resign()
    world.ticks.end()
    assert heard == [Error.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize(("leader", "epoch"), [(-1, 0), (2, 1)])
def test_a_waiter_of_another_leadership_gets_no_yes_though_its_offset_is_flushed(
    world: World, careful: Partition, leader: int, epoch: int
) -> None:
    append(world, careful, b"a")
    heard: list[Error] = []
    careful.await_committed(careful.role, 1, 5000, None, heard.append)
    state = careful.state._replace(leader=leader, leader_epoch=epoch)
    careful.lead_or_follow(state, careful.replicas)
    flush_now(world.disk, "/d01", [careful.log])
    world.ticks.end()
    assert heard == [Error.NOT_LEADER_OR_FOLLOWER]


def test_a_waiter_outlives_an_epoch_in_which_the_same_broker_goes_on_leading(
    world: World, careful: Partition
) -> None:
    append(world, careful, b"a")
    heard: list[Error] = []
    careful.await_committed(careful.role, 1, 5000, None, heard.append)
    careful.lead_or_follow(careful.state._replace(leader_epoch=1), careful.replicas)
    world.ticks.end()
    assert heard == []
    world.settle()
    assert heard == [Error.NONE]


def test_a_newer_state_of_the_same_epoch_leaves_the_waiters_waiting(
    world: World, careful: Partition
) -> None:
    append(world, careful, b"a")
    heard: list[Error] = []
    careful.await_committed(careful.role, 1, 5000, None, heard.append)
    careful.lead_or_follow(careful.state._replace(zk_version=1), careful.replicas)
    world.settle()
    assert heard == [Error.NONE]


def test_a_disconnected_client_is_not_answered(world: World, careful: Partition) -> None:
    append(world, careful, b"a")
    heard: list[Error] = []
    client = object()
    careful.await_committed(careful.role, 1, 5000, client, heard.append)
    world.replicas.delayed.cancel_all(client)
    world.settle(6000)
    assert heard == []
    assert not careful.watchers


class Watch(DelayedOperation):
    """Notes what is visible at each wake-up."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.wakes: list[int] = []

    def attempt(self) -> bool:
        self.wakes.append(self.partition.high_watermark)
        return True

    def expire(self) -> None:
        raise AssertionError("nobody woke it")


def test_a_flush_for_another_reason_wakes_the_waiters_when_it_ends(
    world: World, careful: Partition
) -> None:
    watch = Watch(careful)
    world.replicas.delayed.add(watch, (careful,), 60_000, None)
    append(world, careful, b"a")
    world.settle(1000)
    assert watch.wakes == []
    woken: list[bool] = []

    def look_after_ms(delay_ms: int) -> None:
        world.tasks.call_later(delay_ms, lambda: woken.append(watch.wakes == [1]))

    world.directory.flusher.request(careful.log, lambda _: look_after_ms(1))
    world.settle(1000)
    assert woken == [True]


def test_records_exposed_by_a_settings_change_wake_the_waiters(
    world: World, careful: Partition
) -> None:
    watch = Watch(careful)
    append(world, careful, b"a")
    world.replicas.delayed.add(watch, (careful,), 60_000, None)
    careful.configure(replace(careful.log.settings, flush_before_expose=False))
    world.settle(10)
    assert watch.wakes == [1]
