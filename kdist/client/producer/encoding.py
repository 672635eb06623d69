"""Encodes batches into produce requests (pure), each frame built around its batch without a copy.

    request up to the records' size | batch header | records

The first part, the prefix, is the same for every batch of a partition but for a few numbers, so
`kdist.protocol` encodes it once. Versions stop at 8, the last in which nothing follows the records.
A request with several batches, which are small, is joined from their frames: from each it takes the
end of its prefix (partition number and size) and everything behind that.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from kdist.client.producer.batch import SEQUENCE_MASK, PartitionQueue, ProducerBatch
from kdist.model import NO_EPOCH, NO_SEQUENCE
from kdist.protocol import produce
from kdist.protocol.frame import CORRELATION_ID_IN_FRAME, RequestHeader, encode_request
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.batch import HEADER, HEADER_SIZE, LENGTH_PREFIX_SIZE, MAGIC, seal
from kdist.records.build import read_batch
from kdist.records.codec import encode_records
from kdist.records.compression import Codec, compress
from kdist.wire.primitives import Buffer

VERSION_MIN, VERSION_MAX = 3, 8  # the first with magic 2, the last that is not flexible
ZSTD_VERSION_MIN = 7

_INT32 = struct.Struct(">i")
_SIZE_BYTES = 4
_PARTITION_BYTES = 8  # before its records: number, size
_PRODUCER_POSITION = 43  # in a batch's header: id, epoch, sequence
_PRODUCER = struct.Struct(">qhi")


class RequestEncoder:
    """What all produce requests of one producer have in common."""

    __slots__ = ("_acks", "_client_id", "_codec", "_timeout_ms")

    def __init__(self, acks: int, timeout_ms: int, client_id: str, codec: Codec) -> None:
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._client_id = client_id
        self._codec = codec

    def encode(self, batch: ProducerBatch, version: int) -> None:
        """Encode the batch's records into its frame, and release them. `stamp` has to follow.

        `ValueError` if it has no records, because the thread that opened it was interrupted: no
        broker accepts an empty batch.
        """
        if not batch.values:
            raise ValueError("a batch without records")
        prefix = self._prefix(batch.queue, version)
        room = len(prefix) + HEADER_SIZE
        if batch.timestamps is None and batch.marks and batch.marks[0][0] < len(batch.values):
            batch.timestamps = batch.stamps()
        timestamps = batch.timestamps
        base = batch.timestamp_ms if timestamps is None else timestamps[0]
        columns = (batch.values, batch.keys, batch.headers, timestamps, base)
        if self._codec == Codec.NONE:
            frame = encode_records(*columns, room)
        else:
            frame = bytearray(room)
            frame += compress(self._codec, encode_records(*columns))
        frame[: len(prefix)] = prefix
        count = len(batch.values)
        HEADER.pack_into(
            frame,
            len(prefix),
            0,
            len(frame) - len(prefix) - LENGTH_PREFIX_SIZE,
            NO_EPOCH,
            MAGIC,
            0,
            self._codec,
            count - 1,
            base,
            base if timestamps is None else max(timestamps),
            -1,
            -1,
            NO_SEQUENCE,
            count,
        )
        _put_sizes(frame, len(prefix))
        batch.count = count
        batch.frame = frame
        batch.prefix_size = len(prefix)
        batch.values, batch.keys, batch.headers = [], None, None

    def _prefix(self, queue: PartitionQueue, version: int) -> bytes:
        known_version, prefix = queue.prefix
        if known_version != version:
            empty = ProducePartition(index=queue.partition, records=b"")
            prefix = bytes(self._request({queue.topic: [empty]}, version))
            queue.prefix = version, prefix
        return prefix

    def join(self, batches: Sequence[ProducerBatch], version: int) -> bytearray:
        """The frame of one request for all these batches, each of a different partition."""
        topics: dict[str, list[memoryview]] = {}
        for batch in batches:
            part = memoryview(_frame_of(batch))[batch.prefix_size - _PARTITION_BYTES :]
            topics.setdefault(batch.queue.topic, []).append(part)
        start = self._request({}, version)
        _put_count(start, len(topics))
        pieces: list[Buffer] = [start]
        for name, parts in topics.items():
            topic = self._request({name: []}, version)[len(start) :]
            _put_count(topic, len(parts))
            pieces += (topic, *parts)
        frame = bytearray().join(pieces)
        _INT32.pack_into(frame, 0, len(frame) - _SIZE_BYTES)
        return frame

    def _request(self, topics: Mapping[str, list[ProducePartition]], version: int) -> bytearray:
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=self._timeout_ms,
            topic_data=[
                ProduceTopic(name=name, partition_data=parts) for name, parts in topics.items()
            ],
        )
        header = RequestHeader(produce.API.key, version, 0, self._client_id)
        return encode_request(header, request)

    def frame(self, batch: ProducerBatch, version: int) -> bytearray:
        """The frame of a request for this batch alone, in this version."""
        frame = _frame_of(batch)
        prefix = self._prefix(batch.queue, version)
        if (
            frame[_SIZE_BYTES:CORRELATION_ID_IN_FRAME]
            != prefix[_SIZE_BYTES:CORRELATION_ID_IN_FRAME]
        ):
            # It was encoded for a broker with another version.
            frame = batch.frame = bytearray(prefix) + records_of(batch)
            batch.prefix_size = len(prefix)
            _put_sizes(frame, len(prefix))
        return frame


def _put_sizes(frame: bytearray, prefix_size: int) -> None:
    _INT32.pack_into(frame, 0, len(frame) - _SIZE_BYTES)
    _INT32.pack_into(frame, prefix_size - _SIZE_BYTES, len(frame) - prefix_size)


def _put_count(part: bytearray, count: int) -> None:
    """Set the count of a list that was encoded empty: the encoded part ends with that count."""
    _INT32.pack_into(part, len(part) - _INT32.size, count)


def _frame_of(batch: ProducerBatch) -> bytearray:
    assert batch.frame is not None, "a batch is encoded before it is sent"
    return batch.frame


def records_of(batch: ProducerBatch) -> memoryview:
    """The record batch, as the log will store it."""
    return memoryview(_frame_of(batch))[batch.prefix_size :]


def stamp(batch: ProducerBatch) -> None:
    """Write producer id, epoch and sequence into an encoded batch, then its checksum."""
    frame, at = _frame_of(batch), batch.prefix_size
    id_, epoch = batch.queue.identity
    _PRODUCER.pack_into(frame, at + _PRODUCER_POSITION, id_, epoch, batch.sequence)
    seal(frame, at, len(frame) - at)


def cut_in_two(batch: ProducerBatch) -> list[ProducerBatch]:
    """Split an encoded batch that is too large into two unencoded ones, both with its number."""
    records = read_batch(records_of(batch))
    middle = len(records) // 2
    parts = []
    for start, end in ((0, middle), (middle, len(records))):
        part = ProducerBatch(batch.queue, batch.number, batch.created_s, batch.timestamp_ms)
        part.whole = batch
        part.held_bytes = batch.held_bytes // 2
        for _, timestamp, key, value, headers in records[start:end]:
            part.add(value, key, headers, timestamp)
        part.count = end - start
        if batch.sequence != NO_SEQUENCE:
            part.sequence = batch.sequence + start & SEQUENCE_MASK
        part.attempts = batch.attempts
        parts.append(part)
    batch.held_bytes -= sum(part.held_bytes for part in parts)
    batch.parts = ((0, parts[0]), (middle, parts[1]))
    return parts
