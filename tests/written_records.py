"""Records as only tests write, read and check them: message sets, markers, any headers, offsets."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from kdist.records.batch import HEADER, LENGTH_PREFIX_SIZE, Batch, read_header, seal
from kdist.records.compression import Codec
from kdist.records.control import EndTransactionMarker
from kdist.records.message_set import Piece, iter_messages, open_message, writing_message_set
from kdist.records.record import Record
from kdist.records.validate import Rules, validating
from kdist.runtime.steps import run_steps
from kdist.wire.primitives import Buffer


def iter_records(
    buffer: Buffer, size_max: int, *, may_end_partial: bool = False
) -> Iterator[Record]:
    """The records of a message set in order, from wrappers too, of `size_max` bytes at most."""
    for message in iter_messages(buffer, may_end_partial=may_end_partial):
        yield from open_message(message, size_max)


def write_message_set(
    records: Sequence[Record],
    magic: int,
    codec: Codec = Codec.NONE,
    *,
    append_time_ms: int | None = None,
) -> bytes:
    """As `writing_message_set`, at once."""
    pieces = [Piece(0, lambda: records)]
    return run_steps(writing_message_set(pieces, magic, codec, append_time_ms=append_time_ms))


def validate(records: Buffer, rules: Rules, *, api_version: int, now_ms: int) -> list[Batch]:
    """As `validating`, at once."""
    return run_steps(validating(records, rules, api_version, now_ms))


def write_marker(marker: EndTransactionMarker) -> tuple[bytes, bytes]:
    """Key and value of the record that ends a transaction."""
    control_type, coordinator_epoch = marker
    return struct.pack(">hh", 0, control_type), struct.pack(">hi", 0, coordinator_epoch)


def with_fields(batch: bytes | bytearray, **fields: int) -> bytearray:
    """The batch with other values in its header, and the right checksum."""
    changed = bytearray(batch)
    HEADER.pack_into(changed, 0, *read_header(batch)._replace(**fields))
    if "crc" not in fields:
        seal(changed, 0, len(changed))
    return changed


def patch(
    buffer: bytearray | memoryview, position: int, *, base_offset: int, leader_epoch: int
) -> None:
    """Write what a leader assigns into the batch at `position`; its CRC covers neither."""
    struct.pack_into(">q", buffer, position, base_offset)
    struct.pack_into(">i", buffer, position + LENGTH_PREFIX_SIZE, leader_epoch)
