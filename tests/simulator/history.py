"""One random history of a cluster: what a seed stands for.

The seed decides the cluster's shape, which faults are on and how often they come, and all that
happens. Each source of randomness has a stream of its own, so that one event less does not shift
the others. While faults go on, `invariants.py` looks for what must never happen; in the end they
stop, and `rest.py` says what must have become true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from kdist.groups.context import partition_for
from kdist.model import OFFSETS_TOPIC, LeaderAndIsr, TopicPartition
from kdist.replication.partition import Partition
from kdist.storage.log import Log
from tests.simulator.aiming import INTERRUPTED, Aiming
from tests.simulator.asking import Asking
from tests.simulator.assignments import Assignments
from tests.simulator.cluster import SETTINGS, Cluster
from tests.simulator.compacting import Tallies, check_limit, draw_compaction
from tests.simulator.contracts import Contracts
from tests.simulator.core import Core
from tests.simulator.faults import CONDITIONS, ZOOKEEPER, Faults
from tests.simulator.forgetting import Forgetting
from tests.simulator.invariants import Invariants, require_newer
from tests.simulator.limits import Limits
from tests.simulator.machines import Machines
from tests.simulator.moments import witnessed
from tests.simulator.moving import Moving
from tests.simulator.nearest import Nearest
from tests.simulator.operating import HOST as OPERATOR
from tests.simulator.operating import Operating
from tests.simulator.probing import HOST as PROBER
from tests.simulator.probing import Probing
from tests.simulator.producing import Producing
from tests.simulator.reading import Group, Reading, Readings
from tests.simulator.record import Outcome, Trace, Violation
from tests.simulator.rest import PATIENCE_S, Rest
from tests.simulator.script import ALL, Script
from tests.simulator.shape import (
    TALLIES,
    TOPIC,
    draw_aims,
    draw_flushes,
    draw_retention,
    draw_shape,
)
from tests.simulator.trespassing import Trespassing
from tests.simulator.trimming import trims_checked
from tests.simulator.zombies import Zombies

LIFE_S_MAX = 1_000


class History:
    """Owner: the loop."""

    def __init__(self, seed: int, script: Script = ALL) -> None:
        cluster = Cluster(seed, servers=ZOOKEEPER)
        self.script = script
        self.seed, self.cluster = seed, cluster
        self._drawing = cluster.stream("shape")
        drawn = draw_shape(self._drawing)
        drawn = draw_compaction(cluster.stream("compacting"), drawn)
        topics = draw_retention(cluster.stream("retention"), drawn.topics)
        topics = draw_flushes(cluster.stream("flushes"), topics)
        aims = draw_aims(cluster.stream("aims"))
        self.shape = shape = drawn._replace(topics=topics, aims=aims)
        cluster.settings |= shape.settings
        cluster.hosts = shape.hosts
        cluster.interrupts_threads = INTERRUPTED in shape.aims
        self.nearest = Nearest(cluster)
        self.limits = Limits(cluster)
        cluster.network.conditions = CONDITIONS
        self.trace = Trace(cluster)
        self.machines = Machines(self.trace, shape.broker_ids, cluster.stream("machines"))
        self.machines.is_skewed = "wrong clock" in shape.kinds
        self.contracts = Contracts(self)
        self.invariants = Invariants(self.trace, self.machines, shape.topics)
        self.invariants.on_check.append(self.contracts.check)
        self.known, self.copies = self.invariants.known, self.invariants.copies
        self.machines.on_ending = self.invariants.look_at
        self.machines.on_damage = self.copies.damage
        self.faults: Faults | None = None  # once they begin
        self.aiming = Aiming(self)
        self.readings = Readings(self)
        self.assignments = Assignments(self)
        self.client_hosts = [OPERATOR, PROBER, "reader"]
        self.producers: list[Producing] = []
        self._hash, self._passed_s = "", 0.0  # once it is over
        self._found: Exception | None = None

    def run(self) -> Outcome:
        """Let it happen."""
        self.cluster.loop.before_time_moves = self._before_time_moves
        try:
            with ExitStack() as stack:
                stack.enter_context(self.limits.applied(self.count))
                stack.enter_context(witnessed(self))
                stack.enter_context(trims_checked(self))
                stack.enter_context(self.contracts.watched())
                stack.enter_context(self.assignments.witnessed())
                self.cluster.run(self._traced())
        except Exception as error:  # noqa: BLE001 - a bug ends the history, and is what it found
            self._end(error)  # unless it came of ending what was left
        found = self._found
        violation = str(found) if isinstance(found, Violation) else repr(found) if found else ""
        last = self.trace.last(getattr(found, "partition", None)) if found else ()
        events, sometimes = tuple(self.trace.events), dict(self.trace.sometimes)
        is_promise = isinstance(found, AssertionError)
        faults = tuple(self.faults.names) if self.faults is not None else ()
        return Outcome(
            *(self.seed, self._hash, violation, is_promise, last),
            *(events, sometimes, faults, self._passed_s),
        )

    def _before_time_moves(self) -> None:
        if self.trace.now_s > LIFE_S_MAX:
            raise Violation("the history does not end")

    async def _traced(self) -> None:
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001 - as above
            self._end(error)
        else:
            self._end(None)

    def _end(self, found: Exception | None) -> None:
        """The history is over, with what it has found; not yet ended is what is left."""
        if not self._hash:
            self._found = found
            self.trace.close()
            self._hash, self._passed_s = self.trace.hash, self.trace.now_s

    async def _run(self) -> None:
        machines = self.machines
        for each in self.shape.broker_ids:
            machines.start(each)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*machines.starting.values())
            self.operating = Operating(self)
            await self.operating.start()
        looking = self.cluster.loop.create_task(self.invariants.go_on())
        happening = self.cluster.loop.create_task(self._happen())
        await asyncio.wait((looking, happening), return_when=asyncio.FIRST_COMPLETED)
        if looking.done():
            looking.result()
        happening.result()
        looking.cancel()

    async def _happen(self) -> None:
        for number in range(self.shape.producers):
            self.client_hosts.append(f"p{number}")
            self.producers.append(Producing(self, number, self._drawing))
        self.reader = Reading(self, "reader", None)
        self.group = Group(self)
        self.probing = Probing(self)
        self.forgetting = Forgetting(self)
        self.tallies = Tallies(self)
        self.zombies = Zombies(self)
        self.asking = Asking(self)
        self.trespassing = Trespassing(self)
        faults = self.faults = Faults(self)
        self.moving = Moving(self)
        self.operating.begin()
        self.moving.begin()
        await faults.go_on()
        if self.shape.has_core:
            faults.calm()
            await Core(self, faults).judge()
        try:
            async with asyncio.timeout(2 * PATIENCE_S):
                await faults.end()
        except TimeoutError:
            raise Violation("L7: the brokers do not become ready") from None
        await Rest(self).judge()
        self.trace.count("answer lost after effect", self.cluster.ensemble.answers_lost)
        for broker in self.machines.brokers():
            self.trace.harvest(broker)

    # What the clients share

    def stable_partitions(self) -> list[TopicPartition]:
        """Those of the topic that stays."""
        count = self.known.counts().get(TOPIC, 0)
        return [TopicPartition(TOPIC, number) for number in range(count)]

    def trimmed(self, key: TopicPartition, start_offset: int) -> None:
        """Records were deleted: nobody will be given those."""
        self.trace.add(key, start_offset)

    # What the code's moments tell (`moments.Witness`)

    def count(self, state: str, times: int = 1) -> None:
        self.trace.count(state, times)

    def advanced(self, partition: Partition, before: int) -> None:
        self.checked(self.copies.advanced, partition, before)

    def changing_state(self, partition: Partition, state: LeaderAndIsr) -> None:
        self.checked(require_newer, partition, state)

    def proposing(self, partition: Partition, isr: Sequence[int]) -> None:
        self.checked(self.copies.proposing, partition, isr)
        leader = partition._context.broker_id
        for each in isr:
            if each not in partition.state.isr:
                self.aiming.joining(leader, each)

    def truncating(self, partition: Partition, offset: int) -> None:
        self.trace.count("follower truncates")
        self.checked(self.copies.truncating, partition, offset)
        self.aiming.truncating(partition)
        broker = self.cluster.brokers[partition._context.broker_id]
        under_way = broker.service.cleaner._pass
        is_met = under_way is not None and under_way.log is partition.log
        self.trace.count("truncated during a pass", is_met)

    def loading(self, partition: Partition) -> None:
        if self.faults is not None and self.faults.is_on:
            self.trespassing.loading(partition.key)

    def swapping(self, log: Log, mapped_end: int, merged: int) -> None:
        """A cleaner is about to exchange so many segments for one."""
        self.trace.count("segment cleaned")
        for broker in self.machines.brokers():
            found = broker.service.replicas.partitions.get(log.partition)
            if found is not None and found.log is log:
                self.checked(check_limit, found, log, mapped_end)
                self.is_fragile(broker.id, "a clean")
                if self.faults is not None:
                    leads = found.is_leader and found.key.topic == TALLIES
                    others = [each for each in found.replicas if leads and each != broker.id]
                    self.faults.cleaning(broker.id, log.directory, merged, others)

    def believed_in_sync(self, key: TopicPartition) -> None:
        """A broker takes all replicas for in sync, so tombstones may go; it may not be true."""
        state, topic = self.known.states.get(key), self.known.topics.get(key.topic)
        assigned = () if topic is None else topic.partitions.get(key.partition, ())
        if state is None or {*assigned} - {*state.isr}:
            self.copies.of(key).may_come_back()

    def is_fragile(self, broker_id: int, moment: str) -> None:
        if self.faults is not None:
            self.faults.maybe_strike(broker_id, moment)

    def checked(self, check: Callable[..., None], *given: object) -> None:
        """In a broker's code a violation might be taken for a bug of one request."""
        try:
            check(*given)
        except Violation as error:
            self.cluster.loop.end_run(error)

    # What may be gone

    def may_be_lost(
        self, key: TopicPartition, since_s: float, offset: int | None = None, acks: str = "all"
    ) -> bool:
        """Whether power losses and new disks may have taken what was written at a time."""
        if acks == "all":
            return self.copies.may_be_lost(key, since_s, offset)
        return self.copies.may_be_lost_uncommitted(key, since_s)

    def may_offsets_be_lost(self, group: str, since_s: float) -> bool:
        """The same of what was committed for a group."""
        return self.may_be_lost(offsets_partition_of(group), since_s)

    def offsets_log(self, group: str) -> Partition | None:
        """The partition with a group's offsets at its leader, if that is at work."""
        key = offsets_partition_of(group)
        state = self.known.states.get(key)
        for broker in self.machines.brokers():
            if state is not None and broker.id == state.leader:
                return broker.service.replicas.partitions.get(key)
        return None


def offsets_partition_of(group: str) -> TopicPartition:
    """The partition with what a group has committed."""
    count = int(SETTINGS["offsets.topic.num.partitions"])
    return TopicPartition(OFFSETS_TOPIC, partition_for(group, count))
