"""Groups of kdist's consumers on a real broker of kdist: who reads what, as members come and go.

Members run in threads of this process; librdkafka's are beside them in mixed groups.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer as ForeignConsumer
from confluent_kafka.admin import AdminClient, NewPartitions

from kdist.client.consumer.commits import CommitFailed
from kdist.client.consumer.consumer import Consumer
from kdist.client.consumer.rebalancing import Partitions, RebalanceListener
from tests.integration.consumer_members import HASTY, WAIT_S, Member, create, produce, until
from tests.integration.standalone_process import standalone


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("consumer")) as run:
        yield f"127.0.0.1:{run.port}"


@pytest.fixture
def topic(broker: str, request: pytest.FixtureRequest) -> str:
    name = re.sub("[^a-z0-9]+", "-", request.node.name)
    create(broker, name, 6)
    return name


def test_three_members_share_a_topic_and_every_record_comes(broker: str, topic: str) -> None:
    found: Counter[bytes] = Counter()
    with ExitStack() as stack:
        members = [Member(broker, topic, found) for _ in range(3)]
        for member in members:
            stack.callback(member.stop)
        until(lambda: [member.share for member in members] == [2, 2, 2])
        values = produce(broker, topic, 3000)
        until(lambda: len(found) == len(values))
        members[0].stop()
        until(lambda: sorted(member.share for member in members[1:]) == [3, 3])
        values += produce(broker, topic, 3000, start=3000)
        until(lambda: len(found) == len(values))
    assert set(found) == set(values)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_is_shared_with_librdkafka(broker: str, topic: str, strategy: str) -> None:
    found: Counter[bytes] = Counter()
    foreign = ForeignConsumer(
        {
            "bootstrap.servers": broker,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": strategy,
            "heartbeat.interval.ms": 200,
            "session.timeout.ms": 6000,
        }
    )
    foreign.subscribe([topic])

    def look() -> None:
        for message in foreign.consume(100, 0.05):
            if message.error() is None:
                found[message.value()] += 1

    with ExitStack() as stack:
        stack.callback(foreign.close)
        member = Member(broker, topic, found, partition_assignment_strategy=[strategy])
        stack.callback(member.stop)
        until(lambda: (look(), len(foreign.assignment()) == 3 == member.share)[1])
        values = produce(broker, topic, 2000)
        until(lambda: (look(), len(found) == len(values))[1])
        another = Member(broker, topic, found, partition_assignment_strategy=[strategy])
        stack.callback(another.stop)
        until(lambda: (look(), len(foreign.assignment()) == member.share == another.share == 2)[1])
        values += produce(broker, topic, 2000, start=2000)
        until(lambda: (look(), len(found) == len(values))[1])
    assert set(found) == set(values)


def test_cooperative_members_keep_what_they_have(broker: str, topic: str) -> None:
    events: list[tuple[str, int]] = []

    class Listener(RebalanceListener):
        def on_assigned(self, partitions: Partitions) -> None:
            events.append(("assigned", len(partitions)))

        def on_revoked(self, partitions: Partitions) -> None:
            events.append(("revoked", len(partitions)))

    strategy = ["cooperative-sticky"]
    first = Consumer(broker, group_id=topic, partition_assignment_strategy=strategy, **HASTY)
    with first:
        first.subscribe([topic], Listener())
        until(lambda: (first.poll(0.1), len(first.assignment()) == 6)[1])
        member = Member(broker, topic, Counter(), partition_assignment_strategy=strategy)
        until(lambda: (first.poll(0.1), len(first.assignment()) == 3 == member.share)[1])
        member.stop()
        until(lambda: (first.poll(0.1), len(first.assignment()) == 6)[1])
    gone = [count for event, count in events if event == "revoked"]
    assert gone == [3, 6], events  # half to the other, all at the end


def test_a_pattern_finds_topics_created_later(broker: str, topic: str) -> None:
    produce(broker, topic, 3)
    found: set[bytes] = set()
    with Consumer(broker, group_id=topic, **HASTY) as consumer:
        consumer.subscribe(re.compile(re.escape(topic) + "(-later)?"))
        until(lambda: (found.update(r.value for r in consumer.poll(0.1)), len(found) == 3)[1])
        create(broker, f"{topic}-later", 1)
        produce(broker, f"{topic}-later", 3, start=3)
        until(lambda: (found.update(r.value for r in consumer.poll(0.1)), len(found) == 6)[1])
        assert consumer.subscription() == {topic, f"{topic}-later"}


def test_new_partitions_are_read_too(broker: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    with Consumer(broker, group_id=topic, **HASTY) as consumer:
        consumer.subscribe([topic])
        until(lambda: (consumer.poll(0.1), len(consumer.assignment()) == 6)[1])
        admin.create_partitions([NewPartitions(topic, 8)])[topic].result(20)
        until(lambda: (consumer.poll(0.1), len(consumer.assignment()) == 8)[1])


def test_a_member_that_does_not_poll_loses_its_partitions(broker: str, topic: str) -> None:
    produce(broker, topic, 5, partition=0)
    settings = HASTY | {"group_id": topic, "enable_auto_commit": False}
    lost: list[Partitions] = []

    class Listener(RebalanceListener):
        def on_lost(self, partitions: Partitions) -> None:
            lost.append(partitions)

    with Consumer(broker, max_poll_interval_ms=1_000, **settings) as slow:
        slow.subscribe([topic], Listener())
        assert slow.poll(WAIT_S)
        other = Member(broker, topic, Counter())
        until(lambda: other.share == 6)
        with pytest.raises(CommitFailed):
            slow.commit()
        until(lambda: (slow.poll(0.1), len(slow.assignment()) == 3)[1])
        assert [len(each) for each in lost] == [6]
        other.stop()


def test_a_static_member_comes_back_without_a_rebalance(broker: str, topic: str) -> None:
    other = Member(broker, topic, Counter(), group_instance_id="other")
    settings = HASTY | {"group_id": topic, "group_instance_id": "one"}
    with Consumer(broker, **settings) as consumer:
        consumer.subscribe([topic])
        until(lambda: (consumer.poll(0.1), len(consumer.assignment()) == 3 == other.share)[1])
        mine = consumer.assignment()
        generation = other.consumer._core.membership.generation
    with Consumer(broker, **settings) as consumer:
        consumer.subscribe([topic])
        until(lambda: (consumer.poll(0.1), consumer.assignment() == mine)[1])
    assert other.consumer._core.membership.generation == generation
    other.stop()
