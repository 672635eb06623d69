"""A blocking consumer left or interrupted in the middle: no record is skipped."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from kdist.client.coding import Decoder
from kdist.client.consumer.consumer import Consumer
from kdist.client.consumer.metadata import Metadata
from kdist.client.consumer.opening import Opening, open_fetched
from kdist.model import TopicPartition
from kdist.records.build import build_batch

T0 = TopicPartition("t", 0)


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumer]:
    """A consumer that fetches nothing: it asks for no leader."""
    for name in ("start", "refresh"):
        monkeypatch.setattr(Metadata, name, lambda _: None)
    with Consumer("127.0.0.1:1") as opened:
        opened.assign([T0])
        opened.seek(T0, 0)
        yield opened


def put(consumer: Consumer, counts: list[int], decode: Decoder | None = None) -> None:
    """Make batches of these many records ready."""
    partition = consumer._core.partitions[T0]
    for count in counts:
        start = partition.fetch_position
        values = [b"%d" % number for number in range(start, start + count)]
        data = build_batch(values, timestamp_ms=0, base_offset=start)
        opening = Opening(T0, start, decoders=(None, decode))
        consumer._completed.put(partition, open_fetched(data, opening))


def test_a_loop_that_is_left_and_restarted_resumes_where_it_was(consumer: Consumer) -> None:
    put(consumer, [3, 3])
    found = []
    for _ in range(4):
        for record in consumer:
            found.append(record.offset)
            assert consumer.position(T0) == len(found)
            break
    assert found == [0, 1, 2, 3]


def test_concurrent_loops_share_the_records(consumer: Consumer) -> None:
    put(consumer, [3, 3, 3])
    one, other = iter(consumer), iter(consumer)
    assert [next(each).offset for _ in range(4) for each in (one, other)] == list(range(8))
    assert consumer.position(T0) == 8


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_records_of_an_interrupted_poll_count_as_not_returned(
    consumer: Consumer, error: type[BaseException]
) -> None:
    def decode(value: bytes) -> bytes:
        if value == b"7":
            raise error
        return value

    put(consumer, [5, 5], decode)
    assert len(consumer.poll(1, max_records=2)) == 2
    with pytest.raises(error):
        consumer.poll(1, max_records=100)
    assert consumer.position(T0) == 2
    assert consumer._core.partitions[T0].fetch_position == 2
    put(consumer, [5])
    assert [record.offset for record in consumer.poll(1)] == [2, 3, 4, 5, 6]


def test_a_poll_interrupted_while_it_waits_returns_nothing_twice(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    put(consumer, [5])
    assert len(consumer.poll(1)) == 5
    monkeypatch.setattr(consumer._core.context.wakeup, "wait_in_thread", interrupt)
    with pytest.raises(KeyboardInterrupt):
        consumer.poll(1)
    assert consumer.position(T0) == 5


@pytest.mark.parametrize("kind", ["records", "batches"])
def test_wherever_a_poll_is_interrupted_the_next_resumes_where_it_began(
    consumer: Consumer, kind: str
) -> None:
    """At each line in turn, but not before a `with`: at its end Python handles no signal."""

    def interrupt(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        name = frame.f_code.co_filename
        if "/client/consumer/" not in name:
            return None
        if event == "line" and not linecache.getline(name, frame.f_lineno).strip().startswith("w"):
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return interrupt

    lines, found = 0, list[Any]()
    while not found:
        consumer.seek(T0, 0)
        put(consumer, [3, 2, 4])
        left = lines
        sys.settrace(interrupt)
        try:
            found = consumer.poll(1) if kind == "records" else consumer.poll_batches(1)
        except KeyboardInterrupt:
            lines += 1
        finally:
            sys.settrace(None)
        position = consumer.position(T0)
        assert position == (9 if found else 0)
        fetched = consumer._core.partitions[T0].fetch_position
        if fetched < 9:
            put(consumer, [9 - fetched])
        offsets = range(9) if not found else []
        assert [each.offset for each in consumer.poll(0)] == list(offsets)
    assert lines > 50
