"""What the context counts and indexes as it changes is what going through all of it would find."""

from __future__ import annotations

import random
import uuid
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kdist.config.addresses import Listener
from kdist.config.topic import TopicSettings
from kdist.controller.context import ControllerContext, LiveBroker, Topic
from kdist.controller.elections import plan_for_broker_change
from kdist.model import NO_LEADER, LeaderAndIsr
from kdist.zk.registration import BrokerRegistration
from kdist.zk.values import VettedDisk
from tests.examples import examples

BROKERS = range(1, 7)
EPOCH = 7


class World:
    """A context that changes at random, as a cluster's may."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = ControllerContext(lambda _: TopicSettings(min_insync_replicas=2))
        self.zxid = 0
        self.cluster.brokers = {i: self.live(i) for i in BROKERS}

    def live(self, broker_id: int) -> LiveBroker:
        self.zxid += 1
        listener = Listener("PLAINTEXT", f"host-{broker_id}", 9092)
        disk = self.rng.choice(["a", "a", "a", "b"])
        registration = BrokerRegistration((), 0, disk=disk, content=self.rng.choice("xy"))
        return LiveBroker(broker_id, self.zxid, registration, listener)

    def some(self, least: int = 1) -> tuple[int, ...]:
        return tuple(self.rng.sample(BROKERS, self.rng.randint(least, 3)))

    def written(self, least: int = 1) -> tuple[int, ...]:
        """As `some`; whoever writes a topic's znode may name a broker twice."""
        found = self.some(least)
        return (*found, *found[:1]) if self.rng.random() < 0.2 else found

    def topic(self) -> None:
        """A topic is created, grows, is moved or written by somebody."""
        name = self.rng.choice("abc")
        known = self.cluster.topics.get(name)
        if name in self.cluster.queued_for_deletion:
            return
        if known is None or self.rng.random() < 0.2:
            assignment = {i: self.written() for i in range(self.rng.randint(1, 4))}
            topic_id = uuid.UUID(int=self.rng.getrandbits(64))
            self.cluster.put_topic(Topic(name, topic_id, assignment, 0))
            return
        index = self.rng.choice(sorted(known.assignment))
        moved = known.assigned(index)._replace(
            replicas=self.written(), adding=self.some(0)[:1], removed=self.written(0)
        )
        self.cluster.put_topic(known.with_assigned({index: moved}), [index])

    def state(self) -> None:
        partitions = list(self.cluster.partitions())
        if partitions:
            partition = self.rng.choice(partitions)
            isr = self.some()
            leader = self.rng.choice([isr[0], isr[0], NO_LEADER])
            rest = {"eligible": self.some(0)[:1], "is_recovering": self.rng.random() < 0.2}
            state = LeaderAndIsr(leader, 3, isr, 1, 5, **rest)
            self.cluster.put_state(partition, state, self.zxid)

    def deletion(self) -> None:
        if self.cluster.topics:
            name = self.rng.choice(sorted(self.cluster.topics))
            self.rng.choice([self.cluster.queue_for_deletion, self.drop])(name)

    def drop(self, name: str) -> None:
        self.cluster.drop_topics([name])

    def settle(self) -> None:
        """All that the brokers, as they are, bring about."""
        for _ in range(3):
            plan = plan_for_broker_change(self.cluster, self.cluster.partitions(), EPOCH)
            self.cluster.put_states(plan)
        self.cluster.vetted_disks.update(self.cluster.unvetted_disks())

    def brokers(self) -> set[int]:
        """Some brokers go, come or register anew; which ones."""
        before = self.cluster.brokers
        after = {i: each for i, each in before.items() if self.rng.random() < 0.7}
        after |= {i: self.live(i) for i in BROKERS if self.rng.random() < 0.2}
        self.cluster.brokers = after
        return {i for i in BROKERS if before.get(i) != after.get(i)}

    def check(self) -> None:
        cluster, tally = self.cluster, self.cluster.tally
        partitions = list(cluster.partitions())
        states = {each: cluster.leader_and_isr(each) for each in partitions}
        assigned = {p: cluster.topics[p.topic].assigned(p.partition) for p in partitions}
        known = {p: state for p, state in states.items() if state is not None}
        assert tally.partitions == len(partitions)
        led = {p for p, state in known.items() if state.leader != NO_LEADER}
        assert {*tally.offline} == {*partitions} - led
        wrong = {p for p, state in known.items() if state.leader != cluster.replicas(p)[0]}
        assert {*tally.imbalanced} == wrong
        assert tally.preferred == Counter(cluster.replicas(p)[0] for p in partitions)
        assert tally.recovering == sum(state.is_recovering for state in known.values())
        assert {*tally.moving} == {p for p, each in assigned.items() if each.is_moving}
        replicas = Counter(i for p in known for i in cluster.replicas(p))
        assert tally.replicas_by_broker() == replicas
        for i in BROKERS:
            assert {*cluster.removed_from(i)} == {p for p in partitions if i in assigned[p].removed}
            assert {p for p in partitions if i in cluster.replicas(p)} <= {*tally.concerning([i])}
            in_isr = {p for p, state in known.items() if i in (*state.isr, state.leader)}
            assert in_isr <= {*tally.concerning([i])} <= {*partitions}
        for topic in cluster.topics.values():
            assert cluster.topic_with(topic.id) == topic


@examples(150)
@given(st.integers(0, 2**32))
def test_counts_and_indexes_follow_every_change(seed: int) -> None:
    world = World(seed)
    for _ in range(60):
        world.rng.choice([world.topic, world.topic, world.state, world.state, world.deletion])()
        world.check()


@examples(150)
@given(st.integers(0, 2**32))
def test_a_change_of_brokers_changes_only_partitions_that_it_concerns(seed: int) -> None:
    world = World(seed)
    for _ in range(20):
        world.rng.choice([world.topic, world.topic, world.state, world.deletion])()
    world.cluster.vetted_disks = {i: VettedDisk("a", "x") for i in BROKERS}
    for _ in range(8):
        world.settle()
        changed = world.brokers()
        plan = plan_for_broker_change(world.cluster, world.cluster.partitions(), EPOCH)
        assert plan.keys() <= world.cluster.tally.concerning(changed).keys()
        world.check()
