"""Liveness while a part of the cluster stays broken (L1, L2, L4, L5).

Faults that all heal, and at the same time, hide what only a lasting one shows. So in some histories
one host's brokers stay dead, stopped or cut off at first, while the rest, the core, is well. Those
that are out of touch with the other brokers alone keep their sessions, so their leaders have to see
that they fall behind: that is tried with brokers that lead nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import TYPE_CHECKING

from kdist.errors import KdistError
from kdist.model import OFFSETS_TOPIC, TopicPartition
from kdist.replication.partition import Partition
from tests.simulator.faults import ZOOKEEPER, Faults
from tests.simulator.record import CORE_WAYS, Violation
from tests.simulator.shape import TALLIES

if TYPE_CHECKING:
    from tests.simulator.history import History

Fault = tuple[str, TopicPartition | None] | None
"""What is not yet as it is to become, and of which partition."""

_NEVER_S = 1e9  # when those who are lost return
_STARTED_S = 40.0  # by when the core's brokers have stopped, if they were to, and work again


class Core:
    """Owner: the history."""

    def __init__(self, history: History, faults: Faults) -> None:
        self._history = history
        self._faults = faults
        self._machines = history.machines
        self._loop = history.cluster.loop
        rng, hosts = history.cluster.stream("core"), history.shape.hosts
        lost = rng.choice(sorted({*hosts.values()}))
        if alone := sorted({hosts[each] for each in self._alone_in_sync()}):
            sole_rng = history.cluster.stream("core's sole members")
            lost = sole_rng.choice((lost, sole_rng.choice(alone)))
        self._lost = [each for each, host in hosts.items() if host == lost]
        self.ids = {each for each, host in hosts.items() if host != lost}
        self._is_cut = False
        self._is_how = rng.choice(CORE_WAYS)

    async def judge(self) -> None:
        """Raise a violation unless the core gets on; the rest is left as it is."""
        history, shape = self._history, self._history.shape
        if self._is_how == "out of touch":
            await self._until(self._are_started, shape.session_s + _STARTED_S)
        self._choose()
        history.trace.note(f"all is well but that {self._lost} are {self._is_how}")
        history.trace.count(f"a core went on while others were {self._is_how}")
        self._break()
        await self._until(self._are_started, shape.session_s + _STARTED_S)
        # A session ends, a member that is out of sync is seen to be in the next half of the lag.
        await self._until(self._are_led, 2 * shape.session_s + 2 * shape.lag_s + _STARTED_S)
        ends = {each: each.log.end_offset for each in self._led()}
        await self._until(lambda: self._are_committed(ends), shape.lag_s + _STARTED_S)
        await self._allow_elections()

    def _alone_in_sync(self) -> Iterator[int]:
        """Those without whom nobody may lead some partition."""
        for key, state in self._history.known.states.items():
            if len(state.isr) == 1 and not state.eligible and len(self._replicas(key)) > 1:
                yield state.isr[0]

    def _replicas(self, key: TopicPartition) -> tuple[int, ...]:
        topic = self._history.known.topics.get(key.topic)
        return () if topic is None else topic.partitions.get(key.partition, ())

    async def _allow_elections(self) -> None:
        """L1: where an operator says that anybody may lead, somebody does."""
        history, known = self._history, self._history.known
        topics = {each.topic for each in known.states if self._may_be_led(each)}
        topics -= {OFFSETS_TOPIC, TALLIES, *known.to_be_deleted}
        name = "unclean.leader.election.enable"
        for topic in sorted(topics):
            history.copies.will_set(topic, name, "true")
            history.trace.note(f"operator sets {name}=true of {topic}")
            set_it = history.operating.admin.incremental_alter_topic_configs(topic, {name: "true"})
            try:
                await history.operating.process.run(set_it)
            except KdistError as error:  # it may be deleted meanwhile
                history.trace.note(f"operator: {error}")
                topics.remove(topic)
            else:
                history.trace.count("an election was allowed")
        await self._until(partial(self._are_all_led, topics), _STARTED_S)

    def _may_be_led(self, key: TopicPartition) -> bool:
        """Whether nobody leads, and somebody of the core could whose disk is not new."""
        state = self._history.known.states[key]
        found = self._history.copies.of(key)
        emptied = {each for each, is_new in found.suspect.items() if is_new} | {*state.emptied}
        return state.leader not in self.ids and bool({*self._replicas(key)} & self.ids - emptied)

    def _are_all_led(self, topics: Container[str]) -> Fault:
        deleted = self._history.known.to_be_deleted
        for key, state in self._history.known.states.items():
            is_wanted = key.topic in topics and key.topic not in deleted
            if is_wanted and self._may_be_led(key):
                return f"L1: anybody may lead {key}, and it has {state}", key
        return None

    def _choose(self) -> bool:
        """Have those that are to be lost be cut off from ZooKeeper, too, once they lead anything;
        whether that was to be done."""
        if self._is_how != "out of touch" or not self._leads():
            return False
        self._is_how = "cut off"
        return True

    def _leads(self) -> bool:
        """Whether those who are to be lost lead partitions or the cluster."""
        leaders = {each.leader for each in self._history.known.states.values()}
        leaders.add(self._faults.controller())
        return not leaders.isdisjoint(self._lost)

    def _break(self) -> None:
        down = self._machines.down
        match self._is_how:
            case "dead":
                for each in self._lost:
                    self._machines.end(each)
                    down[each] = _NEVER_S
            case "stopped":
                down.update((each, _NEVER_S) for each in self._lost if each in down)
                self._faults.stopped.update(self._lost)
                for each in self._lost:
                    self._history.cluster.processes[each].pause()
            case "cut off" | "out of touch":
                self._cut_off()

    def _cut_off(self) -> None:
        self._is_cut = True
        network = self._history.cluster.network
        for broker_id in self._lost:
            servers = ZOOKEEPER if self._is_how == "cut off" else ()
            for other in (*(f"m{each}" for each in sorted(self.ids)), *servers):
                network.block(f"m{broker_id}", other)
                network.block(other, f"m{broker_id}")

    async def _until(self, look: Callable[[], Fault], within_s: float) -> None:
        end_s = self._loop.time() + within_s
        while found := look():
            if self._choose():  # one that was down then is back, and was elected
                self._history.trace.note(f"{self._lost} lead something, and are cut off")
                end_s = self._loop.time() + within_s
            if self._loop.time() >= end_s:
                raise Violation(f"{found[0]}, with {self._lost} {self._is_how}", found[1])
            self._machines.restart_due(_NEVER_S / 2)
            if self._is_cut:
                self._cut_off()  # again: an earlier fault may have had the network healed
            await asyncio.sleep(0.5)

    def _are_started(self) -> Fault:
        ready = {each.id for each in self._machines.brokers()}
        missing = self.ids - ready
        return (f"L7: {sorted(missing)} do not become ready", None) if missing else None

    def _are_led(self) -> Fault:
        """L1 and L2, of those partitions of which somebody of the core may lead."""
        known = self._history.known
        for key, state in known.states.items():
            if key.topic in known.to_be_deleted:
                continue
            found = self._history.copies.of(key)
            assigned = {*known.topics[key.topic].partitions[key.partition]}
            emptied = {each for each, is_disk_new in found.suspect.items() if is_disk_new}
            able = {*state.isr, *state.eligible} & self.ids - found.damaged.keys() - emptied
            if state.leader not in self.ids:
                if able:
                    return f"L1: {key} may be led by {able}, and has {state}", key
            elif not self._is_whole({*state.isr}, assigned & self.ids):
                return f"L2: {key} is assigned to {assigned}, and has {state}", key
            elif self._leading(key) is None:
                return f"L1: {key} is not led, and has {state}", key
        return None

    def _is_whole(self, isr: set[int], wanted: set[int]) -> bool:
        """Who is out of touch may stay while nothing is written that he lacks."""
        return isr >= wanted if self._is_how == "out of touch" else isr == wanted

    def _leading(self, key: TopicPartition) -> Partition | None:
        for broker in self._machines.brokers():
            found = broker.service.replicas.partitions.get(key)
            if broker.id in self.ids and found is not None and found.is_leader:
                return found
        return None

    def _led(self) -> list[Partition]:
        found = [self._leading(key) for key in self._history.known.states]
        return [each for each in found if each is not None]

    def _may_commit(self, partition: Partition) -> bool:
        """Whether the core's replicas are enough: who is out of touch may be in the ISR still."""
        return len({*partition.replicas} & self.ids) >= partition._min_isr

    def _are_committed(self, ends: dict[Partition, int]) -> Fault:
        """L4 and L5: what was there is committed, so acks=all is answered."""
        for partition, end in ends.items():
            mark, key = partition.high_watermark, partition.key
            is_there = partition.is_leader and key in self._history.known.states
            if is_there and mark < end and self._may_commit(partition):
                return f"L4: {key} ended at {end} a while ago, committed is {mark}", key
        return None
