"""Which records of a compacted log stay, in plain Python: the reference for `_compiled_cleaning`.

A `KeyMap` holds the last offset of each key in the dirty section. A `Sieve` drops the records that
have a later one of their key, tombstones past their delete horizon, and records without a key; it
leaves alone what is at or beyond `mapped_end`. A batch keeps its base and last offset, sequence and
epochs. The rules are Kafka's (`Cleaner`, `MemoryRecords.filterTo`); KIP-534 has the horizon.

In addition to Kafka's the first batch of each leader epoch stays, without records if they are gone.
Who copies the log, or recovers it, learns from that batch alone where the epoch begins; one that
does not know would lead others to cut off what is committed, or to keep what is not. Epoch 0 has
none before it, so nobody is asked where it begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from kdist.model import NO_TIMESTAMP
from kdist.records._reference import _Fields, _fit, _iter_fields
from kdist.records.batch import (
    HEADER_SIZE,
    Attribute,
    BatchHeader,
    assembled,
    crc_fault,
    header_fault,
    read_header,
)
from kdist.records.compression import CODEC_MASK
from kdist.records.record import put_headers, put_record
from kdist.wire.primitives import Buffer

SLOT_BYTES = 24  # in the compiled map: a hash of 16 bytes, and an offset
OUT_TIMES = 3  # a batch may grow: with a horizon, each record's timestamp may take more bytes
_LOAD_MAX = 0.9  # of the slots, as Kafka's `log.cleaner.io.buffer.load.factor`
_HASH_BYTES = 16
_HORIZON = int(Attribute.DELETE_HORIZON)
_NOT_PLAIN = int(Attribute.TRANSACTIONAL | Attribute.CONTROL) | CODEC_MASK


class KeyMap:
    """The last offset of each key, by the key's hash, in `slot_count` slots of `SLOT_BYTES`.

    Two keys of one hash would count as one. So it has 128 bits, and depends on the 16 bytes
    `secret`: nobody can choose such keys.
    """

    def __init__(self, slot_count: int, secret: bytes) -> None:
        self.limit = limit_of(slot_count)
        self.is_full = False  # a key found no slot
        self._secret = secret
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def _hash(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, digest_size=_HASH_BYTES, key=self._secret).digest()

    def put(self, key: bytes, offset: int) -> bool:
        """Note a key's offset, larger than all before; False, and `is_full`, without a slot."""
        hashed = self._hash(key)
        if hashed not in self._offsets and len(self._offsets) >= self.limit:
            self.is_full = True
            return False
        self._offsets[hashed] = offset
        return True

    def get(self, key: bytes) -> int:
        """The offset of a key; -1 if it has none."""
        return self._offsets.get(self._hash(key), -1)


def limit_of(slot_count: int) -> int:
    """How many keys a map of so many slots takes."""
    return max(int(slot_count * _LOAD_MAX), 1)


def map_body(
    key_map: KeyMap, body: Buffer, count: int, base_offset: int, first_offset: int
) -> int | None:
    """Note the keys of a body's records from `first_offset` on.

    The offset of the first that found no slot; None if all did. Raises `CorruptRecords`.
    """
    for fields in list(_iter_fields(body, count)):
        offset = base_offset + fields.offset_delta
        if offset >= first_offset and fields.key is not None:  # noqa: SIM102 - two questions
            if not key_map.put(fields.key, offset):
                return offset
    return None


def map_batches(
    key_map: KeyMap, data: Buffer, position: int, next_offset: int, first_offset: int
) -> tuple[int, int]:
    """Note the keys of plain batches one after another: without codec, transaction or control.

    From `position`, where the base offset must be `next_offset` or more. Returns where it stopped:
    in front of a batch that is not plain, not whole, or not sound. If the map `is_full`, the offset
    is that of the first record without a slot, and the position says nothing.
    """
    while (header := _plain(data, position, next_offset)) is not None:
        body = memoryview(data)[position + HEADER_SIZE : position + header.size]
        left_out = map_body(key_map, body, header.record_count, header.base_offset, first_offset)
        if left_out is not None:
            return position, left_out
        position += header.size
        next_offset = header.next_offset
    return position, next_offset


def _plain(data: Buffer, position: int, next_offset: int) -> BatchHeader | None:
    if len(data) - position < HEADER_SIZE:
        return None
    header = read_header(data, position)
    is_sound = header_fault(header, len(data) - position) is None
    if not is_sound or header.base_offset < next_offset or header.attributes & _NOT_PLAIN:
        return None
    return None if crc_fault(data, position, header) else header


class SiftedBody(NamedTuple):
    """What is left of a body, uncompressed, and what the header then says."""

    body: bytes
    record_count: int
    base_timestamp: int
    max_timestamp: int
    has_delete_horizon: bool


