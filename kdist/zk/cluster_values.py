"""What ZooKeeper keeps about the cluster: its controller, settings, consumers, locks.

The layouts are Kafka's (`ZkData.scala`, 0.8 to 3.9); docs/formats/znodes.md shows each. Kafka
writes times and producer ids as strings of digits; JSON numbers are read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kdist.zk.fields import Fields, to_json

NO_KRAFT_EPOCH = -1


class ControllerInfo(NamedTuple):
    """The controller's broker id, and the time of its election."""

    broker_id: int
    timestamp_ms: int

    def encode(self) -> bytes:
        return to_json(
            {
                "version": 2,
                "brokerid": self.broker_id,
                "timestamp": str(self.timestamp_ms),
                "kraftControllerEpoch": NO_KRAFT_EPOCH,  # a controller of a ZooKeeper cluster
            }
        )

    @classmethod
    def decode(cls, path: str, data: bytes) -> ControllerInfo:
        fields = Fields(path, data)
        return cls(fields.required("brokerid", int), fields.time_ms())


class ClusterId(NamedTuple):
    """The cluster's id: 22 characters of base64url."""

    id: str

    def encode(self) -> bytes:
        return to_json({"version": "1", "id": self.id})  # a string here, and only here

    @classmethod
    def decode(cls, path: str, data: bytes) -> ClusterId:
        return cls(Fields(path, data).required("id", str))


class VettedDisk(NamedTuple):
    """The disk by which a broker's replicas were last judged, and its content id.

    `content` is None if the broker did not tell it.
    """

    disk: str
    content: str | None

    def encode(self) -> bytes:
        content = {} if self.content is None else {"content": self.content}
        return to_json({"version": 1, "disk": self.disk, **content})

    @classmethod
    def decode(cls, path: str, data: bytes) -> VettedDisk:
        fields = Fields(path, data)
        return cls(fields.required("disk", str), fields.optional("content", str))


class EntitySettings(NamedTuple):
    """Dynamic settings of a topic, broker, client, user or address."""

    settings: Mapping[str, str]

    def encode(self) -> bytes:
        return to_json({"version": 1, "config": dict(self.settings)})

    @classmethod
    def decode(cls, path: str, data: bytes) -> EntitySettings:
        """An empty znode has no settings."""
        return cls(Fields(path, data).texts("config") if data else {})


class SettingsChange(NamedTuple):
    """Whose settings changed: a path below `/config` such as `topics/clicks`, names quoted."""

    entity_path: str

    def encode(self) -> bytes:
        return to_json({"version": 2, "entity_path": self.entity_path})

    @classmethod
    def decode(cls, path: str, data: bytes) -> SettingsChange:
        """Version 1 (Kafka 0.9) names a type and an entity."""
        fields = Fields(path, data)
        if fields.version(2) == 1:
            kind, name = fields.required("entity_type", str), fields.required("entity_name", str)
            return cls(f"{kind}/{name}")
        return cls(fields.required("entity_path", str))


class ProducerIdBlock(NamedTuple):
    """The block of producer ids allocated last, `first` to `last`, and the broker that has it."""

    broker_id: int
    first: int
    last: int

    def encode(self) -> bytes:
        return to_json(
            {
                "version": 1,
                "broker": self.broker_id,
                "block_start": str(self.first),
                "block_end": str(self.last),
            }
        )

    @classmethod
    def decode(cls, path: str, data: bytes) -> ProducerIdBlock:
        fields = Fields(path, data)
        first, last = fields.text_integer("block_start"), fields.text_integer("block_end")
        if not 0 <= first <= last:
            fields.fail(f"a block from {first} to {last}")
        return cls(fields.required("broker", int), first, last)


_BY_BROKER = "kdist_by_broker"  # other consumers ignore this field


class ConsumerRegistration(NamedTuple):
    """A member of an old (ZooKeeper) consumer's group: its number of streams by topic or pattern.

    `goes_by_broker` is kdist's own: whether it can take partitions in the order of their brokers.
    """

    subscription: Mapping[str, int]
    pattern: str  # "static", "white_list" or "black_list"
    timestamp_ms: int
    goes_by_broker: bool = False

    def encode(self) -> bytes:
        return to_json(
            {
                "version": 1,
                "subscription": dict(self.subscription),
                "pattern": self.pattern,
                "timestamp": str(self.timestamp_ms),
                **({_BY_BROKER: 1} if self.goes_by_broker else {}),
            }
        )

    @classmethod
    def decode(cls, path: str, data: bytes) -> ConsumerRegistration:
        fields = Fields(path, data)
        subscription = fields.required("subscription", dict)
        for topic, streams in subscription.items():
            if type(streams) is not int:
                fields.fail(f"{topic!r} has {streams!r} streams")
        by_broker = bool(fields.optional(_BY_BROKER, int))
        return cls(subscription, fields.required("pattern", str), fields.time_ms(), by_broker)


class LockHolder(NamedTuple):
    """Who holds one of kdist's own locks, by which run, since when, and until when.

    Locks of releases before this one have no run and no lease.
    """

    holder: str
    timestamp_ms: int
    run: str = ""
    until_ms: int | None = None

    def encode(self) -> bytes:
        lease = {} if self.until_ms is None else {"run": self.run, "until": str(self.until_ms)}
        known = {"version": 1, "holder": self.holder, "timestamp": str(self.timestamp_ms)}
        return to_json(known | lease)

    @classmethod
    def decode(cls, path: str, data: bytes) -> LockHolder:
        fields = Fields(path, data)
        until_ms = fields.time_ms("until")
        return cls(
            fields.required("holder", str),
            fields.time_ms(),
            fields.optional("run", str) or "",
            None if until_ms < 0 else until_ms,
        )
