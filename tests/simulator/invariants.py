"""What must hold at every moment, seen by one who sees all: memory, disks, ZooKeeper's tree.

Named as in the replication reference, §4.1. Cheap ones are looked at with each write to ZooKeeper,
the others five times a second. `rest.py` has what must hold once nothing goes on any more.

Of S15 is checked that moves end (L6), and that members of the ISR have all that is committed (S3),
not that the end is what was ordered last. S19 and S22 are not: nothing throttles replication, and
nobody coordinates transactions.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from kdist.broker.broker import Broker
from kdist.model import NO_EPOCH, OFFSETS_TOPIC, LeaderAndIsr, TopicPartition
from kdist.replication.leadership import Role, still_leads
from kdist.replication.partition import Partition
from kdist.testing.memory_zookeeper import MemoryZooKeeper
from kdist.zk import znodes
from kdist.zk.client import Check, Operation, WatchEvent
from kdist.zk.values import PartitionState, TopicAssignment
from tests.simulator.copies import Copies
from tests.simulator.machines import Machines
from tests.simulator.record import EVERY_S, NEVER_S, Trace, Violation, require
from tests.simulator.shape import MORTAL, TALLIES, TopicShape

_EPOCH = znodes.CONTROLLER_EPOCH.path()
_CONTROLLERS_OWN = (f"{znodes.TOPICS.path()}/", f"{znodes.TOPIC_DELETIONS.path()}/", _EPOCH)


class Known:
    """What ZooKeeper has told so far of the topics and their leaders. Owner: `Invariants`."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicAssignment] = {}
        self.to_be_deleted: dict[str, None] = {}  # those whose deletion is not finished
        self.deletions = Counter[str]()  # of topics of this name that were asked for
        self.created_s: dict[str, float] = {}  # when the topic that there is now was created
        self.states: dict[TopicPartition, PartitionState] = {}
        self.offsets_leaders: defaultdict[int, list[int]] = defaultdict(list)

    def assignment(self, topic: str) -> TopicAssignment | None:
        """The topic as ZooKeeper has it."""
        return self.topics.get(topic)

    def counts(self) -> dict[str, int]:
        """How many partitions each topic of all clients has that is not being deleted."""
        return {
            name: len(each.partitions)
            for name, each in self.topics.items()
            if name not in (OFFSETS_TOPIC, TALLIES) and name not in self.to_be_deleted
        }


