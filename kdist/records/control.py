"""The record of a control batch: the marker by which a transaction ends, and other types' numbers.

    key     int16 version 0, int16 type: 0 abort, 1 commit; brokers of other kinds know more
    value   int16 version 0, int32 epoch of the transaction coordinator that decided

A reader takes longer keys and values of later versions by their first fields. Source: KIP-98.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from kdist.errors import CorruptRecords
from kdist.wire.varint import Buffer

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0


class ControlType(enum.IntEnum):
    """What a control record says. Only the first two end a transaction; a reader skips the rest."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1


class EndTransactionMarker(NamedTuple):
    """The end of a producer's transaction in one partition."""

    control_type: ControlType
    coordinator_epoch: int


def write_marker(marker: EndTransactionMarker) -> tuple[bytes, bytes]:
    """Key and value of the marker's record."""
    assert marker.control_type is not ControlType.UNKNOWN
    key = _KEY.pack(_VERSION, marker.control_type)
    return key, _VALUE.pack(_VERSION, marker.coordinator_epoch)


def read_control_type(key: Buffer | None) -> ControlType:
    """What the control record with this key says; `CorruptRecords` if the key has no type."""
    if key is None or len(key) < _KEY.size:
        raise CorruptRecords("a control record's key is shorter than its version and type")
    version, number = _KEY.unpack_from(key)
    if version < _VERSION:
        raise CorruptRecords(f"a control record's key has version {version}")
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


def read_marker(key: Buffer | None, value: Buffer | None) -> EndTransactionMarker:
    """The marker of an abort or commit record; `CorruptRecords` if it is not one."""
    control_type = read_control_type(key)
    if control_type is ControlType.UNKNOWN:
        raise CorruptRecords("a control record is no end of a transaction")
    if value is None or len(value) < _VALUE.size:
        raise CorruptRecords("a marker's value is shorter than its version and epoch")
    version, coordinator_epoch = _VALUE.unpack_from(value)
    if version < _VERSION:
        raise CorruptRecords(f"a marker's value has version {version}")
    return EndTransactionMarker(control_type, coordinator_epoch)
