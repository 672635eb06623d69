"""A follower's appends: what it fetched, with the leader's offsets and epochs, or nothing."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import ApiError, CorruptRecords, DiskFull, Error
from kdist.model import NO_OFFSET
from kdist.records.batch import iter_headers
from kdist.records.build import build_batch
from kdist.records.control import ControlType, EndTransactionMarker
from kdist.storage.log import Log
from tests.examples import examples
from tests.refusals import refused
from tests.unit.storage.storage_world import (
    START_MS,
    World,
    append,
    expected_lines,
    lines,
    numbered,
    write,
)
from tests.written_records import write_marker

EPOCH = 9  # of the leader, as the follower knows it
PRODUCER: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}


def batch(first: int, count: int = 1, epoch: int = 0, **fields: Any) -> bytearray:
    """A batch as a leader's log has it, of records whose values are their offsets."""
    values = numbered(first, count)
    fields = {"timestamp_ms": START_MS, **fields}
    return build_batch(values, base_offset=first, leader_epoch=epoch, **fields)


def marker(offset: int, epoch: int = 0) -> bytearray:
    """The control batch that commits the transaction of `PRODUCER`."""
    key, value = write_marker(EndTransactionMarker(ControlType.COMMIT, coordinator_epoch=1))
    return build_batch(
        [value],
        [key],
        timestamp_ms=START_MS,
        base_offset=offset,
        leader_epoch=epoch,
        is_transactional=True,
        is_control=True,
        **PRODUCER,
    )


def take(log: Log, *records: bytes | bytearray, epoch: int = EPOCH) -> None:
    log.complete_append(log.prepare_as_follower(records, epoch, START_MS), START_MS)


def state(log: Log) -> tuple[Any, ...]:
    """All that an append changes."""
    return (
        content(log),
        (log.start_offset, log.end_offset, log.reserved_offset),
        log.epochs.entries,
        log.producers.producers,
        log.producers.first_unstable_offset,
    )


def content(log: Log) -> bytes:
    return b"".join(segment.file.read(0, segment.size) for segment in log.segments if segment.size)


@pytest.fixture
def log() -> Log:
    """Three records of epoch 1."""
    log = World().log()
    take(log, batch(0, 3, epoch=1))
    return log


# What is taken


def test_batches_keep_the_leaders_offsets_epochs_and_every_other_byte(log: Log) -> None:
    fetched = batch(3, 2, epoch=1) + batch(5, epoch=4) + batch(6, 2, epoch=9)
    take(log, fetched)
    assert content(log) == bytes(batch(0, 3, epoch=1) + fetched)
    assert lines(log) == expected_lines(8)
    assert log.epochs.entries == [(1, 0), (4, 5), (9, 6)]


def test_several_spans_share_one_write() -> None:
    world = World()
    log = world.log()
    take(log, batch(0))
    writes = world.disk.calls["write"]
    take(log, batch(1) + batch(2), batch(3), batch(4, 2, epoch=1))
    assert world.disk.calls["write"] == writes + 1
    assert lines(log) == expected_lines(6)
    assert (world.metrics.appended_batches, world.metrics.appended_records) == (5, 6)


def test_batches_without_an_epoch_are_taken_until_there_is_one() -> None:
    log = World().log()
    take(log, batch(0, epoch=-1) + batch(1, epoch=2))
    assert log.epochs.entries == [(2, 1)]
    with pytest.raises(ApiError):
        take(log, batch(2, epoch=-1))


def test_a_last_batch_that_is_cut_short_is_left_out(log: Log) -> None:
    last = batch(4, epoch=1)
    take(log, batch(3, epoch=1) + last[:-1])
    assert log.end_offset == 4
    before = state(log)
    for size in (0, 20, len(last) - 1):
        take(log, last[:size])
    assert state(log) == before


def test_an_empty_log_takes_a_fetch_without_a_whole_batch() -> None:
    log = World().log()
    for records in ([], [b""], [batch(0)[:-1]]):
        take(log, *records)
    assert log.end_offset == 0
    take(log, batch(0))
    assert lines(log) == expected_lines(1)


