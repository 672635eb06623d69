"""What may be asked of topics, what is planned, and which replicas a deletion waits for."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter

import pytest

from kdist.config.addresses import Listener
from kdist.config.load import broker_from
from kdist.config.topic import TopicSettings
from kdist.controller.context import ControllerContext, LiveBroker, Topic
from kdist.controller.deletions import Deletions
from kdist.controller.topics import (
    check_deletable,
    check_once,
    completed,
    find_deletable,
    plan_new_partitions,
    plan_topic,
)
from kdist.errors import Error
from kdist.model import ZERO_UUID, TopicPartition, flat
from kdist.protocol.create_partitions import GrownTopic, NewPartitionAssignment
from kdist.protocol.create_topics import NewTopic, ReplicaAssignment, TopicSetting
from kdist.protocol.delete_topics import TopicToDelete
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.zk.registration import BrokerRegistration
from tests.refusals import refused

GIVEN = {
    "broker.id": "1",
    "log.dir": "/d",
    "listeners": "PLAINTEXT://:9092",
    "zookeeper.connect": "z",
    "num.partitions": "3",
}
CONFIG = broker_from(GIVEN)
CLICKS_ID = uuid.UUID(int=5)


def cluster() -> ControllerContext:
    """Three brokers; topics `clicks` (2 partitions), `a_b`, and `old`, which is being deleted."""
    made = ControllerContext(lambda _: TopicSettings())
    for i in (1, 2, 3):
        listener = Listener("PLAINTEXT", f"host-{i}", 9092)
        made.brokers[i] = LiveBroker(i, 1, BrokerRegistration((), 0), listener)
    ids = {"clicks": CLICKS_ID, "a_b": uuid.UUID(int=6), "old": uuid.UUID(int=7)}
    for name, topic_id in ids.items():
        made.put_topic(Topic(name, topic_id, {0: (3,), 1: (1,)}, 0))
    made.put_topic(Topic("__consumer_offsets", uuid.UUID(int=8), {0: (1,)}, 0))
    made.queue_for_deletion("old")
    return made


TAKEN = {flat(name): name for name in cluster().topics}


def new(
    name: str = "fresh",
    partitions: int = 2,
    factor: int = 1,
    assigned: dict[int, list[int]] | None = None,
    **configs: str | None,
) -> NewTopic:
    return NewTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            ReplicaAssignment(partition_index=i, broker_ids=ids)
            for i, ids in (assigned or {}).items()
        ],
        configs=[TopicSetting(name=k.replace("_", "."), value=v) for k, v in configs.items()],
    )


def grown(name: str, count: int, assignments: list[list[int]] | None = None) -> GrownTopic:
    chosen = [NewPartitionAssignment(broker_ids=ids) for ids in assignments or ()]
    return GrownTopic(name=name, count=count, assignments=chosen if assignments else None)


def create(topic: NewTopic):
    return plan_topic(topic, cluster(), CONFIG, random.Random(1), TAKEN)


FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
CLICKS = Topic("clicks", uuid.UUID(int=1), {0: (1,), 1: (1, 2)}, 0)


def run(scenario) -> None:
    loop = VirtualLoop(VirtualClock())
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


pytestmark = pytest.mark.played(by=run)


def test_a_topic_is_placed_over_the_brokers_with_an_id_and_its_settings() -> None:
    planned = create(new(partitions=6, cleanup_policy="compact"))
    leaders = [replicas[0] for replicas in planned.topic.assignment.values()]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
    assert planned.topic.id.version == 4
    assert planned.configs == {"cleanup.policy": "compact"}


def test_minus_one_means_the_brokers_defaults() -> None:
    planned = create(new(partitions=-1, factor=-1))
    assert [len(replicas) for replicas in planned.topic.assignment.values()] == [1, 1, 1]


@pytest.mark.parametrize(
    ("given", "hosts", "factor"),
    [(None, 1, 1), (None, 2, 2), (None, 3, 3), (None, 5, 3), ("2", 3, 2), ("1", 5, 1)],
)
def test_groups_positions_have_three_replicas_or_as_many_as_there_are_hosts(
    given: str | None, hosts: int, factor: int
) -> None:
    config = CONFIG
    if given is not None:
        config = broker_from(GIVEN | {"offsets.topic.replication.factor": given})
    made = cluster()
    del made.topics["__consumer_offsets"]
    listener = Listener("PLAINTEXT", "host", 9092)
    for i in range(10):
        registration = BrokerRegistration((), 0, host=f"host-{i % hosts}")
        made.brokers[i] = LiveBroker(i, 1, registration, listener)
    topic = completed(new("__consumer_offsets", partitions=-1, factor=-1), config)
    planned = plan_topic(topic, made, config, random.Random(1), {})
    assert {len(each) for each in planned.topic.assignment.values()} == {factor}


def test_groups_positions_are_compacted_whoever_creates_their_topic() -> None:
    made = completed(new("__consumer_offsets", -1, segment_bytes="9000"), CONFIG)
    assert {each.name: each.value for each in made.configs} == {
        "segment.bytes": "9000",
        "cleanup.policy": "compact",
        "compression.type": "producer",
    }
    assert made.num_partitions == CONFIG.groups.offsets_topic_num_partitions
    assert completed(new("clicks"), CONFIG) == new("clicks")


def test_groups_positions_have_as_many_partitions_as_are_assigned() -> None:
    made = completed(new("__consumer_offsets", -1, -1, {0: [1]}), CONFIG)
    assert (made.num_partitions, made.replication_factor) == (-1, -1)


def test_growth_by_other_assignments_than_partitions_says_how_many_there_are() -> None:
    one = NewPartitionAssignment(broker_ids=[2])
    with refused(Error.INVALID_REPLICA_ASSIGNMENT):
        plan_new_partitions(GrownTopic(name="clicks", count=4, assignments=[one]), cluster())


def test_groups_positions_wait_for_as_many_hosts_as_are_asked_for() -> None:
    config = broker_from(GIVEN | {"offsets.topic.replication.factor": "4"})
    made = cluster()
    del made.topics["__consumer_offsets"]
    topic = completed(new("__consumer_offsets", partitions=-1, factor=-1), config)
    with refused(Error.INVALID_REPLICATION_FACTOR):
        plan_topic(topic, made, config, random.Random(1), {})


def test_a_chosen_assignment_is_taken() -> None:
    planned = create(new(partitions=-1, factor=-1, assigned={1: [2], 0: [3]}))
    assert planned.topic.assignment == {0: (3,), 1: (2,)}


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (new(""), Error.INVALID_TOPIC_EXCEPTION),
        (new("a/b"), Error.INVALID_TOPIC_EXCEPTION),
        (new("x" * 250), Error.INVALID_TOPIC_EXCEPTION),
        (new("a.b"), Error.INVALID_TOPIC_EXCEPTION),
        (new("clicks"), Error.TOPIC_ALREADY_EXISTS),
        (new("old"), Error.TOPIC_ALREADY_EXISTS),
        (new(partitions=0), Error.INVALID_PARTITIONS),
        (new(partitions=-2), Error.INVALID_PARTITIONS),
        (new(partitions=2**31 - 1), Error.INVALID_PARTITIONS),
        (new(factor=0), Error.INVALID_REPLICATION_FACTOR),
        (new(factor=9), Error.INVALID_REPLICATION_FACTOR),
        (new(partitions=-1, factor=-1, assigned={0: [1, 1]}), Error.INVALID_REPLICA_ASSIGNMENT),
        (new(assigned={0: [1]}), Error.INVALID_REQUEST),
        (new(partitions=-1, factor=-1, assigned={1: [1]}), Error.INVALID_REPLICA_ASSIGNMENT),
        (new(partitions=-1, factor=-1, assigned={0: [9]}), Error.INVALID_REPLICA_ASSIGNMENT),
        (new(cleanup_policy="burn"), Error.INVALID_CONFIG),
        (new(no_such_setting="1"), Error.INVALID_CONFIG),
        (new(retention_ms=None), Error.INVALID_CONFIG),
    ],
)
def test_a_topic_is_refused_with_its_code(topic: NewTopic, error: Error) -> None:
    with refused(error):
        create(topic)


def test_without_a_broker_alive_no_topic_can_be_placed() -> None:
    with refused(Error.INVALID_REPLICATION_FACTOR):
        plan_topic(
            new(), ControllerContext(lambda _: TopicSettings()), CONFIG, random.Random(1), {}
        )


def test_topics_of_one_request_may_not_collide_either() -> None:
    with refused(Error.INVALID_TOPIC_EXCEPTION):
        plan_topic(new("c_d"), cluster(), CONFIG, random.Random(1), {"e": "e", "c_d": "c.d"})


def test_a_partition_assigned_twice_is_refused() -> None:
    twice = new(partitions=-1, factor=-1, assigned={0: [1]})
    twice.assignments *= 2
    with refused(Error.INVALID_REPLICA_ASSIGNMENT, "twice"):
        create(twice)


def test_growth_keeps_the_old_partitions_and_goes_on_round_the_brokers() -> None:
    after = plan_new_partitions(grown("clicks", 5), cluster())
    assert after.assignment == {0: (3,), 1: (1,), 2: (2,), 3: (3,), 4: (1,)}
    assert after.id == CLICKS_ID


def test_growth_takes_a_chosen_assignment() -> None:
    after = plan_new_partitions(grown("clicks", 4, [[1], [3]]), cluster())
    assert after.assignment == {0: (3,), 1: (1,), 2: (1,), 3: (3,)}


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (grown("nobody", 5), Error.UNKNOWN_TOPIC_OR_PARTITION),
        (grown("old", 5), Error.INVALID_TOPIC_EXCEPTION),
        (grown("__consumer_offsets", 5), Error.INVALID_TOPIC_EXCEPTION),
        (grown("clicks", 2), Error.INVALID_PARTITIONS),
        (grown("clicks", 1), Error.INVALID_PARTITIONS),
        (grown("clicks", 10_001), Error.INVALID_PARTITIONS),
        (grown("clicks", 4, [[1]]), Error.INVALID_REPLICA_ASSIGNMENT),
        (grown("clicks", 3, [[9]]), Error.INVALID_REPLICA_ASSIGNMENT),
        (grown("clicks", 3, [[1, 2]]), Error.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_growth_is_refused_with_its_code(topic: GrownTopic, error: Error) -> None:
    with refused(error):
        plan_new_partitions(topic, cluster())


def test_a_topic_is_found_for_deletion_by_name_or_id_even_if_queued_for_deletion_before() -> None:
    assert find_deletable(TopicToDelete(name="clicks"), cluster()).name == "clicks"
    assert find_deletable(TopicToDelete(topic_id=CLICKS_ID), cluster()).name == "clicks"
    assert find_deletable(TopicToDelete(name="old"), cluster()).name == "old"


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (TopicToDelete(name="nobody"), Error.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicToDelete(topic_id=uuid.UUID(int=99)), Error.UNKNOWN_TOPIC_ID),
        (TopicToDelete(topic_id=ZERO_UUID), Error.INVALID_REQUEST),
        (TopicToDelete(name="clicks", topic_id=CLICKS_ID), Error.INVALID_REQUEST),
        (TopicToDelete(name="__consumer_offsets"), Error.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_a_deletion_is_refused_with_its_code(topic: TopicToDelete, error: Error) -> None:
    with refused(error):
        check_deletable(topic, CONFIG)
        find_deletable(topic, cluster())


def test_a_deletion_is_refused_while_deleting_is_off() -> None:
    off = broker_from(GIVEN | {"delete.topic.enable": "false"})
    with refused(Error.TOPIC_DELETION_DISABLED):
        check_deletable(TopicToDelete(name="clicks"), off)


def test_a_topic_named_twice_in_a_request_is_refused() -> None:
    check_once("a", Counter(["a", "b"]))
    with refused(Error.INVALID_REQUEST):
        check_once("a", Counter(["a", "b", "a"]))


def test_a_topic_is_complete_when_each_broker_has_deleted_each_replica() -> None:
    deletions = Deletions()
    deletions.begin(CLICKS)
    assert deletions.left_on(1) == {FIRST, SECOND}
    deletions.complete_replicas(1, [FIRST])
    deletions.complete_replicas(2, [SECOND])
    assert deletions.complete() == []
    assert deletions.left_on(1) == {SECOND}
    deletions.complete_replicas(1, [SECOND, TopicPartition("other", 0)])
    assert deletions.complete() == ["clicks"]
    deletions.end("clicks")
    assert deletions.complete() == []


async def test_a_waiting_request_is_answered_when_the_topic_is_gone() -> None:
    deletions = Deletions()
    deletions.begin(CLICKS)
    ended = deletions.ended("clicks", frozenset({1, 2}))
    deletions.release_blocked(frozenset({1}))
    assert not ended.done()  # broker 1 may still answer
    deletions.end("clicks")
    await asyncio.wait_for(ended, 1)


async def test_a_deletion_does_not_wait_for_brokers_that_are_down() -> None:
    deletions = Deletions()
    deletions.begin(CLICKS)
    assert deletions.ended("clicks", frozenset({3})).done()
    waiting = deletions.ended("clicks", frozenset({1}))
    deletions.complete_replicas(1, [FIRST, SECOND])
    deletions.release_blocked(frozenset({1}))
    assert waiting.done()


async def test_a_topic_that_is_gone_already_is_not_waited_for() -> None:
    assert Deletions().ended("clicks", frozenset({1})).done()
