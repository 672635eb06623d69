"""Idempotent producers: Kafka's rules, a model of whole histories, and their snapshots."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from storage_world import CLICKS, START_MS, World, append, overwrite

from kdist.errors import ApiError, CorruptFile, Error
from kdist.model import OffsetRange
from kdist.records.batch import Attribute, BatchHeader
from kdist.runtime.tasks import Done
from kdist.storage.log import Log
from kdist.storage.names import Suffix
from kdist.storage.producers import (
    BatchMetadata,
    Duplicate,
    ProducerState,
    ProducerStates,
    decode_snapshot,
    encode_snapshot,
    load_snapshot,
)
from kdist.testing.simulated_disk import SimulatedDisk
from kdist.wire.crc32c import software

LAST_SEQUENCE = 2**31 - 1
TRANSACTIONAL = int(Attribute.TRANSACTIONAL)
MARKER = TRANSACTIONAL | int(Attribute.CONTROL)


def batch(
    producer_id: int = 7,
    epoch: int = 0,
    sequence: int = 0,
    count: int = 10,
    timestamp: int = 1000,
    attributes: int = 0,
) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        batch_length=49,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


def states_after(*headers: BatchHeader) -> ProducerStates:
    """The states after these batches were checked and appended in turn, from offset 0 on."""
    states, offset = ProducerStates(), 0
    for header in headers:
        assert states.check(header) is None
        states.append(header, offset)
        offset += header.last_offset_delta + 1
    return states


def refusal(states: ProducerStates, header: BatchHeader) -> Error:
    with pytest.raises(ApiError) as caught:
        states.check(header)
    return caught.value.error


PATH = "/d/00000000000000000180.snapshot"


def snapshot_batch(
    producer_id: int, epoch: int = 0, sequence: int = 0, count: int = 10, attributes: int = 0
) -> BatchHeader:
    return BatchHeader(
        *(0, 49, 0, 2, 0, attributes, count - 1, 1000, 1000, producer_id, epoch, sequence, count)
    )


def test_the_next_sequence_is_accepted():
    assert states_after(batch(sequence=0), batch(sequence=10)).check(batch(sequence=20)) is None


def test_a_gap_is_out_of_order():
    states = states_after(batch(sequence=0))
    assert refusal(states, batch(sequence=11)) == Error.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_retry_gets_the_offsets_and_timestamp_of_the_first_time():
    states = states_after(batch(sequence=0), batch(sequence=10, count=5, timestamp=2000))
    assert states.check(batch(sequence=10, count=5)) == Duplicate(10, 14, 2000)
    assert states.check(batch(sequence=0)) == Duplicate(0, 9, 1000)


def test_a_retry_of_the_fifth_batch_back_is_known_and_of_the_sixth_is_not():
    states = states_after(*(batch(sequence=10 * at) for at in range(6)))
    assert states.check(batch(sequence=10)) == Duplicate(10, 19, 1000)
    assert refusal(states, batch(sequence=0)) == Error.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_that_overlaps_a_known_one_is_no_retry():
    states = states_after(batch(sequence=0, count=10))
    assert refusal(states, batch(sequence=0, count=9)) == Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(states, batch(sequence=5, count=5)) == Error.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_may_start_anywhere():
    assert ProducerStates().check(batch(sequence=12345, epoch=3)) is None


def test_a_new_epoch_starts_at_sequence_zero():
    states = states_after(batch(sequence=0))
    assert refusal(states, batch(epoch=1, sequence=10)) == Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(batch(epoch=1, sequence=0)) is None


def test_an_old_epoch_is_fenced():
    states = states_after(batch(epoch=1), batch(epoch=2))
    assert refusal(states, batch(epoch=1, sequence=10)) == Error.INVALID_PRODUCER_EPOCH
    assert refusal(states, batch(epoch=1, sequence=0)) == Error.INVALID_PRODUCER_EPOCH


def test_an_unknown_producer_cannot_have_an_epoch_below_none():
    assert refusal(ProducerStates(), batch(epoch=-2)) == Error.INVALID_PRODUCER_EPOCH
    assert ProducerStates().check(batch(epoch=-1)) is None  # as in Kafka


def test_a_new_epoch_discards_the_batches_of_the_old_one():
    states = states_after(batch(epoch=0, sequence=0), batch(epoch=1, sequence=0, count=3))
    assert states.producer(7) == ProducerState(1, (BatchMetadata(2, 12, 2, 1000),), 1000)


@pytest.mark.parametrize("count", [1, 2, 10])
def test_sequences_wrap_from_the_largest_int_to_zero(count):
    over_the_wrap = batch(sequence=LAST_SEQUENCE - count + 1, count=count + 3)
    states = states_after(batch(sequence=LAST_SEQUENCE - count - 9), over_the_wrap)
    assert states.check(over_the_wrap) == Duplicate(10, 10 + count + 2, 1000)
    assert states.check(batch(sequence=3)) is None
    assert refusal(states, batch(sequence=4)) == Error.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_zero_follows_a_batch_that_ends_at_the_largest_int():
    states = states_after(batch(sequence=LAST_SEQUENCE - 9))
    assert states.check(batch(sequence=0)) is None
    assert refusal(states, batch(sequence=1)) == Error.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_batches_without_a_producer_id_leave_no_state():
    states = states_after(*[batch(producer_id=-1, epoch=-1, sequence=-1)] * 3)
    assert len(states) == 0


def test_a_check_changes_nothing():
    states = states_after(batch(sequence=0))
    before = states.producers
    states.check(batch(sequence=10))
    states.check(batch(sequence=0))
    refusal(states, batch(sequence=50))
    assert states.producers == before


def test_a_follower_updates_its_state_without_a_check():
    states = states_after(batch(epoch=3, sequence=0))
    states.append(batch(epoch=1, sequence=700), 10)
    assert states.producer(7) == ProducerState(1, (BatchMetadata(709, 19, 9, 1000),), 1000)


def test_the_log_append_time_replaces_the_batchs_own_timestamp():
    states = ProducerStates()
    states.append(batch(timestamp=5), 0, timestamp=9999)
    assert states.check(batch(timestamp=5)) == Duplicate(0, 9, 9999)


def test_a_failed_append_can_be_undone():
    states = states_after(batch(sequence=0))
    before = states.producer(7)
    states.append(batch(sequence=10, attributes=TRANSACTIONAL), 10)
    states.append(batch(producer_id=8), 20)
    states.restore(8, None)
    states.restore(7, before)
    assert states.producers == {7: before}
    assert states.first_unstable_offset is None


def test_producers_expire_by_the_age_of_their_newest_batch():
    states = states_after(
        batch(producer_id=1, timestamp=1000), batch(producer_id=2, timestamp=1001)
    )
    assert states.expire(now_ms=1999, expiration_ms=1000) == 0
    assert states.expire(now_ms=2000, expiration_ms=1000) == 1
    assert list(states.producers) == [2]
    assert states.check(batch(producer_id=1, sequence=77)) is None


def test_an_open_transaction_keeps_its_producer():
    states = states_after(batch(attributes=TRANSACTIONAL))
    assert states.expire(now_ms=10**9, expiration_ms=1) == 0
    states.end_transaction(batch(sequence=-1, count=1, attributes=MARKER), 10, coordinator_epoch=0)
    assert states.expire(now_ms=10**9, expiration_ms=1) == 1


def test_the_oldest_open_transaction_is_the_first_undecided_offset():
    states = states_after(
        batch(producer_id=0),
        batch(producer_id=1, attributes=TRANSACTIONAL),
        batch(producer_id=2, attributes=TRANSACTIONAL),
        batch(producer_id=1, sequence=10, attributes=TRANSACTIONAL),
    )
    assert states.first_unstable_offset == 10
    marker = batch(producer_id=1, sequence=-1, count=1, timestamp=3000, attributes=MARKER)
    assert states.end_transaction(marker, 40, coordinator_epoch=5) == OffsetRange(10, 41)
    assert states.first_unstable_offset == 20
    producer = states.producer(1)
    assert producer is not None
    assert (producer.coordinator_epoch, producer.last_timestamp) == (5, 3000)
    assert states.check(batch(producer_id=1, sequence=20, attributes=TRANSACTIONAL)) is None


def test_a_marker_without_an_open_transaction_ends_none():
    states = ProducerStates()
    marker = batch(sequence=-1, count=1, epoch=4, attributes=MARKER)
    assert states.end_transaction(marker, 0, coordinator_epoch=2) is None
    assert states.producer(7) == ProducerState(4, (), 1000, 2)
    assert states.check(batch(epoch=4, sequence=0)) is None
    assert refusal(states, batch(epoch=4, sequence=1)) == Error.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_marker_of_a_new_epoch_fences_the_old_one():
    states = states_after(batch(attributes=TRANSACTIONAL))
    states.end_transaction(batch(epoch=1, sequence=-1, count=1, attributes=MARKER), 10, 0)
    assert states.producer(7) == ProducerState(1, (), 1000, 0)
    late = batch(epoch=0, sequence=10, attributes=TRANSACTIONAL)
    assert refusal(states, late) == Error.INVALID_PRODUCER_EPOCH


def test_a_plain_batch_within_a_transaction_is_refused():
    states = states_after(batch(attributes=TRANSACTIONAL))
    assert refusal(states, batch(sequence=10)) == Error.INVALID_TXN_STATE


class Sent(NamedTuple):
    header: BatchHeader
    offset: int


class ProducersModel(RuleBasedStateMachine):
    """The model keeps every batch of a producer's epoch and searches the last five.

    A restart keeps them: `known` says how many of the newest batches may be recognized.
    """

    def __init__(self) -> None:
        super().__init__()
        self.states = ProducerStates()
        self.end = 0
        self.sent: dict[int, list[Sent]] = {}
        self.known: dict[int, int] = {}

    def expected(self, header: BatchHeader) -> Duplicate | Error | None:
        sent = self.sent.get(header.producer_id)
        if not sent:
            return None
        epoch = sent[-1].header.producer_epoch
        if header.producer_epoch < epoch:
            return Error.INVALID_PRODUCER_EPOCH
        if header.producer_epoch > epoch:
            return Error.OUT_OF_ORDER_SEQUENCE_NUMBER if header.base_sequence else None
        for old, offset in sent[-min(self.known[header.producer_id], 5) :]:
            if (old.base_sequence, old.record_count) == (
                header.base_sequence,
                header.record_count,
            ) and old.producer_epoch == epoch:
                return Duplicate(offset, offset + old.record_count - 1, old.max_timestamp)
        newest = sent[-1].header
        expected = (newest.base_sequence + newest.record_count) % 2**31
        in_order = header.base_sequence == expected
        return None if in_order else Error.OUT_OF_ORDER_SEQUENCE_NUMBER

    @rule(
        producer_id=st.integers(0, 2),
        count=st.integers(1, 3),
        timestamp=st.integers(0, 100),
        data=st.data(),
    )
    def produce(self, producer_id: int, count: int, timestamp: int, data: st.DataObject) -> None:
        sent = self.sent.get(producer_id)
        if not sent:
            start = data.draw(st.sampled_from([0, 5, LAST_SEQUENCE - 2, LAST_SEQUENCE]))
            epoch, sequence = 0, start
        else:
            newest = sent[-1].header
            following = (newest.base_sequence + newest.record_count) % 2**31
            epoch = newest.producer_epoch + data.draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
            old = data.draw(st.sampled_from(sent[-7:])).header
            sequence, count = data.draw(
                st.sampled_from(
                    [
                        (following, count),
                        (following, count),
                        (old.base_sequence, old.record_count),
                        (old.base_sequence, count),
                        ((following + 1) % 2**31, count),
                        (0, count),
                    ]
                )
            )
        header = batch(producer_id, max(epoch, 0), sequence, count, timestamp)
        outcome: Duplicate | Error | None
        try:
            outcome = self.states.check(header)
        except ApiError as refused:
            outcome = refused.error
        assert outcome == self.expected(header)
        if outcome is None:
            self.append(header)

    def append(self, header: BatchHeader) -> None:
        self.states.append(header, self.end)
        sent = self.sent.setdefault(header.producer_id, [])
        if sent and sent[-1].header.producer_epoch != header.producer_epoch:
            sent.clear()
        self.known[header.producer_id] = self.known.get(header.producer_id, 0) + 1 if sent else 1
        sent.append(Sent(header, self.end))
        self.end += header.record_count

    @rule()
    def restart(self) -> None:
        self.states = decode_snapshot(encode_snapshot(self.states), "s")
        for sent in self.sent.values():  # a snapshot has no timestamp above the newest batch's
            newest_ms = sent[-1].header.max_timestamp
            sent[:] = [
                Sent(header._replace(max_timestamp=min(header.max_timestamp, newest_ms)), offset)
                for header, offset in sent
            ]

    @rule(now_ms=st.integers(0, 120))
    @precondition(lambda self: self.sent)
    def expire(self, now_ms: int) -> None:
        self.states.expire(now_ms, 60)
        for producer_id in list(self.sent):
            if now_ms - self.sent[producer_id][-1].header.max_timestamp >= 60:
                del self.sent[producer_id], self.known[producer_id]

    @invariant()
    def knows_the_newest_batches(self) -> None:
        assert set(self.states.producers) == set(self.sent)
        for producer_id, producer in self.states.producers.items():
            kept = min(self.known[producer_id], 5, len(self.sent[producer_id]))
            expected = [offset for _, offset in self.sent[producer_id]][-kept:]
            assert [one.first_offset for one in producer.batches] == expected


TestProducersModel = ProducersModel.TestCase


def test_a_snapshot_and_the_batches_behind_it_rebuild_the_states():
    rng = random.Random(11)
    log: list[tuple[BatchHeader, int]] = []
    next_sequence = dict.fromkeys(range(3), 0)
    offset = 0
    for _ in range(40):
        producer_id, count = rng.randrange(3), rng.randint(1, 5)
        attributes = TRANSACTIONAL if producer_id else 0
        header = snapshot_batch(
            producer_id, 0, next_sequence[producer_id], count, attributes=attributes
        )
        log.append((header, offset))
        next_sequence[producer_id] += count
        offset += count
    whole = ProducerStates()
    for sent in log:
        whole.append(*sent)
    for cut in range(len(log)):
        early = ProducerStates()
        for sent in log[:cut]:
            early.append(*sent)
        rebuilt = decode_snapshot(encode_snapshot(early), PATH)
        for sent in log[cut:]:
            rebuilt.append(*sent)
        assert encode_snapshot(rebuilt) == encode_snapshot(whole)
        assert rebuilt.first_unstable_offset == whole.first_unstable_offset


# Two producers with open transactions, as Kafka 3.9 wrote them.
GOLDEN = bytes.fromhex(
    "0001 4fa05679 00000002"
    "0000000000000003 0000 00000077 00000000000000b3 00000013"
    "0000018bcfe56a4e ffffffff 0000000000000000"
    "0000000000000004 0000 0000003b 0000000000000077 00000013"
    "0000018bcfe56a4e ffffffff 000000000000003c"
)


def test_retries_of_older_batches_are_known_after_a_restart():
    """After a clean stop batches in flight were refused, and sent again as new ones."""
    states = ProducerStates()
    for number in range(7):
        states.append(snapshot_batch(7, sequence=10 * number), 100 + 10 * number)
    restarted = decode_snapshot(encode_snapshot(states), PATH)
    assert restarted.producers == states.producers
    retried = [restarted.check(snapshot_batch(7, sequence=10 * number)) for number in range(2, 7)]
    assert [each and each.first_offset for each in retried] == [120, 130, 140, 150, 160]


def test_of_several_entries_of_a_producer_the_last_is_the_one_that_kafka_takes():
    states = ProducerStates()
    states.restore(
        7, ProducerState(1, (BatchMetadata(9, 109, 9, 50), BatchMetadata(19, 119, 9, 6)), 8, 2, 110)
    )
    older, newest = (encode_snapshot(states)[10 + 46 * n :][:46] for n in range(2))
    alone = ProducerStates()
    alone.restore(7, ProducerState(1, (BatchMetadata(19, 119, 9, 6),), 8, 2, 110))
    assert newest == encode_snapshot(alone)[10:]
    assert older[38:] == b"\xff" * 8  # has no open transaction
    assert older[26:34] == newest[26:34]  # so that it does not expire after the newest


def test_a_snapshot_is_what_kafka_writes():
    states = decode_snapshot(GOLDEN, PATH)
    assert states.producers == {
        3: ProducerState(0, (BatchMetadata(119, 179, 19, 1700000000590),), 1700000000590, -1, 0),
        4: ProducerState(0, (BatchMetadata(59, 119, 19, 1700000000590),), 1700000000590, -1, 60),
    }
    assert states.first_unstable_offset == 0
    assert encode_snapshot(states) == GOLDEN


def test_a_snapshot_of_no_producers_has_ten_bytes():
    content = bytes.fromhex("0001 48674bc7 00000000")
    assert encode_snapshot(ProducerStates()) == content
    assert len(decode_snapshot(content, PATH)) == 0


def test_transactions_are_in_order_though_a_snapshot_lists_producers_by_id():
    states = ProducerStates()
    states.append(snapshot_batch(producer_id=9, attributes=TRANSACTIONAL), 0)
    states.append(snapshot_batch(producer_id=1, attributes=TRANSACTIONAL), 10)
    assert decode_snapshot(encode_snapshot(states), PATH).first_unstable_offset == 0


def test_a_producer_of_which_only_a_marker_is_left_reads_back_without_batches():
    states = ProducerStates()
    states.end_transaction(
        snapshot_batch(7, epoch=4, sequence=-1, count=1, attributes=MARKER), 0, 2
    )
    content = encode_snapshot(states)
    assert content[20:36] == bytes.fromhex("ffffffff ffffffffffffffff 00000000")
    assert decode_snapshot(content, PATH).producers == {7: ProducerState(4, (), 1000, 2)}


@pytest.mark.parametrize("position", range(len(GOLDEN)))
def test_every_flipped_bit_of_a_snapshot_is_noticed(position):
    for bit in range(8):
        content = bytearray(GOLDEN)
        content[position] ^= 1 << bit
        with pytest.raises(CorruptFile):
            decode_snapshot(bytes(content), PATH)


def test_every_cut_of_a_snapshot_is_noticed():
    for size in range(len(GOLDEN)):
        with pytest.raises(CorruptFile):
            decode_snapshot(GOLDEN[:size], PATH)


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 46, GOLDEN])
def test_bytes_behind_a_snapshot_are_noticed(tail):
    with pytest.raises(CorruptFile):
        decode_snapshot(GOLDEN + tail, PATH)


@pytest.mark.parametrize("count", [-1, 0, 1, 3, 2**31 - 1])
def test_a_wrong_count_under_a_right_crc_is_noticed(count):
    body = count.to_bytes(4, "big", signed=True) + GOLDEN[10:]
    content = GOLDEN[:2] + software(body).to_bytes(4, "big") + body
    with pytest.raises(CorruptFile, match="entries"):
        decode_snapshot(content, PATH)


@given(st.binary(max_size=120))
def test_random_bytes_are_no_snapshot(content):
    with pytest.raises(CorruptFile):
        decode_snapshot(content, PATH)


def test_a_saved_snapshot_survives_a_power_loss():
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/d")
    disk.sync_directory("/")
    with pytest.raises(FileNotFoundError):
        load_snapshot(disk, PATH)
    disk.replace(PATH, encode_snapshot(decode_snapshot(GOLDEN, PATH)))
    assert encode_snapshot(load_snapshot(disk.crash(), PATH)) == GOLDEN


def append_three(world: World, log: Log) -> None:
    known = log.producers.producer(5)
    sequence = 0 if known is None else known.last_sequence + 1
    append(world, log, 3, producer_id=5, producer_epoch=0, base_sequence=sequence)


def rolled(world: World, segments: int) -> Log:
    """A log of segments of two batches of one producer, the last without any, never flushed."""
    log = world.log()
    for _ in range(segments - 1):
        append_three(world, log)
        append_three(world, log)
        log.roll(START_MS)
    return log


def snapshot(world: World, base_offset: int) -> str:
    return world.path_of(base_offset, Suffix.SNAPSHOT)


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_a_start_writes_every_snapshot_that_is_missing_behind_the_recovery_point(
    content: bytes | None,
) -> None:
    """Also below one that a flush, which the power loss cut short, had written already."""
    world = World()
    log = rolled(world, 4)
    append_three(world, log)
    producer = log.producers.producer(5)
    paths = [snapshot(world, base_offset) for base_offset in (6, 12, 18)]
    waiting = [log.files_to_save[path] for path in paths]
    assert isinstance(waiting[2], ProducerStates)
    waiting[2].restore(9, producer)  # one whose records are gone
    first, second, third = (encode_snapshot(each) for each in waiting)  # type: ignore[arg-type]
    for path, written in zip(paths, (first, content, third), strict=True):
        if written is not None:
            overwrite(world.disk, path, written)
    world.kill()
    states = world.open().logs[CLICKS].producers
    assert [world.disk.read(path) for path in paths] == [first, second, third]
    assert states.producer(5) == states.producer(9) == producer


def test_a_snapshot_is_of_the_states_at_the_roll_and_encoded_by_the_thread_that_writes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes 0.3 s for 100,000 producers, and the roll is part of an append."""
    world = World()
    world.open()
    run_blocking, is_elsewhere, encoded = world.tasks.run_blocking, False, list[bool]()

    def run_noted(work: Callable[[], None], done: Done) -> None:
        def noted() -> None:
            nonlocal is_elsewhere
            is_elsewhere = True
            try:
                work()
            finally:
                is_elsewhere = False

        run_blocking(noted, done)

    def encode_noted(states: ProducerStates) -> bytes:
        encoded.append(is_elsewhere)
        return encode_snapshot(states)

    monkeypatch.setattr("kdist.storage.flushing.encode_snapshot", encode_noted)
    monkeypatch.setattr(world.tasks, "run_blocking", run_noted)
    log = rolled(world, 2)
    before = log.producers.producer(5)
    append_three(world, log)
    assert log.producers.producer(5) != before
    world.flush(log)
    assert encoded == [True]
    assert load_snapshot(world.disk, snapshot(world, 6)).producer(5) == before


def test_a_truncation_right_after_a_roll_reads_no_segment_below_it() -> None:
    """Compaction may drop what the snapshot knows; it waits for a flush that finds no room."""
    world = World()
    log = rolled(world, 2)
    before = log.producers.producer(5)
    append_three(world, log)
    world.disk.fail(errno.ENOSPC, when=lambda call: ".snapshot" in call.path, forever=False)
    world.settle()
    assert not world.disk.exists(snapshot(world, 6))
    count = len(world.disk.trace)
    world.truncate(log, 6)
    reads = {call.path for call in world.disk.trace[count:] if call.name == "read"}
    assert world.path_of(0, Suffix.LOG) not in reads
    assert log.producers.producer(5) == before