def test_sequences_are_not_checked_since_the_leader_has_checked_them(log: Log) -> None:
    take(log, batch(3, base_sequence=7, epoch=1, **PRODUCER))
    take(log, batch(4, base_sequence=99, epoch=1, **PRODUCER))
    producer = log.producers.producer(7)
    assert producer is not None
    assert producer.last_sequence == 99


def test_a_transaction_is_open_from_its_first_batch_to_its_marker(log: Log) -> None:
    fields = {"is_transactional": True, "epoch": 1, **PRODUCER}
    take(log, batch(3, base_sequence=0, **fields))
    take(log, batch(4, base_sequence=1, **fields))
    assert log.producers.first_unstable_offset == 3
    take(log, marker(5, epoch=1))
    assert log.producers.first_unstable_offset is None


def test_an_append_is_checked_against_the_one_that_is_being_written(log: Log) -> None:
    first = log.defer(log.prepare_as_follower([batch(3, epoch=2)], EPOCH, START_MS))
    second = log.defer(log.prepare_as_follower([batch(4, epoch=3)], EPOCH, START_MS))
    with pytest.raises(ApiError):
        log.prepare_as_follower([batch(4, epoch=3)], EPOCH, START_MS)
    for each in (first, second):
        each.keep()
        write(each)
    for each in (first, second):
        log.publish(each, START_MS)
    assert lines(log) == expected_lines(5)


def emptied(world: World, offset: int) -> Log:
    """An empty log whose log start offset is `offset`."""
    log = world.log()
    append(world, log, offset)
    world.delete_records(log, offset)
    log.roll(START_MS)
    world.directory.trimmer.retain(lambda log: log.end_offset)
    world.flush(log)
    return log


def test_an_empty_log_takes_a_first_batch_that_begins_before_the_log_start_offset() -> None:
    world = World()
    log = emptied(world, 5)
    take(log, batch(3, 4, epoch=2))
    assert (log.start_offset, log.end_offset, log.active.base_offset) == (5, 7, 3)
    assert log.epochs.entries == [(2, 5)]
    world.flush(log)
    log = world.restart().logs[log.partition]
    assert (log.start_offset, log.end_offset) == (5, 7)
    assert log.epochs.entries == [(2, 5)]
    append(world, log, epoch=3)
    assert lines(log) == expected_lines(8, 3)


def test_a_refill_from_before_the_log_start_offset_replaces_what_a_truncation_left() -> None:
    world = World()
    log = world.log()
    take(log, batch(0, 3, epoch=1) + batch(3, 4, epoch=1))
    world.flush(log)
    world.delete_records(log, 5)
    world.truncate(log, 5)
    take(log, batch(3, 4, epoch=2))
    assert (log.start_offset, log.end_offset) == (5, 7)
    assert [segment.base_offset for segment in log.segments] == [3]
    log = world.restart().logs[log.partition]
    assert (log.start_offset, log.end_offset) == (5, 7)
    assert lines(log) == expected_lines(7, 3)


@pytest.mark.parametrize("refused", ["write", "rename"])
def test_a_refill_that_found_the_disk_full_is_taken_again(refused: str) -> None:
    world = World()
    log = emptied(world, 5)
    for _ in range(2):
        world.disk.fail(errno.ENOSPC, when=lambda call: call.name == refused, forever=False)
        with pytest.raises(DiskFull):
            take(log, batch(3, 4, epoch=2))
        assert (log.start_offset, log.end_offset, log.active.size) == (5, 5, 0)
    take(log, batch(3, 4, epoch=2))
    world.settle(10 * log.settings.file_delete_delay_ms)
    log = world.restart().logs[log.partition]
    assert (log.start_offset, log.end_offset) == (5, 7)
    assert lines(log) == expected_lines(7, 3)


# What is refused


@pytest.mark.parametrize(
    "wrong",
    [
        batch(2, epoch=1),  # again
        batch(3, epoch=1) + batch(3, epoch=1),
        batch(3, epoch=0),  # older than the log's
        batch(3, epoch=2) + batch(4, epoch=1),
        batch(3, epoch=EPOCH) + batch(4, epoch=EPOCH + 1),
    ],
)
def test_batches_that_do_not_continue_the_log_change_nothing(log: Log, wrong: bytearray) -> None:
    before = state(log)
    with refused(Error.INVALID_RECORD):
        take(log, wrong)
    assert state(log) == before


