"""What a broker sends to have ISRs changed: one request at a time, until each has its answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from kdist.errors import ApiError, Error
from kdist.model import ZERO_UUID, TopicPartition
from kdist.protocol.alter_partition import (
    LAST_BY_NAME,
    AlteredPartitionResult,
    AlteredTopicResult,
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from kdist.protocol.codec_source import ENTRIES_MAX
from kdist.protocol.compiler import codec_for
from kdist.replication import alter_partition_manager as manager_module
from kdist.replication.alter_partition_manager import AlterPartitionManager, CommittedIsr, Proposal
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from tests.refusals import refused

TOPIC = uuid.UUID(int=5)


class FakeController:
    """Accepts what it is sent after a second, but for the errors that it was given."""

    def __init__(self) -> None:
        self.requests: list[list[int]] = []  # the partitions of each
        self.failures: list[Error] = []  # of the next requests as a whole
        self.refusals: dict[int, Error] = {}
        self.in_flight = 0

    async def answer(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.in_flight += 1
        assert self.in_flight == 1
        await asyncio.sleep(1)
        self.in_flight -= 1
        assert (request.broker_id, request.broker_epoch) == (1, 77)
        [topic] = request.topics
        self.requests.append([each.partition_index for each in topic.partitions])
        if self.failures:
            error = self.failures.pop(0)
            if error is Error.REQUEST_TIMED_OUT:
                raise ApiError(error)
            return AlterPartitionResponse(error_code=error)
        results = [
            AlteredPartitionResult(
                partition_index=each.partition_index,
                error_code=self.refusals.get(each.partition_index, Error.NONE),
                isr=[member.broker_id for member in each.new_isr_with_epochs],
                partition_epoch=each.partition_epoch + 1,
            )
            for each in topic.partitions
        ]
        answered = AlteredTopicResult(topic_id=topic.topic_id, partitions=results)
        return AlterPartitionResponse(error_code=Error.NONE, topics=[answered])


def play(scenario: Callable[[FakeController, AlterPartitionManager], Awaitable[None]]) -> None:
    loop = VirtualLoop(VirtualClock())

    async def run() -> None:
        controller = FakeController()
        await scenario(controller, AlterPartitionManager(1, lambda: 77, controller.answer))

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


pytestmark = pytest.mark.played(by=play)


def proposal(partition: int) -> Proposal:
    key = TopicPartition("clicks", partition)
    return Proposal(key, TOPIC, leader_epoch=3, partition_epoch=8, isr={1: 77, 2: 78})


async def test_what_is_proposed_while_a_request_is_in_flight_goes_together_with_the_next(
    controller: FakeController, manager: AlterPartitionManager, /
) -> None:
    first = manager.propose(proposal(0))
    await asyncio.sleep(0.5)
    others = [manager.propose(proposal(i)) for i in (1, 2, 3)]
    for answer in (first, *others):
        assert await answer == CommittedIsr((1, 2), 9)
    assert controller.requests == [[0], [1, 2, 3]]


async def test_more_proposals_than_a_request_may_have_go_with_several(
    controller: FakeController, manager: AlterPartitionManager, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = 30  # each of which a broker counts as an entry, as it does partition and topic
    assert manager_module.PROPOSALS_MAX * (2 + members) <= ENTRIES_MAX
    monkeypatch.setattr(manager_module, "PROPOSALS_MAX", 3)
    answers = [manager.propose(proposal(partition)) for partition in range(7)]
    answers[1].cancel()
    for answer in (answers[0], *answers[2:]):
        assert await answer == CommittedIsr((1, 2), 9)
    assert controller.requests == [[0, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    "failure", [Error.NOT_CONTROLLER, Error.STALE_BROKER_EPOCH, Error.REQUEST_TIMED_OUT]
)
async def test_a_request_that_fails_as_a_whole_is_sent_again_until_it_is_answered(
    controller: FakeController, manager: AlterPartitionManager, /, failure: Error
) -> None:
    controller.failures = [failure, failure]
    assert await manager.propose(proposal(0)) == CommittedIsr((1, 2), 9)
    assert controller.requests == [[0]] * 3


async def test_a_partition_that_is_refused_hears_why_and_may_propose_anew(
    controller: FakeController, manager: AlterPartitionManager, /
) -> None:
    controller.refusals[1] = Error.INELIGIBLE_REPLICA
    accepted, denied = manager.propose(proposal(0)), manager.propose(proposal(1))
    with refused(Error.INELIGIBLE_REPLICA):
        await denied
    assert (await accepted).partition_epoch == 9
    controller.refusals.clear()
    assert (await manager.propose(proposal(1))).partition_epoch == 9


async def test_a_proposal_of_a_later_epoch_is_not_answered_with_what_the_earlier_one_got(
    controller: FakeController, manager: AlterPartitionManager, /
) -> None:
    earlier = manager.propose(proposal(0))
    await asyncio.sleep(0.5)
    earlier.cancel()  # a LeaderAndIsr has ended its leader epoch
    later = manager.propose(proposal(0)._replace(leader_epoch=4, partition_epoch=20))
    assert (await later).partition_epoch == 21
    assert controller.requests == [[0], [0]]


async def test_a_controller_that_will_not_answer_is_not_waited_for_once_there_is_another(
    controller: FakeController, manager: AlterPartitionManager, /
) -> None:
    answer = manager.propose(proposal(0))
    await asyncio.sleep(0.5)
    controller.in_flight -= 1  # that one is gone, with what it was asked
    manager.ask_anew()
    started_s = asyncio.get_running_loop().time()
    assert await answer == CommittedIsr((1, 2), 9)
    assert asyncio.get_running_loop().time() < started_s + 1.2
    assert controller.requests == [[0]]
    manager.ask_anew()  # nothing is asked
    assert (await manager.propose(proposal(1))).partition_epoch == 9


async def test_a_broker_that_stops_sends_nothing_more(
    controller: FakeController, manager: AlterPartitionManager, /
) -> None:
    answer = manager.propose(proposal(0))
    await asyncio.sleep(0.5)
    manager.cancel()
    await asyncio.sleep(5)
    assert answer.cancelled()
    assert controller.requests == []


async def test_a_partition_that_the_answer_leaves_out_is_asked_for_again_after_a_pause(
    _controller: FakeController, _manager: AlterPartitionManager, /
) -> None:
    asked_s: list[float] = []

    async def forgetful(request: AlterPartitionRequest) -> AlterPartitionResponse:
        asked_s.append(asyncio.get_running_loop().time())
        return AlterPartitionResponse(error_code=Error.NONE, topics=[])

    manager = AlterPartitionManager(1, lambda: 77, forgetful)
    answer = manager.propose(proposal(0))
    await asyncio.sleep(10)
    gaps = [after - before for before, after in pairwise(asked_s)]
    assert not answer.done()
    assert min(gaps) >= 0.05
    assert len(asked_s) < 20
    manager.cancel()


async def test_topics_without_ids_are_told_apart_by_name(
    _controller: FakeController, _manager: AlterPartitionManager, /
) -> None:
    asked: list[AlterPartitionRequest] = []

    async def by_name(request: AlterPartitionRequest) -> AlterPartitionResponse:
        asked.append(request)
        codec_for(AlterPartitionRequest, LAST_BY_NAME).encode(request, bytearray())
        results = [
            AlteredTopicResult(
                topic_name=topic.topic_name,
                partitions=[
                    AlteredPartitionResult(
                        partition_index=0, error_code=Error.NONE, isr=each.new_isr
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return AlterPartitionResponse(error_code=Error.NONE, topics=results)

    manager = AlterPartitionManager(1, lambda: 77, by_name)
    keys = [TopicPartition(name, 0) for name in ("clicks", "views")]
    answers = [
        manager.propose(Proposal(key, ZERO_UUID, 3, 8, {1: 77, number: 78}))
        for number, key in enumerate(keys, 2)
    ]
    assert [each.isr for each in await asyncio.gather(*answers)] == [(1, 2), (1, 3)]
    assert [topic.topic_name for topic in asked[0].topics] == ["clicks", "views"]
