"""Transactions in a log that is being cleaned: aborted records go, and markers that end nothing.

An aborted record must not be taken for the last of its key, so they are found before keys are
mapped, by the markers: all are in the log, which is cleaned only below its last stable offset. A
marker goes when no batch of its transaction is left: it gets a delete horizon when a pass first
meets it so, and is removed once that is past, as a tombstone. The rules are Kafka's
(`CleanedTransactionMetadata`).
"""

from __future__ import annotations

from collections.abc import Iterable

from kdist.errors import CorruptRecords
from kdist.model import OffsetRange
from kdist.records.batch import BatchHeader
from kdist.records.build import read_records
from kdist.records.codec import producer_headers
from kdist.records.control import ControlType, read_control_type
from kdist.storage.segment import Segment


class Transactions:
    """Owner: a pass. It is told of each transactional batch and marker, in the log's order."""

    def __init__(self, aborted: dict[int, list[OffsetRange]]) -> None:
        self._aborted = aborted
        self._has_batches: set[int] = set()  # producers whose transaction has one in this pass

    def begin_pass(self) -> None:
        """Begin again at the log's start."""
        self._has_batches.clear()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the batch's transaction was aborted; to be asked of each transactional batch."""
        self._has_batches.add(header.producer_id)
        ranges = self._aborted.get(header.producer_id, ())
        return any(each.start <= header.base_offset < each.end for each in ranges)

    def ends_nothing(self, header: BatchHeader) -> bool:
        """Whether no batch of a marker's transaction is left; to be asked of each marker."""
        is_empty = header.producer_id not in self._has_batches
        self._has_batches.discard(header.producer_id)
        return is_empty


def find_aborted(
    segments: Iterable[Segment],
) -> tuple[dict[int, list[OffsetRange]], dict[int, int]]:
    """The offsets of aborted transactions in these segments, and where open ones began.

    Both by producer id. Headers are read, and the markers. `DamagedSegment`, and `CorruptRecords`
    for a damaged marker.
    """
    starts: dict[int, int] = {}
    aborted: dict[int, list[OffsetRange]] = {}
    for segment in segments:
        for position, span, data in segment.walk_spans(0):
            if not span.has_producers:
                continue
            for place, header in producer_headers(data, span.size, 0):
                if not header.is_control:
                    starts.setdefault(header.producer_id, header.base_offset)
                    continue
                start = starts.pop(header.producer_id, header.base_offset)
                if _is_abort(segment, position + place, header):
                    ended = OffsetRange(start, header.base_offset)
                    aborted.setdefault(header.producer_id, []).append(ended)
    return aborted, starts


def _is_abort(segment: Segment, position: int, header: BatchHeader) -> bool:
    if not header.record_count:  # an earlier pass has removed the marker: it ended nothing
        return False
    try:
        (record,) = read_records(segment.file.read(position, header.size), 0, header)
    except ValueError:
        raise CorruptRecords(f"a control batch has {header.record_count} records") from None
    return read_control_type(record.key) is ControlType.ABORT