@pytest.mark.parametrize("gap", [batch(4, epoch=1), batch(3, epoch=1) + batch(5, epoch=1)])
def test_a_leaders_gaps_are_taken_over_once_a_checkpoint_tells_of_them(gap: bytearray) -> None:
    """The topic was compacted once: recovery would take a gap for a loss if nothing told of it."""
    world = World()
    log = world.log()
    take(log, batch(0, 3, epoch=1))
    before = state(log)
    with refused(Error.KAFKA_STORAGE_ERROR):
        take(log, gap)
    assert state(log) == before
    world.settle()
    take(log, gap)
    kept = lines(log)
    world.kill()
    log = world.open().logs[log.partition]
    assert lines(log) == kept
    assert log.end_offset == kept[-1][0] + 1


@pytest.mark.parametrize("position", [-1, 16, 62])
def test_a_damaged_batch_changes_nothing(log: Log, position: int) -> None:
    before, damaged = state(log), batch(4, epoch=1)
    damaged[position] ^= 1
    with pytest.raises(CorruptRecords):
        take(log, batch(3, epoch=1) + damaged)
    with pytest.raises(CorruptRecords):
        take(log, batch(3, epoch=1) + batch(4, epoch=1)[:-1], batch(4, epoch=1))
    assert state(log) == before


def test_a_first_batch_wholly_before_the_log_start_offset_is_refused() -> None:
    log = emptied(World(), 5)
    with pytest.raises(ApiError):
        take(log, batch(3, 2))
    assert log.active.base_offset == 5


def test_a_failed_write_leaves_no_trace() -> None:
    world = World()
    log = world.log()
    take(log, batch(0, base_sequence=0, is_transactional=True, **PRODUCER))
    before = state(log)
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write", forever=False)
    with pytest.raises(DiskFull):
        take(log, batch(1, base_sequence=1, **PRODUCER) + marker(2))
    assert state(log) == before
    take(log, batch(1, base_sequence=1, **PRODUCER) + marker(2))
    assert log.producers.first_unstable_offset is None


def test_only_a_compacted_topic_may_have_gaps() -> None:
    log = World().log(cleanup_policy=frozenset({"compact"}))
    take(log, batch(0) + batch(4))
    take(log, batch(9))
    assert log.end_offset == 10
    assert [offset for offset, _ in lines(log)] == [0, 4, 9]


# Histories

STEPS = st.lists(
    st.tuples(
        st.integers(1, 4),  # records
        st.booleans(),  # whether a new epoch begins
        st.sampled_from([NO_OFFSET, 0, 1]),  # producer
    ),
    max_size=25,
)


@examples(60)
@given(STEPS, st.lists(st.integers(1, 400), min_size=1, max_size=30), st.integers(0, 9))
def test_a_followers_log_is_its_leaders_byte_for_byte_and_so_after_a_power_loss(
    steps: Sequence[tuple[int, bool, int]], sizes: Sequence[int], seed: int
) -> None:
    leader_world, world = World(), World(seed=seed)
    topic: dict[str, Any] = {"segment_bytes": 600, "index_interval_bytes": 100}
    leader, log = leader_world.log(**topic), world.log(**topic)
    epoch, sequences = 0, [0, 0]
    for count, is_new, producer in steps:
        epoch += is_new
        fields = {}
        if producer >= 0:
            sequence = sequences[producer]
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            sequences[producer] += count
        append(leader_world, leader, count, epoch=epoch, **fields)
    whole = content(leader)
    starts = [position for position, _ in iter_headers(whole)]
    for size in [*sizes, len(whole)]:  # each fetch gets so many bytes, and the whole first batch
        position = log.size
        if position == len(whole):
            break
        first = next((start for start in [*starts, len(whole)] if start > position), 0)
        take(log, whole[position : max(position + size, first)], epoch=epoch)
        if size % 3 == 0:
            world.flush(log)
    assert same(log) == same(leader)
    world.flush(log)
    world.lose_power()
    log = world.open().logs[log.partition]
    assert same(log) == same(leader)


def same(log: Log) -> tuple[Any, ...]:
    producers = {
        producer_id: producer.last_sequence
        for producer_id, producer in log.producers.producers.items()
    }
    return content(log), log.end_offset, log.epochs.entries, producers
