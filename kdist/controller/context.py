"""The controller context: the cluster's state as ZooKeeper has it, and nothing else.

A change enters here only after it was read from ZooKeeper or written there, so that whatever the
brokers are sent is also what the next controller finds. A partition is in one of four states:

    state          what it is                                what it leaves for
    NON_EXISTENT   not assigned, or completely deleted       assigned: NEW
    NEW            assigned, but no state in ZooKeeper yet   a replica is alive: ONLINE; none is, or
                                                             its topic is being deleted: OFFLINE
    ONLINE         has a leader                              leader changes: ONLINE; nobody may be
                                                             elected, or it is deleted: OFFLINE
    OFFLINE        has no leader; or its topic is            somebody may be elected: ONLINE;
                   queued for deletion                       its znodes are gone: NON_EXISTENT

Source: Apache Kafka's `ControllerContext` and `PartitionStateMachine`.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from kdist.config.addresses import Listener
from kdist.config.topic import TopicSettings
from kdist.errors import KdistError
from kdist.model import NO_EPOCH, NO_LEADER, Broker, LeaderAndIsr, TopicPartition
from kdist.zk.registration import BrokerRegistration
from kdist.zk.values import NOBODY, Replicas, VettedDisk

LEADER_DURING_DELETION = -2
FIRST_ZK_VERSION = 0  # of a znode that was just created


class PartitionState(enum.Enum):
    """A partition's state; the value is its name in log lines."""

    NON_EXISTENT = "non-existent"
    NEW = "new"
    ONLINE = "online"
    OFFLINE = "offline"


NON_EXISTENT, NEW, ONLINE, OFFLINE = PartitionState

ALLOWED: dict[PartitionState, frozenset[PartitionState]] = {
    NON_EXISTENT: frozenset({NEW}),
    NEW: frozenset({ONLINE, OFFLINE}),
    ONLINE: frozenset({ONLINE, OFFLINE}),
    OFFLINE: frozenset({ONLINE, OFFLINE, NON_EXISTENT}),
}


class OutOfDate(KdistError):
    """The controller context no longer matches ZooKeeper: a new term has to load it."""


class TermCrashed(OutOfDate):
    """The controller context can no longer be trusted, as the term met a bug."""


UNKNOWN_DISK = VettedDisk("", None)  # what was noted of it is corrupt; no disk has this id


class Loss(enum.Enum):
    """What a broker may lack of what it had when its replicas were last judged.

    The value is the sentence's part for log lines.
    """

    NOTHING = "nothing"
    UNFLUSHED = "what it had not flushed when its host went down"
    ALL = "everything, as its disk is not the one that was known"


class LiveBroker(NamedTuple):
    """A registered broker; `epoch` is the zxid that created its registration.

    `address` is where other brokers reach it.
    """

    id: int
    epoch: int
    registration: BrokerRegistration
    address: Listener

    @property
    def disk(self) -> VettedDisk | None:
        """Its disk; None if it does not tell, as a broker of Apache Kafka."""
        registration = self.registration
        if registration.disk is None:
            return None
        return VettedDisk(registration.disk, registration.content)

    @property
    def placed(self) -> Broker:
        """The broker as placement sees it: `host` is the machine, not an address."""
        machine = self.registration.host or self.address.host
        return Broker(self.id, machine, self.address.port, self.registration.rack)


