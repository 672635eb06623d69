"""Which replicas a deletion still waits for, and which requests wait for it."""

from __future__ import annotations

import asyncio
import uuid

from kdist.controller.context import Topic
from kdist.controller.deletions import Deletions
from kdist.model import TopicPartition
from kdist.runtime.clock import VirtualClock
from kdist.runtime.virtual_loop import VirtualLoop

FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
CLICKS = Topic("clicks", uuid.UUID(int=1), {0: (1,), 1: (1, 2)}, 0)


def run(scenario) -> None:
    loop = VirtualLoop(VirtualClock())
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


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


def test_a_waiting_request_is_answered_when_the_topic_is_gone() -> None:
    async def scenario() -> None:
        deletions = Deletions()
        deletions.begin(CLICKS)
        ended = deletions.ended("clicks", frozenset({1, 2}))
        deletions.release_blocked(frozenset({1}))
        assert not ended.done()  # broker 1 may still answer
        deletions.end("clicks")
        await asyncio.wait_for(ended, 1)

    run(scenario)


def test_a_deletion_does_not_wait_for_brokers_that_are_down() -> None:
    async def scenario() -> None:
        deletions = Deletions()
        deletions.begin(CLICKS)
        assert deletions.ended("clicks", frozenset({3})).done()
        waiting = deletions.ended("clicks", frozenset({1}))
        deletions.complete_replicas(1, [FIRST, SECOND])
        deletions.release_blocked(frozenset({1}))
        assert waiting.done()

    run(scenario)


def test_a_topic_that_is_gone_already_is_not_waited_for() -> None:
    async def scenario() -> None:
        assert Deletions().ended("clicks", frozenset({1})).done()

    run(scenario)
