"""The znodes of a cluster, Kafka's and kdist's own: one row each, with its path, kind and value.

    BROKER.path(7)               "/brokers/ids/7"
    BROKER.decode(path, data)    a BrokerRegistration, or CorruptZnode with path and reason
    BROKER.encode(registration)  the bytes
    BROKER.names(path)           ("7",), or None if the path is not of this row
    BROKER.read(zk, 7)           the BrokerRegistration in ZooKeeper, or None

Paths are below the chroot. Kafka's own znodes have the bytes that Kafka writes; source: Kafka's
`ZkData.scala` from 0.8 to 3.9 (ZooKeeper mode). docs/formats/znodes.md shows them.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, Self, TypeVar
from urllib.parse import quote, unquote

from kdist.security.acls import ResourceType
from kdist.zk.acl_values import AclChange, ExtendedAclChange, StoredAclEntries
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import CorruptZnode, NoNode
from kdist.zk.fields import to_int32, to_int64
from kdist.zk.registration import BrokerRegistration
from kdist.zk.values import (
    ClusterId,
    ConsumerRegistration,
    ControllerInfo,
    EntitySettings,
    LockHolder,
    PartitionState,
    PreferredElection,
    ProducerIdBlock,
    Reassignment,
    SettingsChange,
    TopicAssignment,
    VettedDisk,
)

T = TypeVar("T")

DEFAULT_ENTITY = "<default>"  # settings of all brokers, clients or users without their own

IMPOSSIBLE = frozenset(("", ".", ".."))  # as names: ZooKeeper has no such znodes
_NAME = re.compile(r"\{[a-z]+\}")


class Kind(enum.Enum):
    """How a znode is created."""

    PERSISTENT = "persistent"
    EPHEMERAL = "ephemeral"
    SEQUENTIAL = "sequential"  # persistent too; the path is a prefix that digits are added to


@dataclass(frozen=True)
class ZnodeRow(Generic[T]):
    """A row of the table. `path` fills in the template's `{names}`, in order."""

    template: str
    kind: Kind
    encode: Callable[[T], bytes]
    decode: Callable[[str, bytes], T]

    def path(self, *names: str | int) -> str:
        """The path with these names; for a sequential znode the prefix to create it with."""
        form, count, is_quoted = self._form
        assert len(names) == count, f"{self.template} of {names}"
        return form % tuple([_escaped(str(name), is_quoted, self.template) for name in names])

    def names(self, path: str) -> tuple[str, ...] | None:
        """The names in a path that `path` made, then a sequential znode's digits; else None."""
        pattern = _NAME.sub("([^/]+)", self.template)
        found = re.fullmatch(pattern + (r"(\d+)" if self._is_sequential else ""), path)
        names = tuple(self._unescaped(name) for name in found.groups()) if found else ()
        return None if not found or IMPOSSIBLE.intersection(names) else names

    async def read(self, zk: ZooKeeper, *names: str | int) -> T | None:
        """The value of the znode with these names; None if there is no znode."""
        path = self.path(*names)
        try:
            return self.decode(path, (await zk.get(path)).data)
        except NoNode:
            return None

    @cached_property
    def _form(self) -> tuple[str, int, bool]:
        """The template, how many names it takes, and whether they are quoted.

        Cached, as the controller makes thousands of paths.
        """
        return *_NAME.subn("%s", self.template), self._is_quoted

    @property
    def parent(self) -> str:
        """The parent of its znodes, for a row with one name or a sequential one."""
        return self.template.rpartition("/")[0] or "/"

    @property
    def _is_sequential(self) -> bool:
        return self.kind is Kind.SEQUENTIAL

    @property
    def _is_quoted(self) -> bool:
        """Below `/config` Kafka quotes names, as user names may contain any character."""
        return self.template.startswith("/config/")

    def _unescaped(self, name: str) -> str:
        return unquote(name) if self._is_quoted else name


