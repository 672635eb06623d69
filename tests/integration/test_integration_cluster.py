"""Three brokers that stop, restart and die: no record, no topic and no directory is lost.

What is judged is agreement: after all is said, disks, znodes and each broker's metadata are equal.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kazoo.client import KazooClient

from kdist.model import TopicPartition
from kdist.protocol import create_topics, delete_topics
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic
from kdist.protocol.delete_topics import DeleteTopicsRequest
from tests.integration.broker_processes import (
    BRIEF_SESSIONS,
    BrokerProcess,
    broker_processes,
    settled,
)
from tests.integration.fire_cluster import Churn, Held, ask_metadata, differences, on_disk, told_by
from tests.integration.fire_load import PARTITIONS, QUIET, Group, Writing, grown, read_topic
from tests.integration.fire_wire import Wire

STEPS_BETWEEN_KILLS = 25  # topics created or deleted
SETTINGS = {
    "log_segment_delete_delay_ms": "200",
    "auto_create_topics_enable": "false",
    **BRIEF_SESSIONS,
}


@pytest.fixture
def brokers(tmp_path: Path, connect: str) -> Iterator[list[BrokerProcess]]:
    with broker_processes(3, tmp_path, connect, **SETTINGS) as three:
        yield three


@pytest.fixture
def client(connect: str, brokers: list[BrokerProcess]) -> Iterator[KazooClient]:
    """A look at the cluster's znodes; it is made once its root is there."""
    client = KazooClient(connect)
    client.start()
    yield client
    client.stop()
    client.close()


def controller_among(brokers: list[BrokerProcess]) -> BrokerProcess:
    """Whom all of them name, once they name one of them."""

    def named() -> BrokerProcess | None:
        ids = {ask_metadata(broker).controller_id for broker in brokers}
        return next((b for b in brokers if ids == {b.id}), None)

    return settled(named)


def create(brokers: list[BrokerProcess], name: str, partitions: int) -> None:
    new = NewTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    with Wire(controller_among(brokers).port) as wire:
        answer = wire.ask(create_topics.API, 7, CreateTopicsRequest(topics=[new]))
    assert answer.topics[0].error_code == 0, answer


def delete(brokers: list[BrokerProcess], name: str) -> None:
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
    with Wire(controller_among(brokers).port) as wire:
        answer = wire.ask(delete_topics.API, 5, request)
    assert answer.responses[0].error_code == 0, answer


def agree(brokers: list[BrokerProcess], client: KazooClient) -> None:
    """Disks, znodes and every broker come to say the same."""
    last: list[str] = []

    def look() -> bool:
        last[:] = differences(brokers, client)
        return not last

    try:
        settled(look)
    except AssertionError as error:
        raise AssertionError("\n".join(last)) from error


def test_a_broker_that_restarts_under_load_costs_no_record(brokers: list[BrokerProcess]) -> None:
    create(brokers, "busy", PARTITIONS)
    assert {held.broker for held in told_by(brokers[0]).values()} == {1, 2, 3}
    addresses = ",".join(broker.address for broker in brokers)
    writing = Writing(addresses, "busy", True)
    group = Group(addresses, "readers", ["busy"])
    try:
        for broker in brokers:
            grown(writing.acknowledged.values, 500)
            assert broker.stop() == 0
            broker.start()
            grown(writing.acknowledged.values, 500)
    finally:
        writing.stop()
    told = writing.acknowledged
    assert (told.failed, writing.fatal) == ([], [])
    settled(lambda: told.values.keys() <= group.seen["busy"].keys())
    group.stop()
    assert group.refused == []
    assert read_topic(addresses, "busy", {}) == told.values == group.seen["busy"]


@pytest.mark.parametrize(
    ("kills", "seed"),
    [(2, 1), pytest.param(12, 2, marks=[pytest.mark.stress, pytest.mark.timeout(400)])],
)
def test_controllers_that_are_killed_leave_no_topic_half_made_or_half_gone(
    brokers: list[BrokerProcess], client: KazooClient, kills: int, seed: int
) -> None:
    create(brokers, "stays", 12)
    stays = told_by(brokers[0])
    churn = Churn(brokers, seed)
    try:
        for _ in range(kills):
            kill_the_controller(brokers, churn)
        settled(lambda start=churn.done: churn.done > start + STEPS_BETWEEN_KILLS)
    finally:
        churn.stop()
    promises_are_kept(brokers, client, churn)
    found = told_by(brokers[0])
    assert {p: held for p, held in found.items() if p.topic == "stays"} == stays
    sys.stdout.write(
        f"{kills} controllers killed; {churn.created} topics created, {churn.deleted} deleted, "
        f"{churn.unanswered} requests unanswered\n"
    )