class Sieve:
    """Decides on each record of a compacted log, and counts.

    `horizon_ms`: what a batch that has a tombstone and no horizon gets. `expires`: whether
    tombstones whose horizon is not above `now_ms` go. `last_offsets`: of the last batch of each
    producer, which stays even if it is empty. `latest_epoch`: of the batches before, and then of
    those that were seen, so that the next part of the log is sifted with it.
    """

    def __init__(
        self,
        key_map: KeyMap,
        mapped_end: int,
        now_ms: int,
        horizon_ms: int,
        expires: bool,
        last_offsets: Mapping[int, int],
        latest_epoch: int,
    ) -> None:
        self.latest_epoch = latest_epoch
        self.seen_records = self.kept_records = 0
        self.seen_batches = self.kept_batches = 0
        self.rewritten_batches = 0
        self._key_map = key_map
        self._mapped_end = mapped_end
        self._now_ms = now_ms
        self._horizon_ms = horizon_ms
        self._expires = expires
        self._last_offsets = last_offsets

    def sift(
        self, data: Buffer, position: int, next_offset: int, out: bytearray, end: int
    ) -> tuple[int, int, int]:
        """Copy what stays of plain batches, as for `map_batches`, to `out` from `end` on.

        Returns where it stopped in `data`, the next offset, and the new end in `out`. It also stops
        where `out` has less room than `OUT_TIMES` the next batch's size.
        """
        while (header := _plain(data, position, next_offset)) is not None:
            if len(out) - end < OUT_TIMES * header.size:
                break
            original = memoryview(data)[position : position + header.size]
            sifted = self.sift_body(original[HEADER_SIZE:], header)
            batch = self.batch_left(header, original, sifted)
            if batch is not None:
                out[end : end + len(batch)] = batch
                end += len(batch)
            position += header.size
            next_offset = header.next_offset
        return position, next_offset, end

    def sift_body(self, body: Buffer, header: BatchHeader) -> SiftedBody | None:
        """What is left of a batch's uncompressed body; None if it stays as it is."""
        everything = list(_iter_fields(body, header.record_count))
        kept = [fields for fields in everything if self._stays(fields, header)]
        self.seen_records += len(everything)
        self.kept_records += len(kept)
        # One that is not mapped yet gets its horizon when the older values of its key go.
        mapped = self._mapped_end - header.base_offset
        has_tombstones = any(f.value is None and f.offset_delta < mapped for f in kept)
        sets_horizon = has_tombstones and not header.has_delete_horizon
        if len(kept) == len(everything) and not sets_horizon:
            return None
        base = self._horizon_ms if sets_horizon else header.base_timestamp
        shift = 0 if header.is_log_append_time else header.base_timestamp - base
        newest = max(
            (_fit(header.base_timestamp + fields.timestamp_delta, "timestamp") for fields in kept),
            default=NO_TIMESTAMP,
        )
        return SiftedBody(
            _encoded(kept, shift),
            len(kept),
            base,
            header.max_timestamp if header.is_log_append_time or not kept else newest,
            sets_horizon or header.has_delete_horizon,
        )

    def _stays(self, fields: _Fields, header: BatchHeader) -> bool:
        offset = header.base_offset + fields.offset_delta
        if offset >= self._mapped_end:
            return True
        if fields.key is None or offset < self._key_map.get(fields.key):
            return False
        is_expired = (
            self._expires and header.has_delete_horizon and header.base_timestamp <= self._now_ms
        )
        return fields.value is not None or not is_expired

    def batch_left(
        self, header: BatchHeader, original: Buffer, sifted: SiftedBody | None
    ) -> Buffer | None:
        """The batch to write for an uncompressed one; None for none. Counts it."""
        self.seen_batches += 1
        count = header.record_count if sifted is None else sifted.record_count
        begins_epoch = header.partition_leader_epoch > self.latest_epoch
        self.latest_epoch = max(header.partition_leader_epoch, self.latest_epoch)
        is_last = self._last_offsets.get(header.producer_id) == header.last_offset
        if not (count or is_last or begins_epoch):
            return None
        self.kept_batches += 1
        if sifted is None:
            return original
        self.rewritten_batches += 1
        return rebuilt_batch(header, sifted, sifted.body) if count else empty_batch(header)


def rebuilt_batch(header: BatchHeader, sifted: SiftedBody, body: Buffer) -> bytearray:
    """The batch with other records: `body` is `sifted`'s, compressed with the header's codec."""
    attributes = header.attributes | (sifted.has_delete_horizon * _HORIZON)
    return assembled(
        header._replace(
            attributes=attributes,
            base_timestamp=sifted.base_timestamp,
            max_timestamp=sifted.max_timestamp,
            record_count=sifted.record_count,
        ),
        body,
    )


def empty_batch(header: BatchHeader) -> bytearray:
    """The batch without records, which keeps its offsets and its producer's sequence."""
    return assembled(
        header._replace(
            attributes=header.attributes & ~(CODEC_MASK | _HORIZON),
            base_timestamp=NO_TIMESTAMP,
            record_count=0,
        ),
        b"",
    )


def _encoded(records: list[_Fields], shift_ms: int) -> bytes:
    out = bytearray()
    for each in records:
        delta = _fit(each.timestamp_delta + shift_ms, "timestamp")
        put_record(out, delta, each.offset_delta, each.key, each.value, put_headers(each.headers))
    return bytes(out)