def _escaped(name: str, is_quoted: bool, template: str) -> str:
    if is_quoted and name != DEFAULT_ENTITY:
        name = quote(name, safe="").replace("~", "%7E")  # as Java does
    assert name not in IMPOSSIBLE, f"{name!r} cannot be a part of {template}"
    assert "/" not in name, f"{name!r} cannot be a part of {template}"
    return name


class Encoded(Protocol):
    """A value that can encode and decode itself."""

    def encode(self) -> bytes: ...

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self: ...


E = TypeVar("E", bound=Encoded)


def _row(template: str, kind: Kind, value: type[E]) -> ZnodeRow[E]:
    return ZnodeRow(template, kind, value.encode, value.decode)


def _empty(template: str) -> ZnodeRow[None]:
    """A znode of which only the path matters; its data is written empty and ignored."""
    return ZnodeRow(template, Kind.PERSISTENT, lambda _: b"", lambda _path, _data: None)


def _number(template: str, decode: Callable[[str, bytes], int]) -> ZnodeRow[int]:
    """A decimal number, not JSON."""
    return ZnodeRow(template, Kind.PERSISTENT, lambda number: str(number).encode(), decode)


def _text(template: str, kind: Kind) -> ZnodeRow[str]:
    """UTF-8, not JSON."""
    return ZnodeRow(template, kind, str.encode, _decoded)


