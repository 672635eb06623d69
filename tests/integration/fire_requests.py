"""A valid request for each API and version, of things that exist, so that its handler goes deep.

Fields are filled by name. What would change what others rely on is kept from that: topics are only
validated or deleted in vain, and controllers' requests come from an epoch that is over.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kdist.model import ZERO_UUID
from kdist.protocol import find_coordinator
from kdist.protocol.api import Api
from kdist.protocol.create_partitions import GrownTopic
from kdist.protocol.create_topics import NewTopic
from kdist.protocol.schema import Shape, WireField, wire_fields
from kdist.protocol.versions import TABLE
from kdist.records.build import build_batch
from kdist.records.message_set import Message, write_message
from tests.integration.fire_wire import request_frame

TOPIC, GROUP = "hostile", "hostile-group"
_NEWEST_OF_MESSAGE_SETS = 2  # of Produce; from then on record batches
_FIRST_OF_COORDINATOR_KEYS = 4  # of FindCoordinator, which then has no key
_NOW_MS = 1_700_000_000_000

_TEXTS = {
    "group_id": GROUP,
    "groups": GROUP,
    "key": GROUP,
    "coordinator_keys": GROUP,
    "protocol_type": "consumer",
    "protocol_name": "range",
    "topic_names": "never-was",
    "groups_names": "never-was",
    "configuration_keys": "flush.messages",
    "value": "1000",
    "states_filter": "Stable",
}
_NUMBERS = {
    "controller_epoch": 0,  # epochs begin with 1
    "broker_epoch": 7,
    "broker_id": 1 << 30,
    "num_partitions": 1,
    "count": 2,
    "replication_factor": 1,
    "timeout_ms": 100,
    "max_wait_ms": 10,
    "session_timeout_ms": 300,
    "rebalance_timeout_ms": 300,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "max_num_offsets": 1,
    "acks": -1,
    "session_epoch": -1,
    "generation_id": -1,
    "timestamp": -1,
    "current_leader_epoch": -1,
    "producer_id": -1,
    "producer_epoch": -1,
    "replica_id": -1,
    "retention_time_ms": -1,
    "commit_timestamp": -1,
    "resource_type": 2,  # a topic
    "endpoint_type": 1,  # brokers
    "config_operation": 0,  # set
}
_NAMES_OF_STRUCTS = {
    "NewTopic": "never-made",
    "TopicToDelete": "never-was",
    "TopicSetting": "retention.ms",
    "JoinGroupProtocol": "range",
    "ReplacingSetting": "flush.messages",
    "SettingChange": "flush.messages",
}


def all_frames() -> list[tuple[Api, int, bytes]]:
    """Each API and version with its request, size included."""
    return [
        (api, version, valid_frame(api, version))
        for api in TABLE
        for version in range(api.oldest, api.newest + 1)
    ]


def valid_frame(api: Api, version: int, text: str | None = None) -> bytes:
    """A request that can be answered without an error, or nearly; `text` stands for all names."""
    request = _Filler(version, text).struct(api.request)
    if api is find_coordinator.API and version >= _FIRST_OF_COORDINATOR_KEYS:
        request.key = ""
    return request_frame(api, version, request)


class _Filler(NamedTuple):
    """Fills the fields that a version has."""

    version: int
    text: str | None

    def struct(self, cls: type[Any]) -> Any:
        return cls(**{field.name: self.field(cls, field) for field in wire_fields(cls)})

    def field(self, cls: type[Any], field: WireField) -> Any:
        if not field.is_in(self.version) or field.tag is not None:
            return [] if field.default == [] else field.default
        if field.name == "assignments" and cls in (NewTopic, GrownTopic):
            return [] if cls is NewTopic else None
        if field.name in ("transactional_id", "group_instance_id"):
            return None
        if field.name == "name" and self.text is None and cls.__name__ in _NAMES_OF_STRUCTS:
            return _NAMES_OF_STRUCTS[cls.__name__]
        return self.value(field.name, field.shape)

    def value(self, name: str, shape: Shape) -> Any:
        if shape.item is not None:
            return [self.value(name, shape.item)]
        if shape.struct is not None:
            return self.struct(shape.struct)
        if shape.kind == "string":
            usual = _TEXTS.get(name, "" if name == "member_id" else TOPIC)
            return usual if self.text is None else self.text
        if shape.kind == "bool":
            return name == "validate_only"
        if shape.kind == "uuid":
            return ZERO_UUID
        if name == "records":
            return _records(self.version)
        if "float" in shape.kind:
            return 1.0
        return _NUMBERS.get(name, 0) if "int" in shape.kind else b"\0\0"


def _records(version: int) -> bytes:
    if version <= _NEWEST_OF_MESSAGE_SETS:
        magic = min(version, 1)
        return write_message(*Message(0, magic, 0, _NOW_MS if magic else -1, b"key", b"value"))
    return bytes(build_batch([b"value"], [b"key"], timestamp_ms=_NOW_MS))
