"""Several brokers with a real ZooKeeper: partitions spread, brokers stopped, controllers killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.integration.broker_clients import (
    consume,
    controller_of,
    create,
    kcat,
    leaders,
    produce,
)
from tests.integration.broker_processes import BRIEF_SESSIONS, broker_processes, settled
from tests.integration.zookeeper_server import PATIENT_TICK_MS, ZooKeeperHost, zookeeper_host

_numbers = count(1)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperHost]:
    with zookeeper_host(tmp_path_factory.mktemp("zookeeper"), PATIENT_TICK_MS) as host:
        yield host


@pytest.fixture
def own_root(zookeeper: ZooKeeperHost) -> str:
    """A cluster that no other test has."""
    return f"{zookeeper.settings.address}/test{next(_numbers)}"


def test_three_brokers_share_the_partitions_of_a_topic(tmp_path: Path, own_root: str) -> None:
    with broker_processes(3, tmp_path, own_root) as brokers:
        create(brokers[2], "spread", 6)
        assert sorted(leaders(brokers[1], "spread")) == [1, 1, 2, 2, 3, 3]
        produce(brokers[0], "spread", [b"%d" % n for n in range(600)])
        assert len(consume(brokers[2], "spread", 600, "spread")) == 600


def test_a_topic_is_created_on_demand_by_a_broker_that_is_not_the_controller(
    tmp_path: Path, own_root: str
) -> None:
    with broker_processes(2, tmp_path, own_root) as brokers:
        other = next(each for each in brokers if each.id != controller_of(brokers[0]))
        kcat(other, "-P", "-t", "on-demand", given="x")
        assert kcat(other, "-C", "-t", "on-demand", "-o", "beginning", "-e", "-q") == ["x"]


def test_a_broker_that_restarts_leads_its_partitions_again(tmp_path: Path, own_root: str) -> None:
    with broker_processes(2, tmp_path, own_root) as brokers:
        create(brokers[0], "comes-back", 4)
        before = leaders(brokers[0], "comes-back")
        produce(brokers[0], "comes-back", [b"%d" % n for n in range(100)])
        assert brokers[1].stop() == 0
        settled(lambda: -1 in leaders(brokers[0], "comes-back"))
        brokers[1].start()
        settled(lambda: leaders(brokers[0], "comes-back") == before)
        assert len(consume(brokers[1], "comes-back", 100, "g")) == 100


def test_a_broker_that_was_frozen_for_too_long_registers_again(
    tmp_path: Path, own_root: str
) -> None:
    with broker_processes(2, tmp_path, own_root, **BRIEF_SESSIONS) as brokers:
        create(brokers[0], "stands-still", 4)
        before = leaders(brokers[0], "stands-still")
        first = controller_of(brokers[0])
        paused, other = brokers[first - 1], brokers[2 - first]
        paused.process.send_signal(signal.SIGSTOP)
        settled(lambda: controller_of(other) == other.id)
        settled(lambda: -1 in leaders(other, "stands-still"))
        paused.process.send_signal(signal.SIGCONT)
        settled(lambda: leaders(paused, "stands-still") == before)
        settled(lambda: controller_of(paused) == other.id)
        produce(paused, "stands-still", [b"%d" % n for n in range(50)])
        assert paused.stop() == 0


def test_another_broker_takes_over_when_the_controller_is_killed(
    tmp_path: Path, own_root: str
) -> None:
    with broker_processes(3, tmp_path, own_root, **BRIEF_SESSIONS) as brokers:
        first = controller_of(brokers[0])
        killed = brokers[first - 1]
        left = [each for each in brokers if each is not killed]
        create(left[0], "before", 3)
        killed.stop(signal.SIGKILL)
        settled(lambda: controller_of(left[0]) not in (first, -1))
        create(left[0], "after", 4)
        assert set(leaders(left[1], "after")) == {each.id for each in left}
        killed.start()
        settled(lambda: -1 not in leaders(left[0], "before"))
        settled(lambda: leaders(killed, "before") == leaders(left[0], "before"))


def test_a_committed_offset_is_where_it_was_after_its_coordinator_restarted(
    tmp_path: Path, own_root: str
) -> None:
    with broker_processes(2, tmp_path, own_root) as brokers:
        create(brokers[0], "positions", 1)
        produce(brokers[0], "positions", [b"x"] * 10)
        groups = [f"group-{n}" for n in range(6)]
        for group in groups:
            consume(brokers[0], "positions", 10, group)
        for broker in brokers:
            assert broker.stop() == 0
            broker.start()
        asked = [TopicPartition("positions", 0)]
        for group in groups:
            consumer = Consumer({"bootstrap.servers": brokers[1].address, "group.id": group})
            assert consumer.committed(asked, timeout=20)[0].offset == 10
            consumer.close()