def promises_are_kept(brokers: list[BrokerProcess], client: KazooClient, churn: Churn) -> None:
    """All sides agree, and what they agree on is what clients were told."""
    assert not churn.broken, "\n".join(churn.broken)
    agree(brokers, client)
    there = {partition.topic for partition in told_by(brokers[0])}
    for name, exists in churn.exists.items():
        assert exists in (None, name in there), f"{name} was promised to be {exists}"


def kill_the_controller(brokers: list[BrokerProcess], churn: Churn) -> None:
    """In the middle of the stream; it comes back when another has taken over."""
    start = churn.done
    settled(lambda: churn.done > start + STEPS_BETWEEN_KILLS)
    killed = controller_among(brokers)
    killed.stop(signal.SIGKILL)
    left = [broker for broker in brokers if broker is not killed]
    controller_among(left)
    killed.start()


def test_a_frozen_controller_finds_that_it_was_replaced(
    brokers: list[BrokerProcess], client: KazooClient
) -> None:
    churn = Churn(brokers, seed=3)
    try:
        for _ in range(2):
            stop_the_controller_for_a_while(brokers, churn)
        settled(lambda start=churn.done: churn.done > start + STEPS_BETWEEN_KILLS)
    finally:
        churn.stop()
    promises_are_kept(brokers, client, churn)


def stop_the_controller_for_a_while(brokers: list[BrokerProcess], churn: Churn) -> None:
    """Freeze it past its session's end: it wakes up believing that it is the controller."""
    start = churn.done
    settled(lambda: churn.done > start + STEPS_BETWEEN_KILLS)
    paused = controller_among(brokers)
    process = paused._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        left = [broker for broker in brokers if broker is not paused]
        controller_among(left)
    finally:
        process.send_signal(signal.SIGCONT)


def test_a_topic_that_was_deleted_while_its_broker_was_down_is_gone_when_it_is_back(
    brokers: list[BrokerProcess], client: KazooClient
) -> None:
    create(brokers, "gone", 6)
    killed = next(b for b in brokers if b is not controller_among(brokers))
    left = [broker for broker in brokers if broker is not killed]
    killed.stop(signal.SIGKILL)
    settled(lambda: all(len(ask_metadata(broker).brokers) == 2 for broker in left))
    request = DeleteTopicsRequest(topic_names=["gone"], timeout_ms=500)
    with Wire(controller_among(left).port) as wire:
        wire.ask(delete_topics.API, 5, request)  # it may be late: a third of it cannot go yet
    killed.start()
    agree(brokers, client)
    assert told_by(killed) == {}


def test_a_recreated_topic_has_a_new_id_and_nothing_of_the_old_log(
    brokers: list[BrokerProcess], client: KazooClient
) -> None:
    ids = set()
    for round_number in range(3):
        create(brokers, "again", 6)
        produce(brokers, "again", 6, round_number)
        agree(brokers, client)
        held = on_disk(brokers)
        assert held.keys() == {TopicPartition("again", n) for n in range(6)}
        ids |= {each.topic_id for each in held.values()}
        for partition, where in held.items():
            assert first_bytes(brokers, partition, where).count(b"round") == 1
        delete(brokers, "again")
    agree(brokers, client)
    assert on_disk(brokers) == {}
    assert len(ids) == 3


def produce(brokers: list[BrokerProcess], topic: str, partitions: int, number: int) -> None:
    """One record to each partition, as the first one it has."""
    offsets: list[int] = []
    producer = Producer({**QUIET, "bootstrap.servers": brokers[0].address})
    for partition in range(partitions):
        producer.produce(
            topic,
            b"round %d" % number,
            partition=partition,
            on_delivery=lambda _, message: offsets.append(message.offset()),
        )
    assert producer.flush(20) == 0
    assert offsets == [0] * partitions


def first_bytes(brokers: list[BrokerProcess], partition: TopicPartition, held: Held) -> bytes:
    """What the partition's one segment holds."""
    directory = brokers[held.broker - 1].directory / str(partition)
    [segment] = directory.glob("*.log")
    return segment.read_bytes()
