"""Who may be elected by the checker's own reckoning, so that a wrong state excuses no loss.

Members that leave an ISR that is then below its minimum stay eligible, as nothing more is committed
without them. And whoever is elected though he has lost something is so because none of those who
have lost nothing is alive. Both are looked at as ZooKeeper has a new state; the minimum is the
lowest that the topic had lately, since a controller may not know the newest yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise

from kdist.model import NO_LEADER, TopicPartition
from kdist.zk import znodes
from kdist.zk.client import Stat
from kdist.zk.values import PartitionState, TopicAssignment
from tests.simulator.cluster import Cluster
from tests.simulator.record import Trace, require

HEARD_S = 30.0
"""After so long a controller that may write knows of a setting, and of who has registered."""

_MIN_ISR = "min.insync.replicas"


class Electable:
    """Owner: `Copies`."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._cluster: Cluster = trace.cluster
        self._tree = trace.cluster.ensemble.tree
        self._min_isrs: dict[str, list[tuple[int, float]]] = {}  # with the times when they came
        self._written: dict[TopicPartition, int] = {}  # the zxids of the states
        self._hurt: dict[int, tuple[int, bool]] = {}  # brokers, as `note_damage` says

    # What is told

    def note_settings(self, topic: str) -> None:
        """A topic's settings have changed."""
        values = self._min_isrs.setdefault(topic, [])
        since_s = self._trace.now_s - HEARD_S
        while len(values) > 1 and values[1][1] < since_s:
            del values[0]
        values.append((self._min_isr_now(topic), self._trace.now_s))

    def _min_isr_now(self, topic: str) -> int:
        path = znodes.TOPIC_SETTINGS.path(topic)
        settings = {}
        if self._tree.exists(path):
            settings = znodes.TOPIC_SETTINGS.decode(path, self._tree.get(path).data).settings
        return int(settings.get(_MIN_ISR) or self._cluster.settings[_MIN_ISR])

    def note_damage(self, broker_id: int, *, is_disk_new: bool) -> None:
        """A broker has lost what it had not flushed, or all; it may be registered still."""
        stat, (_, was_new) = self._registration(broker_id), self._hurt.get(broker_id, (0, False))
        is_disk_new |= was_new and self.is_hurt(broker_id)
        self._hurt[broker_id] = (stat.czxid if stat else 0), is_disk_new

    def is_hurt(self, broker_id: int) -> bool:
        """Whether a broker has lost something, and the controller may not have judged it yet."""
        if broker_id not in self._hurt:
            return False
        stat = self._registration(broker_id)
        return stat is None or stat.czxid == self._hurt[broker_id][0] or not self._is_known(stat)

    def is_back(self, broker_id: int) -> bool:
        """Whether a broker has registered since it lost something, and the controller knows."""
        stat, (czxid, _) = self._registration(broker_id), self._hurt.get(broker_id, (0, False))
        if stat is None or stat.czxid == czxid:
            return False
        controllers = (e._service and e._service.controller for e in self._cluster.brokers.values())
        terms = [each._term for each in controllers if each and each.is_active and each._term]
        known = [each.cluster.brokers.get(broker_id) for each in terms]
        return bool(known) and all(each and each.epoch == stat.czxid for each in known)

    def hurt(self) -> dict[int, bool]:
        """Such brokers; whether their disks are new."""
        return {each: new for each, (_, new) in self._hurt.items() if self.is_hurt(each)}

    def _registration(self, broker_id: int) -> Stat | None:
        return self._tree.exists(znodes.BROKER.path(broker_id))

    def _is_known(self, stat: Stat) -> bool:
        return stat.created_ms + HEARD_S * 1000 < self._cluster.clock.now_ms()

    # What is required

    def check(
        self,
        key: TopicPartition,
        before: PartitionState,
        after: PartitionState,
        assignment: TopicAssignment,
        hurt: Collection[int],
        alive: Iterable[int],
    ) -> None:
        """`hurt` may have lost something since they were in sync; `alive` are at work."""
        sound = {*before.isr, *before.eligible} - {*hurt}
        kept, is_lossy = {*after.isr, *after.eligible}, before.is_recovering or after.is_recovering
        least = self._least_min_isr(key, assignment)
        staying = {*assignment.partitions.get(key.partition, ())}
        staying -= {*assignment.removing.get(key.partition, ())}
        if len(after.isr) < least and not is_lossy:
            missing = sorted(sound & staying - kept)
            sentence = f"S1: of {key} {missing} have all that is committed, and are not eligible"
            require(not missing, f"{sentence}: {before}, then {after}", key)
            self._trace.count("left an ISR below its minimum", bool({*before.isr} - {*after.isr}))
        written = self._written.get(key, 0)
        self._written[key] = self._tree.get(znodes.PARTITION_STATE.path(*key)).stat.mzxid
        if after.leader_epoch == before.leader_epoch or after.leader == NO_LEADER:
            return
        if kept <= {*hurt}:
            known = {*self.registered()} | {
                each for each in before.isr if self._is_vetted(each, written)
            }
            known &= sound & {*alive} & staying
            sentence = f"S1: {known} are alive, have all of {key}, and m{after.leader} is elected"
            require(not known, f"{sentence}: {before}, then {after}", key)

    def _least_min_isr(self, key: TopicPartition, assignment: TopicAssignment) -> int:
        values = self._min_isrs.get(key.topic) or [(self._min_isr_now(key.topic), 0.0)]
        since_s = self._trace.now_s - HEARD_S
        recent = [each for each, _ in values[-1:]]
        recent += [one[0] for one, two in pairwise(values) if two[1] > since_s]
        count = len(assignment.partitions.get(key.partition, ()))
        return min(*recent, count - len(assignment.adding.get(key.partition, ())))

    def _is_vetted(self, member: int, written: int) -> bool:
        """Who has written a state knew of the registrations of the members that it has then."""
        stat = self._registration(member)
        return stat is not None and stat.czxid < written

    def registered(self) -> Iterator[int]:
        """Those that have been registered for a while."""
        for broker_id in self._cluster.disks:
            stat = self._registration(broker_id)
            if stat is not None and self._is_known(stat):
                yield broker_id
