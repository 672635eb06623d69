"""A consumer that blocks, left or interrupted in the middle: what was not given will be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kdist.client.consumer.batch import Decoder
from kdist.client.consumer.consumer import Consumer
from kdist.client.consumer.opening import Opening, open_fetched
from kdist.client.consumer.topics import Topics
from kdist.model import TopicPartition
from kdist.records.build import build_batch

T0 = TopicPartition("t", 0)


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumer]:
    """One that nothing is fetched for: it asks for no leader."""
    for name in ("start", "refresh"):
        monkeypatch.setattr(Topics, name, lambda _: None)
    with Consumer("127.0.0.1:1") as opened:
        opened.assign([T0])
        opened.seek(T0, 0)
        yield opened


def put(consumer: Consumer, counts: list[int], decode: Decoder | None = None) -> None:
    """Batches of so many records each are ready."""
    partition = consumer._core.partitions[T0]
    for count in counts:
        start = partition.fetch_position
        values = [b"%d" % number for number in range(start, start + count)]
        data = build_batch(values, timestamp_ms=0, base_offset=start)
        opening = Opening(T0, start, decoders=(None, decode))
        consumer._shelf.put(partition, open_fetched(data, opening))


def test_a_loop_that_is_left_and_begun_again_goes_on_where_it_was(consumer: Consumer) -> None:
    put(consumer, [3, 3])
    found = []
    for _ in range(4):
        for record in consumer:
            found.append(record.offset)
            assert consumer.position(T0) == len(found)
            break
    assert found == [0, 1, 2, 3]


def test_loops_beside_each_other_share_what_there_is(consumer: Consumer) -> None:
    put(consumer, [3, 3, 3])
    one, other = iter(consumer), iter(consumer)
    assert [next(each).offset for _ in range(4) for each in (one, other)] == list(range(8))
    assert consumer.position(T0) == 8
