"""Produces whose records take long to check: they hold up their own connection, and nobody else."""

from __future__ import annotations

import random
import uuid
from collections import deque
from collections.abc import Callable

import pytest

from kdist.errors import ApiError, DiskFailed, Error, PoisonousRequest
from kdist.network.connection_state import Reason
from kdist.protocol.produce import ProducePartition, ProduceTopic
from kdist.records import message_set
from kdist.records import validate as validate_module
from kdist.records.batch import HEADER, read_header, seal
from kdist.records.build import read_batch
from kdist.records.compression import Codec, compress
from kdist.records.record import Record
from tests.unit.broker.broker_produces import (
    LONG,
    Broker,
    Peer,
    errors_of,
    fields_of,
    frame_of,
    long_batch,
)
from tests.unit.replication.replication_world import CLICKS, START_MS, VIEWS, World, batch
from tests.written_records import write_message_set

BOMBS = (Codec.GZIP, Codec.LZ4, Codec.ZSTD)


class Connection(Peer):
    """Keeps its requests while it is held, as a real one does."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker
        self._kept: deque[memoryview] = deque()

    def send(self, *frames: memoryview) -> None:
        self._kept += frames
        while self._kept and not self.is_held:
            frame = self._kept.popleft()
            self._broker.send(frame, self)
            self._broker.usual.flush()
            frame[:] = bytes(len(frame))  # a request's bytes are gone after its tick

    def end_hold(self, reason: Reason) -> None:
        super().end_hold(reason)
        self._broker.world.tasks.call_soon(self.send)


def stored(broker: Broker) -> list[bytes]:
    partition = broker.world.replicas.partitions.get(CLICKS)
    if partition is None or not partition.log.has_files:
        return []
    content, values, at = broker.contents(), [], 0
    while at < len(content):
        values += [record.value or b"" for record in read_batch(content, at)]
        at += read_header(content, at).size
    return values


@pytest.mark.parametrize("acks", [1, -1, 0])
@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_a_produce_behind_one_that_takes_long_is_appended_after_it(codec: Codec, acks: int) -> None:
    broker = Broker()
    peer = Connection(broker)
    peer.send(
        frame_of(long_batch(b"first", codec=codec), acks=acks),
        frame_of(batch([b"second"]), acks=acks),
    )
    assert (peer.is_held, stored(broker)) == (True, [])
    broker.world.settle()
    assert stored(broker) == [LONG, b"first", b"second"]
    assert (peer.is_held, peer.pending_produces, peer.is_closed) == (False, 0, False)
    assert acks == 0 or errors_of(peer) == [0, 0]
    header = read_header(broker.contents())
    assert (header.base_offset, header.max_timestamp) == (0, START_MS)


def test_others_are_served_while_a_check_takes_long() -> None:
    broker = Broker()
    slow, quick = Connection(broker), Connection(broker)
    slow.send(frame_of(long_batch()))
    quick.send(frame_of(batch([b"quick"])), frame_of(batch([b"quicker"])))
    assert errors_of(quick) == [0, 0]
    assert stored(broker) == [b"quick", b"quicker"]
    broker.world.settle()
    assert stored(broker) == [b"quick", b"quicker", LONG]


def test_pipelined_batches_of_one_producer_that_all_take_long_keep_their_order() -> None:
    broker = Broker()
    peer = Connection(broker)
    peer.send(*(frame_of(long_batch(b"%d" % n, **fields_of(7, 2 * n))) for n in range(5)))
    assert stored(broker) == []
    broker.world.settle(500)
    assert errors_of(peer) == [0] * 5
    assert stored(broker)[1::2] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_retry_on_another_connection_is_the_duplicate_of_one_still_checked() -> None:
    broker = Broker()
    peers = [Connection(broker) for _ in range(2)]
    for peer in peers:
        peer.send(frame_of(long_batch(**fields_of(7, 0))))
    broker.world.settle()
    assert [errors_of(peer) for peer in peers] == [[0], [0]]
    assert stored(broker) == [LONG]


def test_each_partition_of_a_request_is_appended_and_then_it_is_answered_once() -> None:
    broker = Broker()
    broker.world.lead(VIEWS)
    part = ProducePartition(index=VIEWS.partition, records=long_batch(b"v"))
    more = ProduceTopic(name=VIEWS.topic, partition_data=[part])
    peer = Connection(broker)
    peer.send(frame_of(long_batch(), more), frame_of(batch([b"next"])))
    broker.world.settle()
    assert errors_of(peer) == [0, 0]
    assert stored(broker) == [LONG, b"next"]
    assert broker.world.replicas.partitions[VIEWS].log.end_offset == 2


@pytest.mark.parametrize("what", ["other leader", "resigned", "deleted", "re-created"])
def test_a_partition_that_is_no_longer_led_when_the_check_ends_refuses_the_records(
    what: str,
) -> None:
    broker = Broker()
    world, peer = broker.world, Connection(broker)
    partition = world.replicas.partitions[CLICKS]
    peer.send(frame_of(long_batch(**fields_of(7, 0))), frame_of(batch([b"x"], **fields_of(7, 2))))
    if what == "other leader":
        world.tell(leader=2, leader_epoch=1, isr=[1, 2], replicas=[1, 2])
    elif what == "resigned":
        partition.resign()
    else:
        world.stop(leader_epoch=1)
        if what == "re-created":
            world.tell(topic_id=uuid.UUID(int=99))
    world.settle(500)
    assert errors_of(peer)[0] == Error.NOT_LEADER_OR_FOLLOWER
    assert LONG not in stored(broker)
    assert (peer.is_held, peer.pending_produces) == (False, 0)


def test_a_leader_in_a_later_epoch_takes_the_records() -> None:
    broker = Broker()
    peer = Connection(broker)
    peer.send(frame_of(long_batch()))
    broker.world.tell(leader_epoch=4, partition_epoch=1)
    broker.world.settle()
    assert errors_of(peer) == [0]
    assert read_header(broker.contents()).partition_leader_epoch == 4


def test_records_that_cannot_be_read_are_refused_and_what_follows_them_waits_for_a_retry() -> None:
    broker = Broker()
    data = long_batch(**fields_of(7, 0))
    data[-8:] = bytes(8)
    seal(data, 0, len(data))
    peer = Connection(broker)
    peer.send(frame_of(data), frame_of(batch([b"next"], **fields_of(7, 2))))
    broker.world.settle()
    refused = [Error.INVALID_RECORD, Error.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert errors_of(peer) == refused
    assert stored(broker) == []


def test_with_acks_0_records_that_are_refused_close_the_connection() -> None:
    broker = Broker()
    data = long_batch()
    data[-8:] = bytes(8)
    seal(data, 0, len(data))
    peer = Connection(broker)
    peer.send(frame_of(data, acks=0))
    broker.world.settle()
    assert peer.is_closed


def test_a_disk_that_fails_at_the_append_ends_the_broker_and_nothing_is_answered() -> None:
    broker = Broker()
    peer = Connection(broker)
    peer.send(frame_of(long_batch()))
    broker.world.disk.fail(when=lambda call: call.name == "write")
    with pytest.raises(DiskFailed):
        broker.world.settle()
    assert peer.answers == [[]]


def test_a_bug_met_by_a_thread_costs_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    peer = Connection(broker)
    peer.send(frame_of(long_batch()))
    monkeypatch.delattr(validate_module, "body_summary")
    broker.world.settle()
    assert [type(error) for error in broker.world.failures] == [PoisonousRequest]
    assert stored(broker) == []


def test_a_small_batch_without_a_max_timestamp_is_checked_at_once() -> None:
    broker = Broker()
    peer = Connection(broker)
    for codec in Codec:
        data = batch([b"v"] * 50, codec=codec)
        HEADER.pack_into(data, 0, *read_header(data)._replace(max_timestamp=-1))
        seal(data, 0, len(data))
        peer.send(frame_of(data))
    assert errors_of(peer) == [0] * 5


def test_no_more_checks_than_two_are_under_way() -> None:
    broker = Broker(World())
    peers = [Connection(broker) for _ in range(6)]
    for peer in peers:
        peer.send(frame_of(long_batch()))
    assert broker.world.replicas.produce_checks.under_way == 2
    broker.world.settle(500)
    assert [errors_of(peer) for peer in peers] == [[0]] * 6
    assert broker.world.replicas.produce_checks.under_way == 0


def miscounted(codec: Codec) -> bytes:
    data = long_batch(codec=codec)
    HEADER.pack_into(data, 0, *read_header(data)._replace(record_count=2, last_offset_delta=1))
    seal(data, 0, len(data))
    return bytes(data)


def wrapped_twice(codec: Codec) -> bytes:
    inner = write_message_set([Record(0, START_MS, None, LONG)], 1, codec)
    packed = compress(
        codec, inner + message_set.write_message(1, 1, 0, 0, None, random.Random(1).randbytes(9000))
    )
    return message_set.write_message(1, 1, codec, START_MS, None, packed)


REFUSED = {
    **{
        f"bomb {codec.name}": (bytes(long_batch(bytes(9 << 20), codec=codec)), 9) for codec in BOMBS
    },
    **{f"miscounted {codec.name}": (miscounted(codec), 9) for codec in (*BOMBS, Codec.SNAPPY)},
    **{f"wrapped {codec.name}": (wrapped_twice(codec), 2) for codec in (Codec.GZIP, Codec.LZ4)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_records_leave_nothing_to_the_garbage_collector(
    name: str, uncollected: Callable[[Error], list[ApiError]]
) -> None:
    """Else all that was unpacked stays in memory until that runs, seldom as it does."""
    records, version = REFUSED[name]
    broker, peer = Broker(has_fast_path=False), Peer()
    broker.send(frame_of(records, version=version), peer)
    assert peer.is_held, "a thread unpacks it"
    broker.world.settle()
    assert errors_of(peer, version) in ([Error.INVALID_RECORD], [Error.CORRUPT_MESSAGE])
    assert [*uncollected(Error.INVALID_RECORD), *uncollected(Error.CORRUPT_MESSAGE)] == []


def test_an_append_that_is_refused_leaves_nothing_to_the_garbage_collector(
    uncollected: Callable[[Error], list[ApiError]],
) -> None:
    broker, peer = Broker(), Peer()
    for sequence in (0, 1, 7):
        broker.produce(peer, b"a", **fields_of(3, sequence))
        broker.usual.flush()
    assert broker.taken == 2
    assert errors_of(peer) == [0, 0, Error.OUT_OF_ORDER_SEQUENCE_NUMBER]
    broker.produce(peer, b"a", **fields_of(3, 2))
    broker.usual.flush()
    assert uncollected(Error.OUT_OF_ORDER_SEQUENCE_NUMBER) == []
