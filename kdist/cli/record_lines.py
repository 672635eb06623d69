"""One record as a line and as JSON, control records told apart (pure)."""

from __future__ import annotations

from kdist.cli.show import json_bytes, printable, show_bytes
from kdist.errors import CorruptRecords
from kdist.records.batch import BatchHeader
from kdist.records.control import ControlType, read_control_type, read_marker
from kdist.records.record import Record


def record_text(header: BatchHeader, record: Record) -> str:
    """Key and value, then headers; for a marker what it says."""
    if header.is_control:
        return _control_text(record)
    text = f"{show_bytes(record.key)} -> {show_bytes(record.value)}"
    if record.headers:
        headers = ", ".join(
            f"{printable(key)}={show_bytes(value)}" for key, value in record.headers
        )
        text += f"  [{headers}]"
    return text


def _control_text(record: Record) -> str:
    marker = _marker(record)
    if isinstance(marker, str):
        return marker
    return f"{marker[0]} by coordinator epoch {marker[1]}"


def _marker(record: Record) -> tuple[str, int] | str:
    """Name and coordinator epoch of an end marker, or what else the control record is."""
    try:
        if read_control_type(record.key) is ControlType.UNKNOWN:
            number = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
            return f"control record of type {number}"
        marker = read_marker(record.key, record.value)
    except CorruptRecords as fault:
        return str(fault).partition(": ")[2]
    return marker.control_type.name, marker.coordinator_epoch


def json_record(header: BatchHeader, record: Record) -> dict[str, object]:
    """The record with raw values; `control` only in control batches."""
    row: dict[str, object] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": json_bytes(record.key),
        "value": json_bytes(record.value),
        "headers": [[key, json_bytes(value)] for key, value in record.headers],
    }
    if header.is_control:
        marker = _marker(record)
        if isinstance(marker, str):
            row["control"] = {"type": marker}
        else:
            row["control"] = {"type": marker[0], "coordinator_epoch": marker[1]}
    return row
