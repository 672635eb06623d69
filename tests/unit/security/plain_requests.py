"""Requests that name one of everything, made from their declarations."""

from __future__ import annotations

import uuid
from typing import Any

from kdist.protocol.api import Api
from kdist.protocol.schema import Shape, WireField, wire_fields
from kdist.records.build import build_batch

KNOWN: dict[str, Any] = {
    "acks": 1,
    "replica_id": -1,
    "replica_state": None,
    "key_type": 0,
    "resource_type": 2,
    "transactional_id": None,
    "topic_id": uuid.UUID(int=0),
    "session_id": 0,
    "session_epoch": -1,
    "forgotten_topics_data": [],
    "partition": 0,
    "num_partitions": 1,
    "replication_factor": 1,
    "assignments": [],
    "endpoint_type": 1,
    "max_bytes": 1 << 20,
    "min_bytes": 1,
    "producer_id": -1,
    "producer_epoch": -1,
    "include_authorized_operations": False,
}
_ZEROS = {"string": "", "bytes": b"", "bool": False, "float64": 0.0, "uuid": uuid.UUID(int=0)}


def plain_request(api: Api, version: int, name: str = "x") -> Any:
    """A request with one entry in each list, which calls every resource by this name."""
    return _struct(api.request, version, name)


def _struct(cls: type[Any], version: int, name: str) -> Any:
    return cls(**{field.name: _field(field, version, name) for field in wire_fields(cls)})


def _field(field: WireField, version: int, name: str) -> Any:
    if not field.is_in(version) or field.tag is not None:
        return [] if field.default == [] else field.default
    if field.name in KNOWN:
        return KNOWN[field.name]
    if field.shape.kind == "record_set":
        return bytes(build_batch([b"v"], timestamp_ms=1_700_000_000_000))
    return _value(field.shape, version, name)


def _value(shape: Shape, version: int, name: str) -> Any:
    if shape.item is not None:
        return [_value(shape.item, version, name)]
    if shape.struct is not None:
        return _struct(shape.struct, version, name)
    return name if shape.kind == "string" else _ZEROS.get(shape.kind, 0)
