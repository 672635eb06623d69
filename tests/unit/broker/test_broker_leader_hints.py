"""Leader hints (KIP-951): a broker that is asked wrongly says whom to ask, on either path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol import fetch, produce
from kdist.protocol.fetch import CurrentLeader, NodeEndpoint
from kdist.protocol.frame import decode_response
from kdist.protocol.leader_and_isr import FULL
from kdist.protocol.update_metadata import (
    Endpoint,
    LiveBroker,
    UpdatedPartition,
    UpdatedTopic,
    UpdateMetadataRequest,
)
from tests.unit.broker.broker_fetches import Asked, Connection
from tests.unit.broker.broker_fetches import Broker as FetchedBroker
from tests.unit.broker.broker_produces import Broker as ProducedBroker
from tests.unit.broker.broker_produces import Peer, frame_of
from tests.unit.replication.replication_world import CLICKS, VIEWS, batch, topic_id_of

PLAIN = NodeEndpoint(node_id=2, host="two", port=92, rack="b")


def metadata(leader: int, epoch: int, *keys: TopicPartition) -> UpdateMetadataRequest:
    """Broker 2 has a plain listener, broker 3 only an inner one."""
    return UpdateMetadataRequest(
        controller_id=1,
        type=FULL,
        controller_epoch=1,
        topic_states=[
            UpdatedTopic(
                topic_name=key.topic,
                topic_id=topic_id_of(key.topic),
                partition_states=[
                    UpdatedPartition(
                        partition_index=key.partition,
                        controller_epoch=1,
                        leader=leader,
                        leader_epoch=epoch,
                        isr=[leader],
                        zk_version=0,
                        replicas=[1, 2, 3],
                    )
                ],
            )
            for key in keys
        ],
        live_brokers=[
            LiveBroker(id=2, endpoints=[endpoint("PLAINTEXT", "two", 92)], rack="b"),
            LiveBroker(id=3, endpoints=[endpoint("INNER", "three", 93)]),
        ],
    )


def endpoint(listener: str, host: str, port: int) -> Endpoint:
    return Endpoint(port=port, host=host, listener=listener, security_protocol=0)


# --- which leader ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "known", "expected"),
    [
        ((2, 4), (3, 3), (2, 4)),  # this broker was told as a replica before it got the metadata
        ((2, 4), (3, 5), (3, 5)),
        ((2, 4), (-1, 5), None),
        ((1, 4), (3, 3), (1, 4)),
        (None, (3, 5), (3, 5)),
        (None, None, None),
    ],
)
def test_the_leader_of_the_newest_epoch_is_named(
    told: tuple[int, int] | None, known: tuple[int, int] | None, expected: tuple[int, int] | None
) -> None:
    broker = FetchedBroker()
    if told is not None:
        broker.tell(leader=told[0], leader_epoch=told[1], replicas=[1, 2])
    if known is not None:
        broker.cache.update(metadata(*known, CLICKS))
    hint = broker.handler.hints.leader_of(CLICKS)
    assert (hint and (hint.leader_id, hint.leader_epoch)) == expected


def test_a_broker_that_has_resigned_does_not_name_itself() -> None:
    broker = FetchedBroker()
    broker.lead()
    broker.cache.update(metadata(1, 0, CLICKS))
    assert broker.handler.hints.leader_of(CLICKS) == CurrentLeader(leader_id=1, leader_epoch=0)
    broker.stop(delete=False)
    assert broker.handler.hints.leader_of(CLICKS) is None
    broker.cache.update(metadata(2, 1, CLICKS))
    assert broker.handler.hints.leader_of(CLICKS) == CurrentLeader(leader_id=2, leader_epoch=1)


# --- fetches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "is_hinted"), [(11, False), (12, True), (15, True)])
def test_before_version_16_a_fetch_is_told_no_endpoint(version: int, is_hinted: bool) -> None:
    broker = FetchedBroker()
    broker.tell(leader=2, leader_epoch=4, replicas=[1, 2])
    broker.cache.update(metadata(2, 4, CLICKS))
    asked = broker.fetch({CLICKS: 0}, version)
    asked.send()
    assert asked.errors == [Error.NOT_LEADER_OR_FOLLOWER]
    assert (asked.results[0].current_leader is not None) == is_hinted
    assert asked.response.node_endpoints == []


def test_a_fetch_is_told_each_leaders_endpoint_once_on_its_own_listener() -> None:
    broker = FetchedBroker()
    broker.tell(leader=2, leader_epoch=4, replicas=[1, 2])
    other = TopicPartition(CLICKS.topic, 1)
    broker.tell(other, leader=2, leader_epoch=0, replicas=[1, 2])
    broker.tell(VIEWS, leader=3, leader_epoch=0, replicas=[1, 3])
    broker.cache.update(metadata(3, 0, VIEWS))
    for version in (16, 17):
        asked = broker.fetch({CLICKS: 0, other: 0, VIEWS: 0}, version)
        asked.send()
        assert asked.response.node_endpoints == [PLAIN]
        assert [each.current_leader for each in asked.results] == [
            CurrentLeader(leader_id=2, leader_epoch=4),
            CurrentLeader(leader_id=2, leader_epoch=0),
            CurrentLeader(leader_id=3, leader_epoch=0),
        ]


def test_a_fetch_that_waited_on_the_fast_path_is_told_the_new_leader() -> None:
    broker = FetchedBroker()
    broker.lead()
    asked = Asked(broker, 16)
    registered = asked.register()
    assert registered is not None
    connection: Any = Connection()
    assert asked.path.try_handle(asked.frame(0), registered, connection)
    assert connection.answers == []
    broker.cache.update(metadata(2, 1, CLICKS))
    broker.tell(leader=2, leader_epoch=1, partition_epoch=1, replicas=[1, 2])
    broker.settle()
    (answer,) = connection.answers
    _, response = decode_response(fetch.API, 16, answer[4:])
    assert response.node_endpoints == [PLAIN]
    (result,) = response.responses[0].partitions
    assert result.error_code == Error.NOT_LEADER_OR_FOLLOWER
    assert result.current_leader == CurrentLeader(leader_id=2, leader_epoch=1)


# --- produces -------------------------------------------------------------------------------------


def answers_of(peer: Peer, version: int) -> list[Any]:
    return [
        decode_response(produce.API, version, b"".join(answer)[4:])[1] for answer in peer.answers
    ]


@pytest.mark.parametrize("version", [9, 10, 11])
def test_a_produce_to_a_former_leader_is_told_the_new_one(version: int) -> None:
    broker, peer = ProducedBroker(), Peer()
    broker.cache.update(metadata(2, 1, CLICKS))
    broker.world.tell(leader=2, leader_epoch=1, partition_epoch=1, replicas=[1, 2])
    broker.send(frame_of(batch([b"a"]), version=version), peer)
    (response,) = answers_of(peer, version)
    (result,) = response.responses[0].partition_responses
    assert result.error_code == Error.NOT_LEADER_OR_FOLLOWER
    if version < 10:
        assert (result.current_leader, response.node_endpoints) == (None, [])
    else:
        assert result.current_leader == CurrentLeader(leader_id=2, leader_epoch=1)
        assert response.node_endpoints == [PLAIN]


def test_a_produce_that_waits_on_the_fast_path_is_told_as_on_the_general_one() -> None:
    answers = []
    for has_fast_path in (False, True):
        broker, peer = ProducedBroker(has_fast_path=has_fast_path), Peer()
        settings = replace(broker.world.topic, flush_before_expose=True)  # so acks=all waits
        broker.world.replicas.configure(CLICKS.topic, settings)
        broker.cache.update(metadata(2, 1, CLICKS))
        for number in range(2):
            frame = frame_of(batch([b"a"]), version=10, acks=-1, correlation_id=number)
            is_taken = broker.send(frame, peer)
        broker.usual.flush()
        assert is_taken == has_fast_path
        broker.world.tell(leader=2, leader_epoch=1, partition_epoch=1, replicas=[1, 2])
        broker.world.settle()
        answers.append([b"".join(answer) for answer in peer.answers])
        for response in answers_of(peer, 10):
            (result,) = response.responses[0].partition_responses
            assert result.error_code == Error.NOT_LEADER_OR_FOLLOWER
            assert result.current_leader == CurrentLeader(leader_id=2, leader_epoch=1)
            assert response.node_endpoints == [PLAIN]
    assert answers[0] == answers[1]
