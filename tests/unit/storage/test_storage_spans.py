"""Recovery scans a log many batches at a time, and finds what a scan batch by batch finds.

Logs of every kind of batch, damaged or not, are opened as after a crash: the end, epochs, producers
and both indexes, byte for byte, are held against the same walk made here batch by batch.
"""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from storage_world import CLICKS, START_MS, World, batch_of, overwrite

from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.errors import CorruptRecords
from kdist.model import NO_TIMESTAMP
from kdist.records import _compiled_spans, _reference_spans
from kdist.records.batch import HEADER_SIZE, BatchHeader, iter_headers, read_header, seal
from kdist.records.build import read_records
from kdist.records.compression import Codec
from kdist.records.control import ControlType, EndTransactionMarker, read_marker
from kdist.records.record import INT64_MAX
from kdist.runtime.files import File
from kdist.runtime.steps import run_steps
from kdist.storage.append import span_totals
from kdist.storage.epochs import LeaderEpochs
from kdist.storage.loading import SavedOffsets, load_log
from kdist.storage.names import Suffix
from kdist.storage.producers import ProducerState, ProducerStates
from kdist.storage.scan import DamagedSegment, walk_batches, walk_headers, walk_spans
from tests.written_records import write_marker

T = TypeVar("T")

BASE = 100
IMPLEMENTATIONS = {"reference": _reference_spans, "compiled": _compiled_spans}
BOTH = pytest.mark.parametrize("codec", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
MARKERS = [
    write_marker(EndTransactionMarker(kind, 3)) for kind in (ControlType.COMMIT, ControlType.ABORT)
]


class Writer:
    """Writes batches as several producers and leaders would, by chance."""

    def __init__(self, rng: random.Random, *, leaps: bool) -> None:
        self.rng = rng
        self.leaps = leaps
        self.offset = BASE
        self.leader_epoch = rng.choice([-1, 0, 4])
        self.now_ms = START_MS
        self.epochs = {1: 0, 2: 5, 3: 0}
        self.sequences = dict.fromkeys(self.epochs, 0)
        self.sizes = rng.choice([[0, 10], [10, 300], [10, 900, 5000], [10, 300_000]])
        self.producers = rng.choice([[None], [1], [None, 1, 2, 3]])

    def batch(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.1:
            self.leader_epoch += 1
        self.now_ms += rng.choice([0, 1, 1, 1, 1000, -500])
        if self.leaps and rng.random() < 0.2:
            self.offset += rng.randrange(1, 50)
        count = rng.choice([1, 1, 2, 5])
        size = rng.choice(self.sizes)
        values: list[bytes] = [bytes(size)] * count
        fields: dict[str, Any] = {"codec": rng.choice([Codec.NONE, Codec.NONE, Codec.GZIP])}
        producer = rng.choice(self.producers)
        if producer is not None:
            if rng.random() < 0.1:
                self.epochs[producer] += 1
                self.sequences[producer] = 0
            fields |= {"producer_id": producer, "producer_epoch": self.epochs[producer]}
            if rng.random() < 0.2:
                key, value = rng.choice(MARKERS)
                fields |= {"keys": [key], "is_control": True, "codec": Codec.NONE}
                values, count = [value], 1
            else:
                fields["base_sequence"] = self.sequences[producer]
                self.sequences[producer] += count
            fields["is_transactional"] = "is_control" in fields or rng.random() < 0.3
        made = batch_of(
            values,
            timestamp=rng.choice([self.now_ms] * 9 + [NO_TIMESTAMP]),
            base_offset=self.offset,
            leader_epoch=self.leader_epoch,
            **fields,
        )
        self.offset += count
        return bytes(made.data)


def damage(rng: random.Random, content: bytearray) -> None:
    """Damage the file as a disk may, in some cases so that no checksum detects it."""
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        starts = [0, *(at for at, _ in _headers_until_damage(content))]
        start = rng.choice(starts)
        place = start + rng.randrange(HEADER_SIZE + 10)
        if place >= len(content):
            continue
        content[place] ^= 1 << rng.randrange(8)
        if rng.random() < 0.3 and place >= start + 21:
            _seal_again(content, start)
    match rng.randrange(5):
        case 0:
            del content[rng.randrange(len(content)) :]
        case 1:
            content += bytes(rng.choice([1, 12, 61, 5000]))
        case 2:
            content += content[: rng.randrange(len(content))]


def _headers_until_damage(content: bytearray) -> Iterator[tuple[int, BatchHeader]]:
    try:
        yield from iter_headers(content)
    except CorruptRecords:
        pass


def _seal_again(content: bytearray, start: int) -> None:
    size = read_header(content, start).size
    if HEADER_SIZE <= size <= len(content) - start:
        with memoryview(content)[start : start + size] as view:
            seal(view, 0, size)


# The scan batch by batch


class Found(NamedTuple):
    """What is known of a log at the end of a scan."""

    content: bytes
    end_offset: int
    epochs: list[tuple[int, int]]
    producers: dict[int, ProducerState]
    offset_index: bytes
    time_index: bytes


def walked(content: bytes, recovery_point: int, interval: int, *, leaps: bool) -> Found:
    """What a scan batch by batch finds: headers up to the recovery point, then whole batches."""
    epochs, producers = LeaderEpochs(), ProducerStates()
    offsets, times = b"", b""
    since, largest, last_time = 0, (NO_TIMESTAMP, BASE), NO_TIMESTAMP
    end, end_offset = 0, BASE
    file = file_of(content)
    try:
        for position, header in careful_walk(file, len(content), recovery_point):
            base_offset = header.base_offset
            if not (base_offset <= recovery_point or base_offset == end_offset or leaps):
                break
            if header.max_timestamp > largest[0]:
                largest = header.max_timestamp, header.last_offset
            if since > interval:
                offsets += struct.pack(">ii", header.last_offset - BASE, position)
                if largest[0] > last_time:
                    times += struct.pack(">qi", largest[0], largest[1] - BASE)
                    last_time = largest[0]
                since = 0
            since += header.size
            if header.partition_leader_epoch >= 0:
                epochs.assign(header.partition_leader_epoch, base_offset)
            take_producer(producers, file, position, header)
            end, end_offset = position + header.size, header.next_offset
    except DamagedSegment:
        pass
    if largest[0] > last_time:  # as it is sealed
        times += struct.pack(">qi", largest[0], largest[1] - BASE)
    epochs.truncate_from_start(BASE)
    producers.expire(START_MS, StorageSettings().producer_id_expiration_ms)
    entries = [tuple(entry) for entry in epochs.entries]
    return Found(content[:end], end_offset, entries, producers.producers, offsets, times)


def file_of(content: bytes) -> File:
    file = World().disk.create("/d01/0.log")
    file.write([content], 0)
    return file


def careful_walk(file: File, size: int, recovery_point: int) -> Iterator[tuple[int, BatchHeader]]:
    start = 0
    for position, header in walk_headers(file, 0, size, base_offset=BASE):
        if header.next_offset > recovery_point:
            break
        yield position, header
        start = position + header.size
    for batch in walk_batches(file, start, size, base_offset=BASE):
        yield batch.position, batch.header


def take_producer(
    producers: ProducerStates, file: File, position: int, header: BatchHeader
) -> None:
    if header.producer_id < 0:
        return
    if not header.is_control:
        producers.append(header, header.base_offset)
        return
    with contextlib.suppress(CorruptRecords):
        for record in read_records(file.read(position, header.size), 0, header)[:1]:
            marker = read_marker(record.key, record.value)
            producers.end_transaction(header, header.last_offset, marker.coordinator_epoch)


# A start


def started(world: World, codec: ModuleType, recovery_point: int) -> Found:
    """What a start after a crash finds, and leaves in the files."""
    steps = load_log(
        world.directory.log_context,
        CLICKS,
        f"{world.path}/{CLICKS}",
        world.topic,
        SavedOffsets(recovery_point, BASE),
        is_clean=False,
        now_ms=START_MS,
    )
    with (
        patch("kdist.storage.scan.find_span", codec.find_span),
        patch("kdist.storage.loading.producer_headers", codec.producer_headers),
    ):
        log = run_steps(steps)
    log.active.seal()
    log.active.write_indexes()
    assert log.active.size == world.disk.size(log.active.path)
    return Found(
        world.disk.read(log.active.path),
        log.end_offset,
        [tuple(entry) for entry in log.epochs.entries],
        log.producers.producers,
        world.disk.read(log.active.offset_index.path),
        world.disk.read(log.active.time_index.path),
    )


@BOTH
@given(seed=st.integers(0, 1 << 32))
@example(seed=52)  # the end of a transaction that cannot be read
def test_a_start_finds_what_a_scan_batch_by_batch_finds(codec: ModuleType, seed: int) -> None:
    rng = random.Random(seed)
    writer = Writer(rng, leaps=(leaps := rng.random() < 0.3))
    content = bytearray(b"".join(writer.batch() for _ in range(rng.randrange(1, 40))))
    damage(rng, content)
    recovery_point = rng.choice([0, 0, BASE, rng.randrange(BASE, writer.offset + 2)])
    world = World()
    interval = rng.choice([0, 100, 700, 4096, 1 << 20])
    world.topic = TopicSettings(
        index_interval_bytes=interval, cleanup_policy=("compact",) if leaps else ("delete",)
    )
    world.open()
    world.disk.make_directory(f"{world.path}/{CLICKS}")
    overwrite(world.disk, world.path_of(BASE, Suffix.LOG), bytes(content))
    expected = walked(bytes(content), recovery_point, interval, leaps=leaps)
    assert started(world, codec, recovery_point) == expected
    assert started(world, codec, recovery_point) == expected  # now with the indexes of before


# The scan alone


@BOTH
@given(seed=st.integers(0, 1 << 32))
def test_both_scans_end_at_the_same_place_and_for_the_same_reason(
    codec: ModuleType, seed: int
) -> None:
    rng = random.Random(seed)
    writer = Writer(rng, leaps=rng.random() < 0.3)
    content = bytearray(b"".join(writer.batch() for _ in range(rng.randrange(1, 12))))
    damage(rng, content)
    file, end = file_of(bytes(content)), len(content) + rng.choice([0, 0, 100])
    trusted_offset = rng.choice([0, BASE + 3, writer.offset, INT64_MAX])
    room = rng.choice([-1, 0, 500, INT64_MAX])
    headers, reason = until_damage(careful_walk(file, end, trusted_offset))
    with patch("kdist.storage.scan.find_span", codec.find_span):
        limits = {"trusted_offset": trusted_offset, "room": lambda: room}
        walk = walk_spans(file, 0, end, base_offset=BASE, **limits)
        pieces, found_reason = until_damage(walk)
    assert found_reason == reason
    starts = dict(headers)
    assert sum(span.size for _, span, _ in pieces) == sum(h.size for _, h in headers)
    for position, span, data in pieces:
        assert starts[position] == read_header(data)
        inside = [h for at, h in headers if position <= at < position + span.size]
        assert span.base_offset == inside[0].base_offset
        assert span.last_offset == inside[-1].last_offset
        assert span.size - span.last_size <= max(0, room) + inside[-2:][0].size


def until_damage(walk: Iterator[T]) -> tuple[list[T], str]:
    """The batches scanned, and the damage that ends the scan, if any."""
    found: list[T] = []
    try:
        found.extend(walk)
    except DamagedSegment as damage:
        return found, str(damage)
    return found, ""


@pytest.mark.parametrize(("size", "reads"), [(100, 2), (100_000, 40)])
def test_small_batches_are_read_together_and_large_ones_by_their_header(
    size: int, reads: int
) -> None:
    world = World()
    file = world.disk.create("/d01/0.log")
    file.write([batch_of([bytes(size)], base_offset=BASE + at).data for at in range(40)], 0)
    pieces = list(walk_spans(file, 0, file.size(), base_offset=BASE))
    assert sum(span.record_count for _, span, _ in pieces) == 40
    assert world.disk.calls["read"] == reads


@pytest.mark.parametrize("with_producers", [(), (0,), (1,), (0, 1)])
def test_the_totals_of_spans_are_those_of_their_batches(with_producers: tuple[int, ...]) -> None:
    spans = [
        _reference_spans.BatchSpan(
            size=100 + n,
            last_size=40,
            base_offset=7 + 3 * n,
            last_offset=9 + 3 * n,
            leader_epoch=1,
            batch_count=2,
            record_count=3 - n,
            newest_ms=START_MS - n,
            newest_offset=9 + 3 * n,
            has_producers=n in with_producers,
        )
        for n in (0, 1)
    ]
    totals = span_totals(spans, 5)
    assert totals == (201, 8, 5, START_MS, bool(with_producers))
