"""A record, or a control record, as a line and as JSON (pure)."""

from __future__ import annotations

from kdist.cli.shared.show import json_bytes, printable, show_bytes
from kdist.errors import CorruptRecords
from kdist.records.batch import BatchHeader
from kdist.records.control import ControlType, read_control_type, read_marker
from kdist.records.record import Record


def record_text(header: BatchHeader, record: Record) -> str:
    """Key and value, then headers; of a control record its type and coordinator epoch."""
    if header.is_control:
        said = _control(record)
        epoch = said.get("coordinator_epoch")
        return str(said["type"]) + ("" if epoch is None else f" by coordinator epoch {epoch}")
    text = f"{show_bytes(record.key)} -> {show_bytes(record.value)}"
    if record.headers:
        headers = ", ".join(
            f"{printable(key)}={show_bytes(value)}" for key, value in record.headers
        )
        text += f"  [{headers}]"
    return text


def _control(record: Record) -> dict[str, object]:
    """`type` and `coordinator_epoch` of a transaction marker.

    For any other control record, `type` says what it is or why it cannot be read.
    """
    try:
        if read_control_type(record.key) is ControlType.UNKNOWN:
            number = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
            return {"type": f"control record of type {number}"}
        marker = read_marker(record.key, record.value)
    except CorruptRecords as fault:
        return {"type": str(fault).partition(": ")[2]}
    return {"type": marker.control_type.name, "coordinator_epoch": marker.coordinator_epoch}


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
        row["control"] = _control(record)
    return row
