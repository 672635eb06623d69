"""A proposed ISR meets each row of the table, in its order."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kdist.config.addresses import Listener
from kdist.config.topic import TopicSettings
from kdist.controller.context import ControllerContext, LiveBroker, Topic
from kdist.controller.isr_proposals import (
    IsrProposal,
    judge,
    names_in,
    plan_for_proposals,
    proposals_in,
    response_to,
)
from kdist.errors import Error
from kdist.model import LeaderAndIsr, TopicPartition
from kdist.protocol.alter_partition import AlteredPartition, AlteredTopic, AlterPartitionRequest
from kdist.zk.registration import BrokerRegistration

CLICKS = TopicPartition("clicks", 0)
STATE = LeaderAndIsr(1, 5, (1, 2), 3, 8)
PROPOSED = IsrProposal(1, 5, {1: 11, 2: 12, 3: 13}, 8)


def cluster() -> ControllerContext:
    """Broker 1 leads `clicks-0` with 2 in sync; 3 is alive, 4 about to stop, 5 gone."""
    made = ControllerContext(lambda _: TopicSettings())
    for i in (1, 2, 3, 4):
        listener = Listener("PLAINTEXT", f"host-{i}", 9092)
        made.brokers[i] = LiveBroker(i, 10 + i, BrokerRegistration((), 0), listener)
    made.shutting_down[4] = 14
    made.put_topic(Topic("clicks", uuid.UUID(int=5), {0: (1, 2, 3, 4, 5)}, 0))
    made.put_states({CLICKS: STATE})
    return made


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, STATE._replace(isr=(1, 2, 3), zk_version=9)),
        ({"isr": {1: -1, 3: -1}}, STATE._replace(isr=(1, 3), zk_version=9)),
        ({"leader_epoch": 6}, Error.NOT_CONTROLLER),
        ({"leader_epoch": 4}, Error.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 4, "partition_epoch": 7, "isr": {9: 1}}, Error.FENCED_LEADER_EPOCH),
        ({"partition_epoch": 7, "isr": {2: 12, 1: 11}}, STATE),
        ({"partition_epoch": 7}, Error.INVALID_UPDATE_VERSION),
        ({"partition_epoch": 9}, Error.NOT_CONTROLLER),
        ({"leader": 2}, Error.INVALID_REQUEST),
        ({"isr": {2: 12, 3: 13}}, Error.INVALID_REQUEST),
        ({"isr": {}}, Error.INVALID_REQUEST),
        ({"isr": {1: 11, 9: 1}}, Error.INVALID_REQUEST),
        ({"recovery_state": 1}, Error.INVALID_REQUEST),
        ({"recovery_state": 1, "isr": {1: 11}}, Error.INVALID_REQUEST),
        ({"isr": {1: 11, 5: 15}}, Error.INELIGIBLE_REPLICA),
        ({"isr": {1: 11, 4: 14}}, Error.INELIGIBLE_REPLICA),
        ({"isr": {1: 11, 3: 12}}, Error.INELIGIBLE_REPLICA),
    ],
)
def test_a_proposal_is_judged_by_the_first_row_that_it_meets(
    changes: dict[str, object], verdict: Error | LeaderAndIsr
) -> None:
    proposal = PROPOSED._replace(**changes)  # type: ignore[arg-type]
    assert judge(proposal, CLICKS, cluster()) == verdict


@pytest.mark.parametrize(
    ("isr", "eligible", "proposed", "expected"),
    [
        ((1, 2, 3), (), {1, 2}, ()),
        ((1, 2), (), {1}, (2,)),
        ((1, 2, 3), (), {1}, (2, 3)),
        ((1,), (2, 3), {1, 2}, ()),
    ],
)
def test_members_that_leave_an_isr_below_its_minimum_are_eligible_until_it_is_back_at_it(
    isr: tuple[int, ...], eligible: tuple[int, ...], proposed: set[int], expected: tuple[int, ...]
) -> None:
    made = cluster()
    made.settings_of = lambda _: TopicSettings(min_insync_replicas=2)
    made.put_states({CLICKS: STATE._replace(isr=isr, eligible=eligible)})
    verdict = judge(PROPOSED._replace(isr=dict.fromkeys(proposed, -1)), CLICKS, made)
    assert isinstance(verdict, LeaderAndIsr)
    assert (set(verdict.isr), verdict.eligible) == (proposed, expected)


def test_who_joins_an_isr_has_what_it_lost_again_and_the_leader_hears_who_is_eligible() -> None:
    made = cluster()
    made.settings_of = lambda _: TopicSettings(min_insync_replicas=4)
    made.put_states({CLICKS: STATE._replace(eligible=(4, 5), lossy=(3, 5))})
    verdict = judge(PROPOSED, CLICKS, made)
    assert isinstance(verdict, LeaderAndIsr)
    assert verdict.lossy == (5,)
    made.put_states({CLICKS: verdict})
    asked = request(by_id=True)
    asked.topics[1].partitions[0].new_isr = [1, 2, 3]
    response = response_to(asked, names_in(asked, made), made)
    assert response.topics[1].partitions[0].eligible_replicas == [4, 5]


def test_a_leader_has_recovered_once_it_says_so_and_stays_so() -> None:
    made = cluster()
    recovering = STATE._replace(isr=(1,), is_recovering=True)
    made.put_states({CLICKS: recovering})
    still = PROPOSED._replace(isr={1: 11}, recovery_state=1)
    assert judge(still, CLICKS, made) == recovering
    assert judge(still._replace(isr={1: 11, 2: 12}), CLICKS, made) is Error.INVALID_REQUEST
    done = judge(still._replace(recovery_state=0), CLICKS, made)
    assert done == recovering._replace(is_recovering=False, zk_version=9)


def test_a_partition_that_has_no_state_or_is_being_deleted_is_unknown() -> None:
    made = cluster()
    other = TopicPartition("clicks", 7)
    assert judge(PROPOSED, other, made) is Error.UNKNOWN_TOPIC_OR_PARTITION
    made.queue_for_deletion("clicks")
    assert judge(PROPOSED, CLICKS, made) is Error.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_that_a_tool_has_taken_out_of_its_topic_is_unknown() -> None:
    made = cluster()
    made.put_topic(made.topics["clicks"]._replace(assignment={1: (1, 2)}))
    assert judge(PROPOSED, CLICKS, made) is Error.UNKNOWN_TOPIC_OR_PARTITION


def test_who_is_about_to_stop_stays_in_an_isr_but_comes_into_none() -> None:
    made = cluster()
    made.shutting_down |= {1: 11, 2: 12}
    grown = STATE._replace(isr=(1, 2, 3), zk_version=9)
    assert judge(PROPOSED, CLICKS, made) == grown
    made.shutting_down[3] = 13
    assert judge(PROPOSED, CLICKS, made) is Error.INELIGIBLE_REPLICA


def test_what_is_written_has_the_controllers_epoch_and_what_is_refused_is_not_planned() -> None:
    made, second = cluster(), TopicPartition("clicks", 1)
    known = made.topics["clicks"]
    made.put_topic(known._replace(assignment={**known.assignment, 1: (1, 2)}))
    made.put_states({second: STATE})
    proposals = {CLICKS: PROPOSED, second: PROPOSED._replace(leader_epoch=4)}
    plan = plan_for_proposals(proposals, made, proposals, 7)
    assert plan == {CLICKS: LeaderAndIsr(1, 5, (1, 2, 3), 7, 9)}


def request(by_id: bool) -> AlterPartitionRequest:
    partition = AlteredPartition(partition_index=0, leader_epoch=5, new_isr=[1], partition_epoch=8)
    unknown = {"topic_id": uuid.UUID(int=9)} if by_id else {"topic_name": "views"}
    known = {"topic_id": uuid.UUID(int=5)} if by_id else {"topic_name": "clicks"}
    topics = [AlteredTopic(partitions=[partition], **each) for each in (unknown, known)]
    return AlterPartitionRequest(broker_id=1, broker_epoch=11, topics=topics)


@pytest.mark.parametrize(
    ("by_id", "error"),
    [(True, Error.UNKNOWN_TOPIC_ID), (False, Error.UNKNOWN_TOPIC_OR_PARTITION)],
)
def test_topics_are_found_by_id_or_by_name_as_the_version_has_it(by_id: bool, error: Error) -> None:
    made, asked = cluster(), request(by_id)
    names = names_in(asked, made)
    proposals = proposals_in(asked, names)
    assert proposals == {CLICKS: IsrProposal(1, 5, {1: -1}, 8)}
    made.put_states(plan_for_proposals(proposals, made, proposals, 7))
    unknown, known = response_to(asked, names, made).topics
    assert unknown.partitions[0].error_code == error
    answered = known.partitions[0]
    assert (answered.error_code, answered.isr, answered.partition_epoch) == (0, [1], 9)


class Unwalked(dict[str, Topic]):
    """Topics that may be looked up, and not gone through: there are thousands."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError

    items = values = keys = __iter__  # type: ignore[assignment]


@pytest.mark.parametrize("asked", [{"topic_id": uuid.UUID(int=5)}, {"topic_name": "clicks"}])
def test_the_topics_of_a_request_are_looked_up_by_id_or_name(asked: dict[str, Any]) -> None:
    made = cluster()
    made._topics = Unwalked(made._topics)
    topics = [AlteredTopic(partitions=[], **asked), AlteredTopic(topic_name="other", partitions=[])]
    request = AlterPartitionRequest(broker_id=1, broker_epoch=11, topics=topics)
    assert list(names_in(request, made).items()) == [(*asked.values(), "clicks")]