def _decoded(path: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CorruptZnode(path, f"{data[:40]!r} is not UTF-8") from None


_P, _E, _S = Kind.PERSISTENT, Kind.EPHEMERAL, Kind.SEQUENTIAL

# Brokers. The transaction that created a registration (`Stat.czxid`) is the broker's epoch.
BROKERS = _empty("/brokers/ids")
BROKER = _row("/brokers/ids/{id}", _E, BrokerRegistration)
BROKER_SEQUENCE = _empty("/brokers/seqid")  # each write's version is a new broker id

# Topics
TOPICS = _empty("/brokers/topics")
TOPIC = _row("/brokers/topics/{topic}", _P, TopicAssignment)
PARTITIONS = _empty("/brokers/topics/{topic}/partitions")
PARTITION = _empty("/brokers/topics/{topic}/partitions/{partition}")
PARTITION_STATE = _row("/brokers/topics/{topic}/partitions/{partition}/state", _P, PartitionState)

# The controller; both are written in the transaction that elects it (see `election.py`)
CONTROLLER = _row("/controller", _E, ControllerInfo)
CONTROLLER_EPOCH = _number("/controller_epoch", to_int32)

# The cluster
CLUSTER_ID = _row("/cluster/id", _P, ClusterId)
# A Kafka broker that is the first makes it without data. To make it with empty data, which is not
# the same for Kafka's controller, would keep that from handing out ids.
PRODUCER_ID_BLOCK = _row("/latest_producer_id_block", _P, ProducerIdBlock)

# Dynamic settings
TOPIC_SETTINGS = _row("/config/topics/{topic}", _P, EntitySettings)
BROKER_SETTINGS = _row("/config/brokers/{id}", _P, EntitySettings)
CLIENT_SETTINGS = _row("/config/clients/{client}", _P, EntitySettings)
USER_SETTINGS = _row("/config/users/{user}", _P, EntitySettings)
USER_CLIENT_SETTINGS = _row("/config/users/{user}/clients/{client}", _P, EntitySettings)
IP_SETTINGS = _row("/config/ips/{address}", _P, EntitySettings)
SETTINGS_CHANGES = _empty("/config/changes")
SETTINGS_CHANGE = _row("/config/changes/config_change_", _S, SettingsChange)

# ACLs: of literal patterns, and of prefixes. Kafka does not quote these names.
ACL_TYPE = _empty("/kafka-acl/{type}")
ACLS = _row("/kafka-acl/{type}/{name}", _P, StoredAclEntries)
ACL_CHANGES = _empty("/kafka-acl-changes")
ACL_CHANGE = _row("/kafka-acl-changes/acl_changes_", _S, AclChange)
PREFIXED_ACL_TYPE = _empty("/kafka-acl-extended/prefixed/{type}")
PREFIXED_ACLS = _row("/kafka-acl-extended/prefixed/{type}/{name}", _P, StoredAclEntries)
EXTENDED_ACL_CHANGES = _empty("/kafka-acl-extended-changes")
EXTENDED_ACL_CHANGE = _row("/kafka-acl-extended-changes/acl_changes_", _S, ExtendedAclChange)

# Work for the controller
TOPIC_DELETIONS = _empty("/admin/delete_topics")
TOPIC_DELETION = _empty("/admin/delete_topics/{topic}")
REASSIGNMENT = _row("/admin/reassign_partitions", _P, Reassignment)  # old tools'; a roll waits
PREFERRED_ELECTION = _row("/admin/preferred_replica_election", _P, PreferredElection)  # old tools'
ISR_CHANGES = _empty("/isr_change_notification")
LOG_DIR_EVENTS = _empty("/log_dir_event_notification")

# The old consumer's registry
CONSUMERS = _empty("/consumers")
CONSUMER_IDS = _empty("/consumers/{group}/ids")
CONSUMER_ID = _row("/consumers/{group}/ids/{consumer}", _E, ConsumerRegistration)
CONSUMER_OWNERS = _empty("/consumers/{group}/owners/{topic}")
CONSUMER_OWNER = _text("/consumers/{group}/owners/{topic}/{partition}", _E)  # the consumer's stream
CONSUMER_OFFSETS = _empty("/consumers/{group}/offsets/{topic}")
CONSUMER_OFFSET = _number("/consumers/{group}/offsets/{topic}/{partition}", to_int64)

# kdist's own
VETTED_DISKS = _empty("/kdist/disks")
VETTED_DISK = _row("/kdist/disks/{id}", _P, VettedDisk)  # of the broker with this id
SECRETS = _empty("/kdist/secrets")
SECRET = _text("/kdist/secrets/{name}", _P)  # base64
SCRAM_SECRET = "scram"  # of which salt is made up for names without a credential
DISCONNECTS = _empty("/kdist/disconnects")
DISCONNECT = _text("/kdist/disconnects/disconnect_", _S)  # `User:name`
LOCKS = _empty("/kdist/locks")
# Persistent: a roll holds a lock across many commands, and whoever carries out moves another
# (ops/roll_lock.py).
LOCK = _row("/kdist/locks/{name}", _P, LockHolder)
ROLL_LOCK = "roll"
MOVES_LOCK = "moves"

ROWS: tuple[ZnodeRow[object], ...] = tuple(
    row for row in list(globals().values()) if isinstance(row, ZnodeRow)
)

# Created by a starting broker where missing, in this order, empty and with their parents.
STARTING_PATHS = (
    *(row.path() for row in (CONSUMERS, BROKERS, TOPICS, SETTINGS_CHANGES, TOPIC_DELETIONS)),
    *(row.path() for row in (BROKER_SEQUENCE, ISR_CHANGES, LOG_DIR_EVENTS)),
    *(TOPIC_SETTINGS.parent, CLIENT_SETTINGS.parent, USER_SETTINGS.parent),
    *(BROKER_SETTINGS.parent, IP_SETTINGS.parent, VETTED_DISKS.path(), LOCKS.path()),
    *(SECRETS.path(), DISCONNECTS.path()),
)

# Created too by one that decides by ACLs.
ACL_TYPES = tuple(kind for kind in ResourceType if kind > ResourceType.ANY)
ACL_PATHS = (
    *(row.path(kind.text) for row in (ACL_TYPE, PREFIXED_ACL_TYPE) for kind in ACL_TYPES),
    *(ACL_CHANGES.path(), EXTENDED_ACL_CHANGES.path()),
)
