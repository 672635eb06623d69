"""What a broker is sent of thousands of partitions: in parts, or made in slices, and all of it."""

from __future__ import annotations

import asyncio
import uuid
from itertools import chain
from typing import Any

import pytest

from kdist.config.addresses import Listener
from kdist.config.topic import TopicSettings
from kdist.controller.channels import (
    SENT_AT_ONCE,
    BrokerChannel,
    BrokerRequestBatch,
    ChannelContext,
)
from kdist.controller.context import ControllerContext, LiveBroker, Topic
from kdist.controller.requests import ControllerIdAndEpoch
from kdist.metrics.controller import ControllerMetrics
from kdist.model import LeaderAndIsr, TopicPartition
from kdist.protocol.leader_and_isr import FULL, LeaderAndIsrRequest, LeaderAndIsrResponse
from kdist.protocol.stop_replica import StopReplicaRequest, StopReplicaResponse
from kdist.protocol.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.zk.registration import BrokerRegistration

COUNT = 2 * SENT_AT_ONCE + SENT_AT_ONCE // 2
ALL = [TopicPartition("clicks", index) for index in range(COUNT)]
BROKER = LiveBroker(1, 7, BrokerRegistration((), 0), Listener("PLAINTEXT", "there", 9092))


class FakePeer:
    """A broker that takes every request; `before` is called before it does."""

    is_closed = False

    def __init__(self) -> None:
        self.taken: list[Any] = []

    async def send(self, request: Any, _version: int) -> Any:
        self.taken.append(request)
        await asyncio.sleep(0)
        if isinstance(request, LeaderAndIsrRequest):
            return LeaderAndIsrResponse(error_code=0, topics=[])
        if isinstance(request, StopReplicaRequest):
            return StopReplicaResponse(error_code=0, partition_errors=[])
        return UpdateMetadataResponse(error_code=0)

    def close(self) -> None:
        pass


def cluster() -> ControllerContext:
    made = ControllerContext(lambda _: TopicSettings())
    made.brokers = {1: BROKER}
    assignment = {each.partition: (1,) for each in ALL}
    made.put_topic(Topic("clicks", uuid.UUID(int=1), assignment, 0))
    made.put_states({each: LeaderAndIsr(1, 3, (1,), 1, 5) for each in ALL})
    return made


def told(requests: list[Any], kind: type) -> list[list[int]]:
    """The partitions of each request of this kind."""
    return [
        [each.partition_index for topic in request.topic_states for each in topic.partition_states]
        for request in requests
        if isinstance(request, kind)
    ]


def run(scenario: Any) -> None:
    loop = VirtualLoop(VirtualClock())
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


pytestmark = pytest.mark.played(by=run)


def channel_to(peer: FakePeer, made: ControllerContext) -> BrokerChannel:
    async def connect(_host: str, _port: int) -> FakePeer:
        return peer

    context = ChannelContext(
        made,
        ControllerIdAndEpoch(1, 1),
        connect,
        ControllerMetrics(),
        lambda *_: None,
        lambda: None,
    )
    return BrokerChannel(context, BROKER)


async def test_many_changes_are_sent_in_parts_leaders_first() -> None:
    peer = FakePeer()
    channel = channel_to(peer, cluster())
    await channel.acknowledged()
    peer.taken.clear()
    every = dict.fromkeys(ALL)
    channel.add(BrokerRequestBatch(leaders=every, metadata=every))
    await channel.acknowledged()
    kinds = [type(each) for each in peer.taken]
    assert kinds == [LeaderAndIsrRequest] * 3 + [UpdateMetadataRequest] * 3
    for kind in (LeaderAndIsrRequest, UpdateMetadataRequest):
        parts = told(peer.taken, kind)
        assert max(map(len, parts)) == SENT_AT_ONCE
        assert [*chain.from_iterable(parts)] == [*range(COUNT)]
    channel.close()


async def test_brokers_that_come_amid_the_parts_are_made_known_before_they_lead() -> None:
    peer = FakePeer()
    made = cluster()
    channel = channel_to(peer, made)
    await channel.acknowledged()
    peer.taken.clear()
    every = dict.fromkeys(ALL)
    channel.add(BrokerRequestBatch(leaders=every))
    while not peer.taken:
        await asyncio.sleep(0)
    made.brokers[2] = BROKER._replace(id=2)
    channel.add(BrokerRequestBatch(has_brokers=True, has_new_brokers=True))
    made.put_states({ALL[-1]: LeaderAndIsr(2, 4, (1, 2), 1, 6)})
    await channel.acknowledged()
    known: set[int] = {1}
    for each in peer.taken:
        if isinstance(each, UpdateMetadataRequest):
            known = {broker.id for broker in each.live_brokers}
        else:
            assert {leader.broker_id for leader in each.live_leaders} <= known
    assert known == {1, 2}
    channel.close()


async def test_a_full_request_is_one_and_a_change_while_it_is_made_comes_after_it() -> None:
    peer = FakePeer()
    made = cluster()
    channel = channel_to(peer, made)
    while not told(peer.taken, LeaderAndIsrRequest):
        await asyncio.sleep(0)
    for _ in range(3):  # the first slices are made
        await asyncio.sleep(0)
    made.put_states({ALL[0]: LeaderAndIsr(1, 4, (1,), 1, 6)})
    made.put_topic(Topic("aside", uuid.UUID(int=2), {0: (1,)}, 0))
    made.drop_topics(["aside"])
    channel.add(BrokerRequestBatch(metadata={ALL[0]: None}))
    await channel.acknowledged()
    full = [each for each in peer.taken if each.type == FULL]
    assert [len(each) for each in told(full, UpdateMetadataRequest)] == [COUNT]
    last = peer.taken[-1].topic_states[0].partition_states
    assert [(each.partition_index, each.leader_epoch) for each in last] == [(0, 4)]
    channel.close()


async def test_an_order_to_delete_a_topic_that_was_made_anew_meanwhile_is_not_sent() -> None:
    peer, made = FakePeer(), cluster()
    made.put_topic(Topic("views", uuid.UUID(int=2), {0: (1,)}, 0))
    made.queue_for_deletion("views")
    channel = channel_to(peer, made)
    await channel.acknowledged()
    peer.taken.clear()
    channel.add(BrokerRequestBatch(deletions={ALL[0], TopicPartition("views", 0)}))
    await channel.acknowledged()
    stopped = [each for each in peer.taken if isinstance(each, StopReplicaRequest)]
    assert [topic.topic_name for each in stopped for topic in each.topic_states] == ["views"]
    channel.close()
