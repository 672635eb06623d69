"""Producer snapshots: Kafka's bytes, detected damage, and the states restored from one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.records.batch import Attribute, BatchHeader
from kdist.runtime.simulated_disk import SimulatedDisk
from kdist.storage.faults import CorruptFile
from kdist.storage.producer_snapshot import (
    decode_snapshot,
    encode_snapshot,
    load_snapshot,
)
from kdist.storage.producers import Batch, Producer, ProducerStates
from kdist.wire.crc32c import software

PATH = "/d/00000000000000000180.snapshot"
TRANSACTIONAL = int(Attribute.TRANSACTIONAL)
MARKER = TRANSACTIONAL | int(Attribute.CONTROL)


def batch(
    producer_id: int, epoch: int = 0, sequence: int = 0, count: int = 10, attributes: int = 0
) -> BatchHeader:
    return BatchHeader(
        *(0, 49, 0, 2, 0, attributes, count - 1, 1000, 1000, producer_id, epoch, sequence, count)
    )


def test_a_snapshot_and_the_batches_behind_it_rebuild_the_states():
    rng = random.Random(11)
    log: list[tuple[BatchHeader, int]] = []
    next_sequence = dict.fromkeys(range(3), 0)
    offset = 0
    for _ in range(40):
        producer_id, count = rng.randrange(3), rng.randint(1, 5)
        attributes = TRANSACTIONAL if producer_id else 0
        header = batch(producer_id, 0, next_sequence[producer_id], count, attributes=attributes)
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
        states.append(batch(7, sequence=10 * number), 100 + 10 * number)
    restarted = decode_snapshot(encode_snapshot(states), PATH)
    assert restarted.producers == states.producers
    retried = [restarted.check(batch(7, sequence=10 * number)) for number in range(2, 7)]
    assert [each and each.first_offset for each in retried] == [120, 130, 140, 150, 160]


def test_of_several_entries_of_a_producer_the_last_is_the_one_that_kafka_takes():
    states = ProducerStates()
    states.restore(7, Producer(1, (Batch(9, 109, 9, 50), Batch(19, 119, 9, 6)), 8, 2, 110))
    older, newest = (encode_snapshot(states)[10 + 46 * n :][:46] for n in range(2))
    alone = ProducerStates()
    alone.restore(7, Producer(1, (Batch(19, 119, 9, 6),), 8, 2, 110))
    assert newest == encode_snapshot(alone)[10:]
    assert older[38:] == b"\xff" * 8  # has no open transaction
    assert older[26:34] == newest[26:34]  # so that it does not expire after the newest


def test_a_snapshot_is_what_kafka_writes():
    states = decode_snapshot(GOLDEN, PATH)
    assert states.producers == {
        3: Producer(0, (Batch(119, 179, 19, 1700000000590),), 1700000000590, -1, 0),
        4: Producer(0, (Batch(59, 119, 19, 1700000000590),), 1700000000590, -1, 60),
    }
    assert states.first_unstable_offset == 0
    assert encode_snapshot(states) == GOLDEN


def test_a_snapshot_of_no_producers_has_ten_bytes():
    content = bytes.fromhex("0001 48674bc7 00000000")
    assert encode_snapshot(ProducerStates()) == content
    assert len(decode_snapshot(content, PATH)) == 0


def test_transactions_are_in_order_though_a_snapshot_lists_producers_by_id():
    states = ProducerStates()
    states.append(batch(producer_id=9, attributes=TRANSACTIONAL), 0)
    states.append(batch(producer_id=1, attributes=TRANSACTIONAL), 10)
    assert decode_snapshot(encode_snapshot(states), PATH).first_unstable_offset == 0


def test_a_producer_of_which_only_a_marker_is_left_reads_back_without_batches():
    states = ProducerStates()
    states.end_transaction(batch(7, epoch=4, sequence=-1, count=1, attributes=MARKER), 0, 2)
    content = encode_snapshot(states)
    assert content[20:36] == bytes.fromhex("ffffffff ffffffffffffffff 00000000")
    assert decode_snapshot(content, PATH).producers == {7: Producer(4, (), 1000, 2)}


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