class Assigned(NamedTuple):
    """Who has replicas of one partition, and what a move under way changes of it (KIP-455).

    `before` is the assignment before that move, in its order; `removed` are former replicas whose
    brokers have not deleted their logs yet.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the move."""
        return tuple(each for each in self.replicas if each not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas before the move; in another order if a controller of Kafka began it."""
        return self.before or tuple(each for each in self.replicas if each not in self.adding)


class Topic(NamedTuple):
    """A topic with its assigned replicas. `zk_version` is its znode's; the rest as `Assigned`."""

    name: str
    id: uuid.UUID
    assignment: Replicas
    zk_version: int
    adding: Replicas = NOBODY
    removing: Replicas = NOBODY
    before: Replicas = NOBODY
    removed: Replicas = NOBODY

    @property
    def partitions(self) -> list[TopicPartition]:
        """Its partitions, in order."""
        return [TopicPartition(self.name, index) for index in sorted(self.assignment)]

    @property
    def targets(self) -> Replicas:
        """The assignment once all moves are completed."""
        return {index: self.assigned(index).target for index in self.assignment}

    def assigned(self, index: int) -> Assigned:
        """One partition's replicas."""
        rest = (self.adding, self.removing, self.before, self.removed)
        return Assigned(self.assignment[index], *(each.get(index, ()) for each in rest))

    def with_assigned(self, changes: Mapping[int, Assigned]) -> Topic:
        """The topic with some partitions' replicas changed."""
        return self._replace(
            assignment=_changed(self.assignment, {i: e.replicas for i, e in changes.items()}),
            adding=_changed(self.adding, {i: e.adding for i, e in changes.items()}),
            removing=_changed(self.removing, {i: e.removing for i, e in changes.items()}),
            before=_changed(self.before, {i: e.before for i, e in changes.items()}),
            removed=_changed(self.removed, {i: e.removed for i, e in changes.items()}),
        )


def _changed(known: Replicas, changes: Replicas) -> Replicas:
    found = {**known, **changes}
    return {index: found[index] for index in sorted(found) if found[index]}


Index = dict[int, dict[TopicPartition, None]]
"""Partitions by broker; in dicts, as a set would have no order that a seed repeats."""


class Counted(NamedTuple):
    """A partition of a topic that is not being deleted, as the context has it."""

    partition: TopicPartition
    state: LeaderAndIsr | None
    replicas: tuple[int, ...]
    is_moving: bool
    removed: tuple[int, ...]


class Tally:
    """What the controller context adds up to, and which partitions concern a broker.

    Counted and indexed as the context changes: with 200,000 partitions a scrape, or an event of one
    broker, must not go through all of them. Owned by the `ControllerContext`.
    """

    def __init__(self) -> None:
        self.partitions = 0
        self.recovering = 0
        self.offline: dict[TopicPartition, None] = {}  # without a leader
        self.imbalanced: dict[TopicPartition, None] = {}  # not led by the preferred replica
        self.moving: dict[TopicPartition, None] = {}
        self.preferred: dict[int, int] = {}  # how many partitions a broker should lead
        self.removed: Index = {}  # whose logs the broker has yet to delete
        self._concerned: Index = {}
        self._replicas: dict[int, int] = {}  # how many of partitions that have a state

    def add(self, each: Counted) -> None:
        self._count(each, 1)
        for broker_id in _concerned(each):
            self._concerned.setdefault(broker_id, {})[each.partition] = None
        for broker_id in each.removed:
            self.removed.setdefault(broker_id, {})[each.partition] = None
        if each.is_moving:
            self.moving[each.partition] = None

    def remove(self, each: Counted) -> None:
        """Take back an `add` of exactly this."""
        self._count(each, -1)
        for broker_id in _concerned(each):
            _drop(self._concerned, broker_id, each.partition)
        for broker_id in each.removed:
            _drop(self.removed, broker_id, each.partition)
        self.moving.pop(each.partition, None)

    def change_state(self, before: Counted, state: LeaderAndIsr) -> None:
        """As `remove` and `add` with another state, of which mostly little is another."""
        after = before._replace(state=state)
        if before.state is None or _concerned(before) != _concerned(after):
            self.remove(before)
            self.add(after)
        else:
            self.recovering += state.is_recovering - before.state.is_recovering
            self._note_leader(after)

    def concerning(self, broker_ids: Iterable[int]) -> dict[TopicPartition, None]:
        """Partitions that have one of these as replica, leader, ISR member or likewise."""
        found: dict[TopicPartition, None] = {}
        for broker_id in sorted(broker_ids):
            found |= self._concerned.get(broker_id, {})
        return found

    def replicas_by_broker(self) -> dict[int, int]:
        """How many replicas each broker has, of partitions that have a state."""
        return self._replicas

    def _count(self, each: Counted, sign: int) -> None:
        self.partitions += sign
        _add(self.preferred, each.replicas[0], sign)
        if each.state is not None:
            self.recovering += sign * each.state.is_recovering
            for broker_id in each.replicas:
                _add(self._replicas, broker_id, sign)
        self._note_leader(each)
        if sign < 0:
            self.offline.pop(each.partition, None)
            self.imbalanced.pop(each.partition, None)

    def _note_leader(self, each: Counted) -> None:
        leader = NO_LEADER if each.state is None else each.state.leader
        if leader == NO_LEADER:
            self.offline[each.partition] = None
        else:
            self.offline.pop(each.partition, None)
        if each.state is not None and leader != each.replicas[0]:
            self.imbalanced[each.partition] = None
        else:
            self.imbalanced.pop(each.partition, None)


def _concerned(each: Counted) -> Iterable[int]:
    state, replicas = each.state, each.replicas
    if state is None:
        return replicas
    if not (state.eligible or state.emptied or state.lossy) and set(state.isr) <= set(replicas):
        return replicas  # as nearly always; and the leader is in the ISR
    others = (*state.isr, state.leader, *state.eligible, *state.emptied, *state.lossy)
    return dict.fromkeys((*replicas, *others))


def _drop(index: Index, broker_id: int, partition: TopicPartition) -> None:
    """Also where a znode names the broker twice."""
    of_broker = index.get(broker_id, {})
    of_broker.pop(partition, None)
    if not of_broker:
        index.pop(broker_id, None)


def _add(counts: dict[int, int], broker_id: int, number: int) -> None:
    counts[broker_id] = counts.get(broker_id, 0) + number
    if not counts[broker_id]:
        del counts[broker_id]


SettingsOf = Callable[[str], TopicSettings]
"""A topic's effective settings: its own, and the brokers' defaults."""


class ControllerContext:
    """Owned by the term that loaded it; thrown away with it."""

    def __init__(self, settings_of: SettingsOf) -> None:
        self.settings_of = settings_of
        self.brokers: dict[int, LiveBroker] = {}
        self.unreadable: set[str] = set()  # topics whose znodes are corrupt
        self.shutting_down: dict[int, int] = {}  # the broker epochs of those that want to stop
        self.vetted_disks: dict[int, VettedDisk] = {}  # as ZooKeeper has them
        self.tally = Tally()
        self._topics: dict[str, Topic] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._queued_for_deletion: set[str] = set()
        self._states: dict[str, dict[int, LeaderAndIsr]] = {}
        self._vetted: dict[str, dict[int, int]] = {}  # see `bounced`

    @property
    def topics(self) -> Mapping[str, Topic]:
        """All that ZooKeeper has, by name."""
        return self._topics

    @property
    def queued_for_deletion(self) -> Set[str]:
        """Topics that are being deleted."""
        return self._queued_for_deletion

    def topic_with(self, topic_id: uuid.UUID) -> Topic | None:
        """The topic that has this id."""
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    @property
    def alive(self) -> frozenset[int]:
        """The ids of the registered brokers."""
        return frozenset(self.brokers)

    @property
    def electable(self) -> frozenset[int]:
        """The ids of the registered brokers that may lead."""
        return frozenset(filter(self.is_electable, self.brokers))

    def is_electable(self, broker_id: int) -> bool:
        """Whether a broker may lead: it is registered, and not about to stop."""
        broker = self.brokers.get(broker_id)
        # It may want to stop in a registration that is not known yet.
        return broker is not None and self.shutting_down.get(broker_id, NO_EPOCH) < broker.epoch

    def loss(self, broker_id: int) -> Loss:
        """What a live broker may lack, as long as its disk is not in `vetted_disks`."""
        disk, vetted = self.brokers[broker_id].disk, self.vetted_disks.get(broker_id)
        if disk is None or vetted is None:
            return Loss.NOTHING
        if disk.disk != vetted.disk:
            return Loss.ALL
        is_same = None in (disk.content, vetted.content) or disk.content == vetted.content
        return Loss.NOTHING if is_same else Loss.UNFLUSHED

    def has_flushed(self, broker_id: int, partition: TopicPartition) -> bool:
        """Whether a live broker has lost nothing committed of the partition with its page cache, as
        all that its log had exposed was flushed."""
        flushed = self.brokers[broker_id].registration.flushed
        return partition.partition in flushed.get(partition.topic, ())

    def unvetted_disks(self) -> dict[int, VettedDisk]:
        """The disks of live brokers by which partitions have not been judged yet."""
        disks = {i: each.disk for i, each in self.brokers.items()}
        vetted = self.vetted_disks
        return {i: disk for i, disk in disks.items() if disk and disk != vetted.get(i)}

    def replicas(self, partition: TopicPartition) -> tuple[int, ...]:
        """The assigned replicas; none if the partition is not assigned."""
        topic = self.topics.get(partition.topic)
        return topic.assignment.get(partition.partition, ()) if topic else ()

    def min_isr(self, partition: TopicPartition) -> int:
        """The size of the ISR below which nothing more is committed (strict min ISR).

        Invariant: a leader's high watermark stands still while the committed ISR is smaller.
        """
        topic, settings = self.topics.get(partition.topic), self.settings_of(partition.topic)
        adding = topic.adding.get(partition.partition, ()) if topic else ()
        # Those that a move adds are not in sync at first, and are no reason to refuse records.
        return min(settings.min_insync_replicas, len(self.replicas(partition)) - len(adding))

    def leader_and_isr(self, partition: TopicPartition) -> LeaderAndIsr | None:
        """Who leads and is in sync; None if the partition never had a leader."""
        return self._states.get(partition.topic, {}).get(partition.partition)

    def bounced(self, partition: TopicPartition) -> set[int]:
        """Members of the ISR that have registered since it was decided on.

        What they had may be lost, or was cut off. Invariant: of every state, the zxid up to which
        registrations were known when it was decided on; each writer vets all members of the ISR.
        """
        state = self.leader_and_isr(partition)
        if state is None:
            return set()
        vetted, brokers = self._vetted[partition.topic][partition.partition], self.brokers
        return {i for i in state.isr if i in brokers and brokers[i].epoch > vetted}

    def partition_state(self, partition: TopicPartition) -> PartitionState:
        """The partition's state, by the table above."""
        if not self.replicas(partition):
            return NON_EXISTENT
        if partition.topic in self.queued_for_deletion:
            return OFFLINE
        state = self.leader_and_isr(partition)
        if state is None:
            return NEW
        return OFFLINE if state.leader == NO_LEADER else ONLINE

    def living_topics(self) -> Iterator[Topic]:
        """The topics that are not being deleted."""
        queued = self._queued_for_deletion
        return (topic for name, topic in self._topics.items() if name not in queued)

    def partitions(self) -> Iterator[TopicPartition]:
        """The partitions of the topics that are not being deleted."""
        for topic in self.living_topics():
            yield from topic.partitions

    def sorted_partitions(self) -> Iterator[TopicPartition]:
        """As `partitions`, in order. Topics may come and go meanwhile, and may be left out then."""
        for name in sorted(self._topics):
            topic = self._topics.get(name)
            if topic is not None and name not in self._queued_for_deletion:
                yield from topic.partitions

    def is_moving(self, partition: TopicPartition) -> bool:
        """Whether the partition is being moved, and its topic not deleted."""
        topic, index = self.topics.get(partition.topic), partition.partition
        if topic is None or partition.topic in self.queued_for_deletion:
            return False
        return index in topic.assignment and (index in topic.adding or index in topic.removing)

    def moving(self) -> list[TopicPartition]:
        """The partitions that are being moved, of the topics that are not being deleted."""
        return list(self.tally.moving)

    def removed_from(self, broker_id: int) -> list[TopicPartition]:
        """The partitions whose logs the broker has yet to delete, as they were moved away."""
        return list(self.tally.removed.get(broker_id, ()))

    @property
    def newest_registration(self) -> int:
        """The zxid of the newest registration that is known."""
        return max((each.epoch for each in self.brokers.values()), default=0)

    def put_topic(self, topic: Topic, changed: Iterable[int] | None = None) -> None:
        """Take over a topic that ZooKeeper now has; only these partitions' replicas have changed,
        if they are given.
        """
        known = self._topics.get(topic.name)
        indexes = list(changed) if known and changed is not None else None
        if known is not None:
            self._count(known, indexes, self.tally.remove)
            self._names.pop(known.id, None)
        self._topics[topic.name] = topic
        self._names[topic.id] = topic.name
        self._count(topic, indexes, self.tally.add)

    def queue_for_deletion(self, name: str) -> None:
        """The topic is being deleted from now on."""
        if name not in self._queued_for_deletion:
            self._count(self._topics[name], None, self.tally.remove)
            self._queued_for_deletion.add(name)

    def put_state(self, partition: TopicPartition, state: LeaderAndIsr, vetted: int) -> None:
        """Take over a leader and ISR that ZooKeeper now has; for `vetted` see `bounced`."""
        topic, indexes = self._topics[partition.topic], (partition.partition,)
        self._count(topic, indexes, lambda counted: self.tally.change_state(counted, state))
        self._states.setdefault(partition.topic, {})[partition.partition] = state
        self._vetted.setdefault(partition.topic, {})[partition.partition] = vetted

    def _count(
        self, topic: Topic, indexes: Iterable[int] | None, note: Callable[[Counted], None]
    ) -> None:
        """Have the tally note these partitions, or all, unless the topic is being deleted."""
        if topic.name in self._queued_for_deletion:
            return
        states = self._states.get(topic.name, {})
        assignment, removed = topic.assignment, topic.removed
        for index in assignment if indexes is None else indexes:
            if index in assignment:
                counted = Counted(
                    TopicPartition(topic.name, index),
                    states.get(index),
                    assignment[index],
                    index in topic.adding or index in topic.removing,
                    removed.get(index, ()),
                )
                note(counted)

    def lose_state(self, partition: TopicPartition) -> None:
        """The znode of a partition's state is gone; the next state is written to a new one."""
        states = self._states[partition.topic]
        state = states[partition.partition]
        states[partition.partition] = state._replace(zk_version=FIRST_ZK_VERSION - 1)

    def put_states(self, states: Mapping[TopicPartition, LeaderAndIsr]) -> None:
        """Take over states that were decided on with all that is known, and written."""
        vetted = self.newest_registration
        for partition, state in states.items():
            before = self.partition_state(partition)
            self.put_state(partition, state, vetted)
            after = self.partition_state(partition)
            assert after in ALLOWED[before], f"{partition} went from {before} to {after}"

    def drop_topics(self, names: Iterable[str]) -> None:
        """Forget topics that ZooKeeper no longer has."""
        for name in names:
            topic = self._topics.get(name)
            if topic is not None:
                self._count(topic, None, self.tally.remove)
                del self._topics[name]
                self._names.pop(topic.id, None)
            self._states.pop(name, None)
            self._vetted.pop(name, None)
            self._queued_for_deletion.discard(name)
            self.unreadable.discard(name)
