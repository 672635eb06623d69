"""A stream returns the messages of its chunks, and its ownerships know which were processed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kdist.client.classic.connector.ownership import Ownership
from kdist.client.classic.connector.stream import Chunk, ConsumerTimeout, Stream
from kdist.client.consumer.batch import Batch, NotDecoded
from kdist.errors import CorruptRecords
from kdist.model import TopicPartition
from kdist.records.batch import iter_headers
from kdist.records.build import build_batch

PARTITION = TopicPartition("clicks", 3)


def stream_of(
    timeout_s: float | None = 0,
    chunks_max: int = 2,
    on_hungry: Callable[[Stream], None] = lambda _: None,
) -> Stream:
    return Stream("c-0", chunks_max, timeout_s, on_hungry)


def open_claim(start: int = 0) -> Ownership:
    ownership = Ownership(PARTITION, "c-0")
    ownership.start = start
    return ownership


def batch_of(base_offset: int, *values: bytes, decoder: Any = None) -> Batch:
    data = build_batch(values, base_offset=base_offset, timestamp_ms=0)
    ((at, header),) = iter_headers(data)
    return Batch(PARTITION, header, data, at, base_offset, (None, decoder))


def chunk(ownership: Ownership, base_offset: int, *values: bytes) -> Chunk:
    return Chunk(ownership, [batch_of(base_offset, *values)])


def test_a_message_has_all_its_fields() -> None:
    stream = stream_of()
    stream.put(chunk(open_claim(), 7, b"v"))
    message = next(stream)
    assert (message.topic, message.partition, message.offset) == ("clicks", 3, 7)
    assert (message.key, message.value, message.payload()) == (None, b"v", b"v")


def test_a_message_counts_as_processed_when_the_next_is_asked_for() -> None:
    stream, ownership = stream_of(), open_claim(5)
    stream.put(chunk(ownership, 5, b"a", b"b"))
    assert ownership.position == 5
    next(stream)
    assert ownership.position == 5
    next(stream)
    assert ownership.position == 6
    with pytest.raises(ConsumerTimeout):
        next(stream)
    assert ownership.position == 7


def test_a_loop_left_in_the_middle_resumes_there() -> None:
    stream, ownership = stream_of(), open_claim()
    stream.put(chunk(ownership, 0, b"a", b"b", b"c"))
    for message in stream:
        assert message.value == b"a"
        break
    assert ownership.position == 0
    assert [next(stream).value, next(stream).value] == [b"b", b"c"]
    assert ownership.position == 2


def test_next_and_loops_in_turn_return_every_message_once() -> None:
    stream, ownership = stream_of(), open_claim()
    batches = [batch_of(at, b"%d" % at, b"%d" % (at + 1), b"%d" % (at + 2)) for at in (0, 3, 6)]
    stream.put(Chunk(ownership, batches))
    given = [next(stream).offset]
    for message in stream:
        given.append(message.offset)
        if message.offset == 3:
            break
    given.append(next(stream).offset)
    assert given == [0, 1, 2, 3, 4]
    assert ownership.position == 4
    assert [message.offset for _, message in zip(range(4), stream, strict=False)] == [5, 6, 7, 8]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_message_whose_decoding_was_interrupted_is_returned_next(
    error: type[BaseException],
) -> None:
    errors = [error()]

    def decode(value: bytes) -> bytes:
        if value == b"d" and errors:
            raise errors.pop()
        return value

    stream, ownership = stream_of(), open_claim()
    batches = [batch_of(0, b"a", b"b", decoder=decode), batch_of(2, b"c", b"d", decoder=decode)]
    stream.put(Chunk(ownership, batches))
    assert [next(stream).value, next(stream).value] == [b"a", b"b"]
    with pytest.raises(error):
        next(stream)
    assert ownership.position == 2
    assert [next(stream).value, next(stream).value] == [b"c", b"d"]


def test_a_damaged_batch_is_not_skipped() -> None:
    stream, ownership = stream_of(), open_claim()
    damaged = batch_of(1, b"b")
    damaged.body = b"\xff"
    stream.put(Chunk(ownership, [batch_of(0, b"a"), damaged, batch_of(2, b"c")]))
    assert next(stream).value == b"a"
    for _ in range(2):
        with pytest.raises(CorruptRecords):
            next(stream)
        assert ownership.position == 1


def test_settle_counts_only_messages_returned_to_its_own_thread() -> None:
    stream, ownership = stream_of(), open_claim()
    stream.put(chunk(ownership, 0, b"a", b"b"))
    next(stream)
    other = threading.Thread(target=stream.settle)
    other.start()
    other.join()
    assert ownership.position == 0
    stream.settle()
    assert ownership.position == 1
    next(stream)
    assert ownership.position == 1


def test_no_message_of_a_closed_claim_is_returned() -> None:
    stream, gone, kept = stream_of(), open_claim(), open_claim()
    stream.put(chunk(gone, 0, b"a", b"b"))
    stream.put(chunk(gone, 2, b"c"))
    stream.put(chunk(kept, 0, b"z"))
    assert next(stream).value == b"a"
    gone.close()
    stream.look()
    assert next(stream).value == b"z"
    assert gone.position == 0, "what was worked on is given again, by another"


def test_a_held_claim_resumes_where_it_was() -> None:
    stream, ownership = stream_of(), open_claim()
    stream.put(chunk(ownership, 0, b"a", b"b"))
    next(stream)
    ownership.hold(is_held=True)
    with pytest.raises(ConsumerTimeout):
        next(stream)
    ownership.hold(is_held=False)
    assert next(stream).value == b"b"


def test_a_full_stream_reports_when_it_has_room() -> None:
    hungry: list[Stream] = []
    stream, ownership = stream_of(on_hungry=hungry.append), open_claim()
    stream.put(chunk(ownership, 0, b"a"))
    assert not stream.is_full
    stream.put(chunk(ownership, 1, b"b"))
    assert stream.is_full
    next(stream)
    assert hungry == [stream]
    next(stream)
    assert hungry == [stream]


def test_room_left_by_a_lost_partition_is_reported_too() -> None:
    hungry: list[Stream] = []
    stream, ownership = stream_of(on_hungry=hungry.append), open_claim()
    stream.put(chunk(ownership, 0, b"a"))
    stream.put(chunk(ownership, 1, b"b"))
    ownership.close()
    stream.look()
    assert hungry == [stream]


def test_a_waiting_reader_gets_new_messages_and_the_end() -> None:
    stream = stream_of(timeout_s=None)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.extend(each.value for each in stream))
    reader.start()
    stream.put(chunk(open_claim(), 0, b"a"))
    stream.put(chunk(open_claim(), 0, b"b"))
    while len(found) < 2:
        assert reader.is_alive()
    stream.stop()
    reader.join(10)
    assert found == [b"a", b"b"]
    assert list(stream) == []


def test_an_error_is_raised_once_to_the_reader() -> None:
    stream = stream_of()
    stream.fail(ValueError("it went wrong"))
    stream.fail(ValueError("and so did this, for the same reason"))
    with pytest.raises(ValueError, match="it went wrong"):
        next(stream)
    with pytest.raises(ConsumerTimeout):
        next(stream)


def test_a_message_that_cannot_be_decoded_is_raised_once_and_then_skipped() -> None:
    stream, ownership = stream_of(), open_claim()
    stream.put(Chunk(ownership, [batch_of(0, b"1", b"{", b"3", decoder=json.loads)]))
    assert next(stream).payload() == 1
    with pytest.raises(NotDecoded) as refused:
        next(stream)
    assert refused.value.offset == 1
    assert next(stream).payload() == 3
    with pytest.raises(ConsumerTimeout):
        next(stream)
    assert ownership.position == 3
