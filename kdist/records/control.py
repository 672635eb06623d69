"""The record of a control batch: the marker that ends a transaction.

    key     int16 version 0, int16 type: 0 abort, 1 commit; Kafka has further types
    value   int16 version 0, int32 epoch of the transaction coordinator that decided

Readers accept later versions, whose keys and values may be longer, and read these first fields.
Source: KIP-98.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from kdist.errors import CorruptRecords
from kdist.wire.primitives import Buffer

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0


class ControlType(enum.IntEnum):
    """The type of a control record. Readers skip all but abort and commit."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1


class EndTransactionMarker(NamedTuple):
    """The outcome of a producer's transaction, as written to one of its partitions."""

    control_type: ControlType
    coordinator_epoch: int


def read_control_type(key: Buffer | None) -> ControlType:
    """The type of the control record with this key; `CorruptRecords` if the key is too short."""
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
        raise CorruptRecords("a control record is not a transaction marker")
    if value is None or len(value) < _VALUE.size:
        raise CorruptRecords("a marker's value is shorter than its version and epoch")
    version, coordinator_epoch = _VALUE.unpack_from(value)
    if version < _VERSION:
        raise CorruptRecords(f"a marker's value has version {version}")
    return EndTransactionMarker(control_type, coordinator_epoch)
