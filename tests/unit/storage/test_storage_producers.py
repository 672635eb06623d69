"""Idempotent producers: Kafka's rules one by one, and a model that keeps whole histories."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kdist.errors import ApiError, Error
from kdist.model import OffsetRange
from kdist.records.batch import Attribute, BatchHeader
from kdist.storage.producer_snapshot import decode_snapshot, encode_snapshot
from kdist.storage.producers import Batch, Duplicate, Producer, ProducerStates

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
    assert states.producer(7) == Producer(1, (Batch(2, 12, 2, 1000),), 1000)


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
    assert states.producer(7) == Producer(1, (Batch(709, 19, 9, 1000),), 1000)


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
    assert states.producer(7) == Producer(4, (), 1000, 2)
    assert states.check(batch(epoch=4, sequence=0)) is None
    assert refusal(states, batch(epoch=4, sequence=1)) == Error.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_marker_of_a_new_epoch_fences_the_old_one():
    states = states_after(batch(attributes=TRANSACTIONAL))
    states.end_transaction(batch(epoch=1, sequence=-1, count=1, attributes=MARKER), 10, 0)
    assert states.producer(7) == Producer(1, (), 1000, 0)
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
