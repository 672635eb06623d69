"""What znodes hold: of topics and partitions, of the controller, settings, consumers and locks.

The layouts are Kafka's (`ZkData.scala`, 0.8 to 3.9); docs/formats/znodes.md shows each. Kafka
writes times and producer ids as strings of digits; JSON numbers are read too. Of topics:

/brokers/topics/<topic>
    version 1, Kafka 0.8    partitions: {"<partition>": [<broker id>, ...]}
    version 2, Kafka 2.4    adding_replicas, removing_replicas: as partitions, during a reassignment
    version 3, Kafka 2.8    topic_id: 16 bytes in base64url without padding
    kdist's own             kdist_before: as partitions, what they were before a reassignment;
                            kdist_removed: former replicas whose logs are to be deleted yet
/admin/reassign_partitions
    version 1, Kafka 0.8    partitions: [{"topic": .., "partition": .., "replicas": [..]}, ...]
/admin/preferred_replica_election
    version 1, Kafka 0.8    partitions: [{"topic": "<topic>", "partition": <partition>}, ...]
/brokers/topics/<topic>/partitions/<partition>/state
    version 1               leader (-1: none), leader_epoch, isr, controller_epoch,
                            leader_recovery_state: 1 after an unclean election, else missing
    kdist's own             kdist_eligible: replicas that may be elected after those of the ISR;
                            kdist_emptied: replicas that must not be, as their disks are new;
                            kdist_lossy: replicas whose page cache was lost, the last that may be
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from kdist.model import LeaderAndIsr, TopicPartition, format_uuid, parse_uuid
from kdist.zk.fields import Fields, fits, to_json

Replicas = Mapping[int, tuple[int, ...]]  # broker ids by partition, the preferred leader first

NOBODY: Replicas = MappingProxyType({})
NO_KRAFT_EPOCH = -1


class TopicAssignment(NamedTuple):
    """A topic's replicas. `topic_id` is None if a broker before Kafka 2.8 created the topic."""

    partitions: Replicas
    topic_id: uuid.UUID | None
    adding: Replicas = NOBODY
    removing: Replicas = NOBODY
    before: Replicas = NOBODY
    removed: Replicas = NOBODY

    def encode(self) -> bytes:
        fields: dict[str, object] = {
            "removing_replicas": _by_text(self.removing),
            "partitions": _by_text(self.partitions),
        }
        if self.topic_id is not None:
            fields["topic_id"] = format_uuid(self.topic_id)
        if self.before:
            fields["kdist_before"] = _by_text(self.before)
        if self.removed:
            fields["kdist_removed"] = _by_text(self.removed)
        return to_json(fields | {"adding_replicas": _by_text(self.adding), "version": 3})

    @classmethod
    def decode(cls, path: str, data: bytes) -> TopicAssignment:
        fields = Fields(path, data)
        fields.version(3)
        assignment = cls(
            fields.integers_by_partition("partitions"),
            _topic_id(fields),
            fields.integers_by_partition("adding_replicas"),
            fields.integers_by_partition("removing_replicas"),
            fields.integers_by_partition("kdist_before"),
            fields.integers_by_partition("kdist_removed"),
        )
        if any(not replicas for replicas in assignment.partitions.values()):
            fields.fail("a partition has no replicas")
        return assignment


class PartitionState(NamedTuple):
    """A partition's leader and ISR, without the znode's version (`with_version` adds it)."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    is_recovering: bool = False  # elected though records may be lost, and not yet recovered
    eligible: tuple[int, ...] = ()
    emptied: tuple[int, ...] = ()
    lossy: tuple[int, ...] = ()

    @classmethod
    def of(cls, state: LeaderAndIsr) -> PartitionState:
        """The state without its znode's version."""
        return cls(
            state.leader,
            state.leader_epoch,
            state.isr,
            state.controller_epoch,
            state.is_recovering,
            state.eligible,
            state.emptied,
            state.lossy,
        )

    def with_version(self, zk_version: int) -> LeaderAndIsr:
        """The state with its znode's version, as the packages above pass it."""
        return LeaderAndIsr(
            self.leader,
            self.leader_epoch,
            self.isr,
            self.controller_epoch,
            zk_version,
            self.eligible,
            self.is_recovering,
            self.emptied,
            self.lossy,
        )

    def encode(self) -> bytes:
        fields: dict[str, object] = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": 1,
            "leader_epoch": self.leader_epoch,
            "isr": self.isr,
        }
        if self.is_recovering:
            fields["leader_recovery_state"] = 1
        if self.eligible:
            fields["kdist_eligible"] = self.eligible
        if self.emptied:
            fields["kdist_emptied"] = self.emptied
        if self.lossy:
            fields["kdist_lossy"] = self.lossy
        return to_json(fields)

    @classmethod
    def decode(cls, path: str, data: bytes) -> PartitionState:
        fields = Fields(path, data)
        return cls(
            leader=fields.required("leader", int),
            leader_epoch=fields.required("leader_epoch", int),
            isr=fields.integers("isr"),
            controller_epoch=fields.required("controller_epoch", int),
            is_recovering=bool(fields.optional("leader_recovery_state", int)),
            eligible=fields.optional_integers("kdist_eligible"),
            emptied=fields.optional_integers("kdist_emptied"),
            lossy=fields.optional_integers("kdist_lossy"),
        )


class PreferredElection(NamedTuple):
    """The partitions that an old tool wants led by their preferred replicas."""

    partitions: tuple[TopicPartition, ...]

    def encode(self) -> bytes:
        named = [{"topic": each.topic, "partition": each.partition} for each in self.partitions]
        return to_json({"version": 1, "partitions": named})

    @classmethod
    def decode(cls, path: str, data: bytes) -> PreferredElection:
        fields = Fields(path, data)
        fields.version(1)
        return cls(tuple(_partition(fields, each) for each in fields.required("partitions", list)))


class Reassignment(NamedTuple):
    """The replicas that an old tool wants partitions to have."""

    targets: Mapping[TopicPartition, tuple[int, ...]]

    def encode(self) -> bytes:
        named = [
            {"topic": each.topic, "partition": each.partition, "replicas": target}
            for each, target in self.targets.items()
        ]
        return to_json({"version": 1, "partitions": named})

    @classmethod
    def decode(cls, path: str, data: bytes) -> Reassignment:
        fields = Fields(path, data)
        fields.version(1)
        found = fields.required("partitions", list)
        return cls({_partition(fields, each): _replicas(fields, each) for each in found})


def _partition(fields: Fields, entry: object) -> TopicPartition:
    named = entry if isinstance(entry, dict) else {}
    topic, partition = named.get("topic"), named.get("partition")
    if not isinstance(topic, str) or type(partition) is not int or not fits(partition):
        fields.fail(f"'partitions' has {entry!r}")
    return TopicPartition(topic, partition)


def _replicas(fields: Fields, entry: dict[str, object]) -> tuple[int, ...]:
    found = entry.get("replicas")
    if not isinstance(found, list) or not all(type(e) is int and fits(e) for e in found):
        fields.fail(f"'partitions' has {entry!r}")
    return tuple(found)


def _topic_id(fields: Fields) -> uuid.UUID | None:
    text = fields.optional("topic_id", str)
    if text is None:
        return None
    found = parse_uuid(text)
    if found is None:
        fields.fail(f"'topic_id' is {text!r} and not 16 bytes in base64url")
    return found


def _by_text(replicas: Replicas) -> dict[str, tuple[int, ...]]:
    return {str(partition): ids for partition, ids in replicas.items()}


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
