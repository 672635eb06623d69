"""Liveness while a part of the cluster stays broken (L1, L2, L4, L5).

Faults that all heal, and at the same time, hide what only a lasting one shows. So in some histories
one host's brokers stay dead, stopped or cut off at first, while the rest, the core, is well. Those
that are out of touch with the other brokers alone keep their sessions, so their leaders have to see
that they fall behind: that is tried with brokers that lead nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from kdist.model import TopicPartition
from kdist.replication.partition import Partition
from tests.simulator.faults import ZOOKEEPER, Faults
from tests.simulator.record import CORE_WAYS, Violation

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
