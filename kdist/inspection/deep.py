"""Verifying the records in a batch whose header and CRC are good (pure)."""

from __future__ import annotations

from kdist.errors import CorruptRecords
from kdist.model import NO_TIMESTAMP
from kdist.records.build import read_records
from kdist.storage.scan import ScannedBatch


def deep_fault(batch: ScannedBatch) -> str | None:
    """What is wrong with the records of a sound batch; None if nothing is."""
    header = batch.header
    try:
        records = read_records(batch.data, 0, header)
    except CorruptRecords as fault:
        return str(fault).partition(": ")[2]
    if records and records[-1].offset > header.last_offset:
        return (
            f"a record has offset {records[-1].offset}, but the batch ends at {header.last_offset}"
        )
    if header.is_control and not records and header.record_count:
        return "a control batch holds no record"
    largest = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    if largest > header.max_timestamp:
        return f"a record has timestamp {largest}, but the batch says {header.max_timestamp}"
    return None