class Invariants:
    """Owner: the history."""

    def __init__(self, trace: Trace, machines: Machines, topics: dict[str, TopicShape]) -> None:
        self._trace = trace
        self._machines = machines
        self._cluster = trace.cluster
        self._tree = trace.cluster.ensemble.tree
        self.known = Known()
        self.copies = Copies(trace, topics, self._is_of_topic)
        # The session that wrote the controller epoch last, and the client whose it was.
        self._elected: tuple[int, MemoryZooKeeper | None] = (0, None)
        # With the role in which each was seen, high watermark and log end.
        self._marks: dict[Partition, tuple[Role, int, int]] = {}
        self._epochs: dict[TopicPartition, int] = {}
        self._controller_epochs: dict[Broker, int] = {}
        self._acting: dict[int, int] = {}  # who acted in a controller epoch
        self.on_check: list[Callable[[Broker], None]] = []  # called with each that is at work
        ensemble = trace.cluster.ensemble
        ensemble.on_written.append(self._on_written)
        ensemble.on_changed.append(self._on_changed)

    async def go_on(self) -> None:
        """Look, again and again, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.check()

    # ZooKeeper

    def _on_written(self, session_id: int, operations: Sequence[Operation]) -> None:
        try:
            for each in operations:
                if each.path == _EPOCH:
                    self._elected = session_id, self._client_of(session_id)
                if each.path.startswith(_CONTROLLERS_OWN) and not isinstance(each, Check):
                    self._check_writer(session_id, each.path)
        except Violation as error:
            self._cluster.loop.end_run(error)

    def _client_of(self, session_id: int) -> MemoryZooKeeper | None:
        clients = self._cluster.zks.values()
        of_it = (each for each in clients if each.session and each.session.id == session_id)
        return next(of_it, None)

    def _check_writer(self, session_id: int, path: str) -> None:
        """It is the last controller; if it has another session meanwhile, nobody came after it."""
        elected_in, elected = self._elected
        is_it = elected_in == session_id or (elected and elected is self._client_of(session_id))
        require(bool(is_it), f"S12: a controller that was replaced has written {path}")

    def _on_changed(self, events: Sequence[WatchEvent]) -> None:
        try:
            for path in dict.fromkeys(event.path for event in events):
                self._look_at(path)
        except Violation as error:
            self._cluster.loop.end_run(error)

    def _look_at(self, path: str) -> None:
        stat = self._tree.exists(path)
        self._trace.add(path, stat and (stat.version, stat.czxid))
        if path == _EPOCH:
            self._trace.note(f"controller epoch {self._tree.get(path).data.decode()}")
            self._trace.count("controller changed", stat is not None and stat.version > 1)
            if self.known.to_be_deleted:
                self._trace.count("controller changed during a deletion")
        elif names := znodes.TOPIC.names(path):
            self._topic_changed(names[0], path, is_there=stat is not None)
        elif names := znodes.TOPIC_DELETION.names(path):
            self._deletion_changed(names[0], is_there=stat is not None)
        elif names := znodes.TOPIC_SETTINGS.names(path):
            self.copies.electable.note_settings(names[0])
        elif names := znodes.PARTITION_STATE.names(path):
            key = TopicPartition(names[0], int(names[1]))
            if stat is None:
                self.known.states.pop(key, None)
            else:
                self._state_changed(key, path)

    def _deletion_changed(self, topic: str, *, is_there: bool) -> None:
        if not is_there:
            self.known.to_be_deleted.pop(topic, None)
            return
        self.known.to_be_deleted[topic] = None
        self.known.deletions[topic] += 1
        found = self.known.topics.get(topic)
        hosts = () if found is None else found.partitions.values()
        is_one_down = any(not self._machines.down.keys().isdisjoint(each) for each in hosts)
        self._trace.count("topic deleted while its broker was down", is_one_down)

    def _topic_changed(self, topic: str, path: str, *, is_there: bool) -> None:
        known = self.known
        if is_there:
            before = known.topics.get(topic)
            known.topics[topic] = after = znodes.TOPIC.decode(path, self._tree.get(path).data)
            is_less = before is not None and len(after.before) < len(before.before)
            self._trace.count("move completed", is_less and bool(after.removed))
        else:
            known.topics.pop(topic, None)
        self._trace.note(f"topic {topic} {'is there' if is_there else 'is gone'}")
        if not is_there:
            self.copies.forget_topic(topic)
            self._trace.count("topic deleted", topic in MORTAL)  # not the probe of `rest.py`
            known.created_s[topic] = NEVER_S
        elif known.created_s.get(topic, NEVER_S) == NEVER_S:
            self._trace.count("topic created again", topic in known.created_s)
            known.created_s[topic] = self._trace.now_s
            for key in [key for key in self._epochs if key.topic == topic]:
                del self._epochs[key]

    def _state_changed(self, key: TopicPartition, path: str) -> None:
        state = znodes.PARTITION_STATE.decode(path, self._tree.get(path).data)
        before = self.known.states.get(key)
        self.known.states[key] = state
        epoch, isr, eligible = state.leader_epoch, state.isr, state.eligible
        self._trace.note(
            f"{key} has leader {state.leader} in epoch {epoch}, ISR {isr}, eligible {eligible}"
        )
        is_new_epoch = before is None or epoch > before.leader_epoch
        if before is not None:
            is_isr_change = (epoch, state.leader) == (before.leader_epoch, before.leader)
            sentence = f"S5: the leader epoch of {key} goes from {before} to {state}"
            require(is_new_epoch or is_isr_change, sentence, key)
            self._trace.count("ISR shrank", is_isr_change and len(isr) < len(before.isr))
            self._trace.count("ISR expanded", is_isr_change and len(isr) > len(before.isr))
            was_eligible = state.leader in before.eligible and state.leader not in before.isr
            self._trace.count("eligible replica elected", was_eligible)
            self._trace.count("recovering leader elected", is_new_epoch and state.is_recovering)
        require(bool(isr), f"S4: the ISR of {key} is empty", key)
        is_led_in_isr = state.leader == -1 or state.leader in isr
        require(is_led_in_isr, f"S4: the leader of {key} is not in the ISR: {state}", key)
        topic = self.known.topics.get(key.topic)
        if topic is not None:
            replicas = topic.partitions.get(key.partition, ())
            is_assigned = {*isr, *eligible} <= {*replicas}
            require(is_assigned, f"S4: {key} is assigned to {replicas}, and has {state}", key)
            self._look_at_members(key, state)
            alive = [each.id for each in self._machines.brokers()]
            self.copies.changed(key, state, topic, alive)
        if key.topic == OFFSETS_TOPIC and state.leader != -1 and is_new_epoch:
            leaders = self.known.offsets_leaders[key.partition]
            leaders.append(epoch)
            self._trace.count("offsets partition loaded again", len(leaders) > 1)

    def _look_at_members(self, key: TopicPartition, state: PartitionState) -> None:
        """S3, of those that are in the ISR now."""
        brokers = self._machines.brokers()
        leader = self._cluster.brokers.get(state.leader)  # first: what it has lost is gone
        if leader is not None and self._machines.is_stopping(leader):
            brokers.append(leader)
        brokers.sort(key=lambda each: each is not leader)
        for broker in brokers:
            found = broker.service.replicas.partitions.get(key)
            if found is not None and broker.id in state.isr and self._is_of_topic(found):
                self.copies.look(broker.id, found)

    def _is_of_topic(self, partition: Partition) -> bool:
        """Whether it is of the topic that has the name now."""
        topic = self.known.topics.get(partition.key.topic)
        is_there = topic is not None and partition.key in self.known.states
        return is_there and topic is not None and partition.topic_id == topic.topic_id

    # Brokers

    def check(self) -> None:
        """Look at every broker now."""
        for broker in self._machines.brokers():
            service = broker.service
            self._check_controller(broker)
            replicas = service.replicas
            before = self._controller_epochs.get(broker, -1)
            require(
                replicas.controller_epoch >= before,
                f"S12: m{broker.id} heard of controller epoch {before}, and goes back",
            )
            self._controller_epochs[broker] = replicas.controller_epoch
            writers = replicas._context.writers
            if writers.thread_until_ns > broker.context.process.clock.monotonic_ns():
                self._trace.count("writer thread used")
            self.look_at(broker)
            for check in self.on_check:
                check(broker)

    def _check_controller(self, broker: Broker) -> None:
        controller = broker.service.controller
        leadership = controller._leadership
        if controller.is_active and leadership is not None:
            other = self._acting.setdefault(leadership.epoch, broker.id)
            require(
                other == broker.id,
                f"S12: m{other} and m{broker.id} are controllers of epoch {leadership.epoch}",
            )

    def look_at(self, broker: Broker) -> None:
        """One broker's replicas, as when it is about to end."""
        for partition in broker.service.replicas.partitions.values():
            self._check_partition(broker.id, partition)

    def _check_partition(self, broker_id: int, partition: Partition) -> None:
        key, log, mark, epoch = (
            *(partition.key, partition.log, partition.high_watermark, partition.leader_epoch),
        )
        start, end = log.start_offset, log.end_offset
        is_in_order = start <= mark <= end and log.recovery_point <= end <= log.reserved_offset
        require(is_in_order, f"S6: {key} on m{broker_id}: {start}, {mark}, {end}", key)
        require(partition.last_stable_offset <= mark, f"S6: {key}: LSO above {mark}", key)
        role, lowest, end_before = self._marks.get(partition, (partition.role, 0, 0))
        require(role.epoch <= epoch, f"S12: m{broker_id} goes back to epoch {epoch} of {key}", key)
        if still_leads(role, partition.role):
            require(mark >= lowest, f"S6: the high watermark of {key} fell to {mark}", key)
            sentence = f"S8: the end of {key} fell from {end_before} to {end}"
            require(end >= end_before, sentence, key)
        # On the word of an earlier leader it may be cut off yet; nobody appends meanwhile.
        self._marks[partition] = partition.role, mark, 0 if log.is_truncating else end
        if not self._is_of_topic(partition):
            return  # it is being deleted
        self.copies.look(broker_id, partition)
        state = self.known.states[key]
        is_known = epoch <= state.leader_epoch
        require(is_known, f"S5: m{broker_id} has epoch {epoch} of {key}, ZooKeeper {state}", key)
        if partition.is_leader and epoch > self._epochs.get(key, -1):
            self._epochs[key] = epoch
            self._trace.note(f"{key} is led by m{broker_id} in epoch {epoch} from {end}")
            if log.reserved_offset > end:
                self._trace.count("leader epoch began during an append")


def require_newer(partition: Partition, state: LeaderAndIsr) -> None:
    """S12: no broker goes back to an earlier state, unless it was told that there is none."""
    before, key = partition.state, partition.key
    ages = [(each.leader_epoch, each.zk_version) for each in (before, state)]
    is_newer = ages[0] <= ages[1] or before.leader_epoch == NO_EPOCH
    require(is_newer, f"S12: {key} goes back from {before} to {state}", key)
