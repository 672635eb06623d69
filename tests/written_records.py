"""Records as only tests write and read them: message sets whole, markers, assigned offsets."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kdist.records.batch import LENGTH_PREFIX_SIZE
from kdist.records.control import EndTransactionMarker
from kdist.records.message_set import iter_messages, open_message
from kdist.records.record import Record
from kdist.wire.varint import Buffer


def iter_records(
    buffer: Buffer, size_max: int, *, may_end_partial: bool = False
) -> Iterator[Record]:
    """The records of a message set in order, from wrappers too, of `size_max` bytes at most."""
    for message in iter_messages(buffer, may_end_partial=may_end_partial):
        yield from open_message(message, size_max)


def write_marker(marker: EndTransactionMarker) -> tuple[bytes, bytes]:
    """Key and value of the record that ends a transaction."""
    control_type, coordinator_epoch = marker
    return struct.pack(">hh", 0, control_type), struct.pack(">hi", 0, coordinator_epoch)


def patch(
    buffer: bytearray | memoryview, position: int, *, base_offset: int, leader_epoch: int
) -> None:
    """Write what a leader assigns into the batch at `position`; its CRC covers neither."""
    struct.pack_into(">q", buffer, position, base_offset)
    struct.pack_into(">i", buffer, position + LENGTH_PREFIX_SIZE, leader_epoch)
