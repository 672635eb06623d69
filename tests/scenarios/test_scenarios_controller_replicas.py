"""Partitions with several replicas: ISRs proposed, brokers stopped, hosts lost, states changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from controller_states import assign, controller_of, overwrite, state_of
from controller_world import Cluster, in_cluster

from kdist.controller.controller import UNDER_WAY, Controller
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.alter_partition import (
    AlteredPartition,
    AlteredTopic,
    AlterPartitionRequest,
    IsrMember,
)
from kdist.protocol.controlled_shutdown import ControlledShutdownRequest
from kdist.protocol.create_partitions import GrownTopic
from kdist.protocol.create_topics import NewTopic
from kdist.protocol.delete_topics import TopicToDelete
from kdist.zk import znodes
from kdist.zk.client import Delete, Operation

CLICKS = TopicPartition("clicks", 0)


async def propose(cluster: Cluster, *isr: int, **given: int) -> tuple[Error, tuple[int, ...], int]:
    """Have broker 1 propose an ISR for `clicks-0`; error, ISR and partition epoch of the answer."""
    epochs = cluster.registered()
    state, version = state_of(cluster, CLICKS)
    request = AlterPartitionRequest(
        broker_id=1,
        broker_epoch=epochs[1],
        topics=[
            AlteredTopic(
                topic_id=cluster.topic("clicks").topic_id,
                partitions=[
                    AlteredPartition(
                        partition_index=0,
                        leader_epoch=given.get("leader_epoch", state.leader_epoch),
                        partition_epoch=given.get("partition_epoch", version),
                        new_isr_with_epochs=[
                            IsrMember(broker_id=member, broker_epoch=epochs[member])
                            for member in isr
                        ],
                    )
                ],
            )
        ],
    )
    response = await controller_of(cluster).alter_partition(request)
    assert response.error_code == Error.NONE
    [[result]] = [topic.partitions for topic in response.topics]
    return Error.of(result.error_code), tuple(result.isr), result.partition_epoch


# ISR changes


@pytest.mark.played(by=in_cluster, seed=41)
async def test_a_proposed_isr_is_written_and_answered_with_the_new_partition_epoch(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (1, 2, 3))
    before, version = state_of(cluster, CLICKS)
    assert before.isr == (1, 2, 3)
    assert await propose(cluster, 1, 3) == (Error.NONE, (1, 3), version + 1)
    after, _ = state_of(cluster, CLICKS)
    assert after == before._replace(isr=(1, 3))
    for node in cluster.nodes.values():  # clients see it, and no leader is elected for it
        await cluster.until(lambda node=node: node.peer.metadata[CLICKS].isr == (1, 3))
        assert node.peer.led[CLICKS].isr == (1, 2, 3)


@pytest.mark.played(by=in_cluster, seed=42)
async def test_a_proposal_whose_answer_was_lost_succeeds_again_and_an_older_one_does_not(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (1, 2, 3))
    _, version = state_of(cluster, CLICKS)
    first = await propose(cluster, 1, 3, partition_epoch=version)
    assert await propose(cluster, 1, 3, partition_epoch=version) == first
    error, _, _ = await propose(cluster, 1, 2, partition_epoch=version)
    assert error is Error.INVALID_UPDATE_VERSION


@pytest.mark.played(by=in_cluster, seed=43)
async def test_a_proposal_that_meets_someone_elses_state_is_judged_by_that(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (1, 2, 3))
    _, version = state_of(cluster, CLICKS)
    overwrite(cluster, CLICKS, isr=(1, 2))
    term = controller_of(cluster)._term
    error, _, _ = await propose(cluster, 1, 3, partition_epoch=version)
    assert error is Error.INVALID_UPDATE_VERSION
    assert await propose(cluster, 1, 3) == (Error.NONE, (1, 3), version + 2)
    assert controller_of(cluster)._term is term


@pytest.mark.parametrize("epochs_ago", [1, -1])
@pytest.mark.played(by=in_cluster, seed=40)
async def test_a_proposal_of_another_registration_of_its_sender_is_refused(
    cluster: Cluster, /, epochs_ago: int
) -> None:
    await cluster.start()
    epoch = cluster.registered()[1] - epochs_ago
    request = AlterPartitionRequest(broker_id=1, broker_epoch=epoch, topics=[])
    response = await controller_of(cluster).alter_partition(request)
    assert response.error_code == Error.STALE_BROKER_EPOCH


@pytest.mark.played(by=in_cluster, seed=54)
async def test_who_is_eligible_leads_when_the_isr_is_gone_and_not_after_the_minimum_was_lowered(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2, 3), (2, 3))
    cluster.configure("clicks", min_insync_replicas="2")
    kept, lowered = CLICKS, TopicPartition("views", 0)
    await assign(cluster, "views", (2, 3))
    cluster.configure("views", min_insync_replicas="2")
    cluster.nodes[3].kill()
    await cluster.until(lambda: state_of(cluster, kept)[0].isr == (2,))
    assert state_of(cluster, lowered)[0].eligible == (3,)
    cluster.configure("views", min_insync_replicas="1")
    await cluster.until(lambda: state_of(cluster, lowered)[0].eligible == ())
    cluster.nodes[2].kill()
    await cluster.until(lambda: 2 not in cluster.registered())
    cluster.nodes[3].start()
    await cluster.until(lambda: state_of(cluster, kept)[0].leader == 3)
    state, _ = state_of(cluster, kept)
    assert (state.isr, state.eligible, state.is_recovering) == ((3,), (2,), False)
    state, _ = state_of(cluster, lowered)
    assert (state.leader, state.isr) == (-1, (2,))


@pytest.mark.played(by=in_cluster, seed=55, brokers=4)
async def test_what_a_broker_that_is_gone_leaves_behind_is_counted(cluster: Cluster, /) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2, 3), (3, 2), (3,))
    await assign(cluster, "views", (1, 3))
    metrics = controller_of(cluster)._context.metrics

    def counts() -> tuple[float, ...]:
        return (
            metrics.fenced_brokers(),
            metrics.offline_replicas(),
            metrics.offline_partitions(),
            metrics.imbalanced_partitions(),
            metrics.replicas_ineligible_for_deletion(),
        )

    assert counts() == (0, 0, 0, 0, 0)
    for broker_id in (3, 4):  # one of them has replicas
        cluster.nodes[broker_id].kill()
    await cluster.until(lambda: len(cluster.registered()) == 2)
    await cluster.converge()
    assert counts() == (1, 4, 1, 2, 0)
    assert await cluster.delete("views") == "NONE"
    assert counts() == (1, 3, 1, 2, 1)


# States that someone else writes


@pytest.mark.played(by=in_cluster, seed=44)
async def test_a_state_that_someone_else_wrote_costs_no_other_partition_and_no_term(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", *[(2, 3)] * 600)  # more than a transaction
    odd = TopicPartition("clicks", 77)
    overwrite(cluster, odd, leader_epoch=9)
    term, zk = controller_of(cluster)._term, cluster.nodes[1].zk
    assert zk is not None
    multis: list[int] = []
    multi = zk.multi

    async def counted(operations: list[Operation]) -> Any:
        multis.append(len(operations))
        return await multi(operations)

    zk.multi = counted  # type: ignore[method-assign,assignment]
    cluster.nodes[2].kill()
    await cluster.until(lambda: 2 not in cluster.registered())
    await cluster.converge()
    assert controller_of(cluster)._term is term
    assert multis == [501, 101, 501]  # with the check of the epoch; the refused one again
    state, _ = state_of(cluster, odd)
    assert (state.leader, state.leader_epoch, state.isr) == (3, 10, (3,))
    epochs = Counter(state_of(cluster, each)[0].leader_epoch for each in cluster.states())
    assert epochs == {1: 599, 10: 1}


@pytest.mark.played(by=in_cluster, seed=45)
async def test_a_write_whose_answer_was_lost_is_found_to_be_ones_own(cluster: Cluster, /) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2, 3))
    zk, term = cluster.nodes[1].zk, controller_of(cluster)._term
    assert zk is not None
    assert term is not None
    multi = zk.multi

    async def twice(operations: list[Operation]) -> Any:
        zk.multi = multi  # type: ignore[method-assign]
        await multi(operations)
        return await multi(operations)

    zk.multi = twice  # type: ignore[method-assign,assignment]
    cluster.nodes[2].kill()
    await cluster.until(lambda: 2 not in cluster.registered())
    await cluster.converge()
    assert controller_of(cluster)._term is term
    state, version = state_of(cluster, CLICKS)
    assert (state.leader, state.leader_epoch, version) == (3, 1, 1)


@pytest.mark.parametrize("is_proposed", [True, False])
@pytest.mark.played(by=in_cluster, seed=53)
async def test_a_state_that_someone_removed_is_written_again_in_a_later_epoch(
    cluster: Cluster, /, is_proposed: bool
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (1, 2, 3))
    assert (await propose(cluster, 1, 2))[0] is Error.NONE
    zk, term = cluster.nodes[1].zk, controller_of(cluster)._term
    assert zk is not None
    multi = zk.multi

    async def removed(operations: list[Operation]) -> Any:
        zk.multi = multi  # type: ignore[method-assign]
        removal = Delete(znodes.PARTITION_STATE.path(*CLICKS))
        cluster.ensemble.tree.write((removal,), 0, 0)
        return await multi(operations)

    zk.multi = removed  # type: ignore[method-assign,assignment]
    if is_proposed:
        assert (await propose(cluster, 1))[0] is Error.FENCED_LEADER_EPOCH
    else:
        cluster.nodes[2].kill()
        await cluster.until(lambda: 2 not in cluster.registered())
    await cluster.converge()
    state, version = state_of(cluster, CLICKS)
    isr = (1, 2) if is_proposed else (1,)
    assert (state.leader, state.leader_epoch, state.isr, version) == (1, 1, isr, 0)
    assert controller_of(cluster)._term is term


@pytest.mark.played(by=in_cluster, seed=46, brokers=4)
async def test_every_member_of_an_isr_that_registered_anew_between_two_controllers_is_vetted(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2, 3, 4))
    cluster.nodes[1].kill()
    cluster.nodes[3].expire()  # a follower; it is back before there is a controller again
    await asyncio.sleep(1)
    assert cluster.controller is None
    await cluster.until(lambda: cluster.controller)
    await cluster.converge()
    state, _ = state_of(cluster, CLICKS)
    assert (state.leader, state.isr) == (2, (2, 4))


# Brokers that stop, and hosts that fail


@pytest.mark.played(by=in_cluster, seed=47)
async def test_a_broker_that_wants_to_stop_leads_nothing_that_another_replica_can_lead(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2, 3), (3, 2), (2,))
    overwrite(cluster, TopicPartition("clicks", 0), isr=(2,))
    request = ControlledShutdownRequest(broker_id=2, broker_epoch=cluster.registered()[2])
    stuck = TopicPartition("clicks", 0)
    overwrite(cluster, stuck, isr=(2, 3))
    answer = await controller_of(cluster).controlled_shutdown(request)
    assert (answer.error_code, answer.remaining_partitions) == (Error.NONE, [])
    states = [state_of(cluster, TopicPartition("clicks", i))[0] for i in range(3)]
    assert [(each.leader, each.isr) for each in states] == [(3, (3,)), (3, (3,)), (2, (2,))]
    await cluster.converge()
    stopped = {TopicPartition("clicks", 0), TopicPartition("clicks", 1)}
    await cluster.until(lambda: cluster.nodes[2].peer.stopped == stopped)
    error, _, _ = await propose_for_two(cluster)
    assert error is Error.INELIGIBLE_REPLICA
    cluster.nodes[2].expire()  # it has changed its mind: a new registration may lead again
    await asyncio.sleep(1)
    await cluster.converge()


async def propose_for_two(cluster: Cluster) -> tuple[Error, tuple[int, ...], int]:
    """The broker that took over proposes to take the stopping one back."""
    epochs = cluster.registered()
    partition = TopicPartition("clicks", 1)
    state, version = state_of(cluster, partition)
    members = [IsrMember(broker_id=i, broker_epoch=epochs[i]) for i in (3, 2)]
    proposal = AlteredPartition(
        partition_index=1,
        leader_epoch=state.leader_epoch,
        partition_epoch=version,
        new_isr_with_epochs=members,
    )
    topic = AlteredTopic(topic_id=cluster.topic("clicks").topic_id, partitions=[proposal])
    request = AlterPartitionRequest(broker_id=3, broker_epoch=epochs[3], topics=[topic])
    response = await controller_of(cluster).alter_partition(request)
    result = response.topics[0].partitions[0]
    return Error.of(result.error_code), tuple(result.isr), result.partition_epoch


@pytest.mark.played(by=in_cluster, seed=50)
async def test_a_leader_about_to_stop_gives_way_to_a_replica_that_gets_in_sync_between_its_tries(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (1, 3))
    assert (await propose(cluster, 1))[0] is Error.NONE
    request = ControlledShutdownRequest(broker_id=1, broker_epoch=cluster.registered()[1])
    answer = await controller_of(cluster).controlled_shutdown(request)
    assert len(answer.remaining_partitions) == 1
    await asyncio.sleep(1)  # it leads on, so it must not be told to stop
    assert not cluster.nodes[1].peer.stopped
    assert (await propose(cluster, 1, 3))[0] is Error.NONE
    answer = await controller_of(cluster).controlled_shutdown(request)
    assert answer.remaining_partitions == []
    state, _ = state_of(cluster, CLICKS)
    assert (state.leader, state.isr) == (3, (3,))


@pytest.mark.played(by=in_cluster, seed=51)
async def test_a_broker_that_wants_to_stop_in_a_registration_yet_unknown_is_in_no_isr_again(
    cluster: Cluster, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdist.controller.term.BROKER_CHANGE_MS", 2_000)
    await cluster.start()
    await assign(cluster, "clicks", (1, 2))
    known = cluster.registered()[2]
    cluster.nodes[2].expire()
    await cluster.until(lambda: cluster.registered().get(2, known) > known)
    newest = cluster.registered()[2]
    request = ControlledShutdownRequest(broker_id=2, broker_epoch=newest)
    assert (await controller_of(cluster).controlled_shutdown(request)).error_code == 0
    await cluster.converge()  # the controller has heard of the registration
    assert state_of(cluster, CLICKS)[0].isr == (1,)
    assert cluster.registered()[2] == newest
    assert (await propose(cluster, 1, 2))[0] is Error.INELIGIBLE_REPLICA


@pytest.mark.played(by=in_cluster, seed=48, brokers=48)
async def test_a_host_that_fails_with_twelve_brokers_is_one_event_and_one_round_of_requests(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    replicas = [tuple((i + 12 * j) % 48 + 1 for j in range(3)) for i in range(96)]
    await assign(cluster, "clicks", *replicas)
    for node in cluster.nodes.values():
        node.peer.requests.clear()
    host = range(25, 37)
    elections = controller_of(cluster)._context.metrics.elections
    for broker_id in host:
        cluster.nodes[broker_id].kill()
        await asyncio.sleep(0.001)
    await cluster.until(lambda: len(cluster.registered()) == 36)
    await cluster.converge()
    changed = [each for each in replicas if not set(host).isdisjoint(each)]
    led = [each for each in replicas if each[0] in host]
    assert controller_of(cluster)._context.metrics.elections == elections + len(led)
    for node in cluster.alive:
        sent = Counter(type(each).__name__ for each in node.peer.requests)
        mine = any(node.id in each for each in changed)
        expected = {"UpdateMetadataRequest": 1, "LeaderAndIsrRequest": 1}
        assert sent == expected or (not mine and sent == {"UpdateMetadataRequest": 1})


@pytest.mark.played(by=in_cluster, seed=52)
async def test_a_broker_hears_of_a_leader_before_leader_and_isr_names_it_though_it_came_just_now(
    cluster: Cluster, /
) -> None:
    async def delay() -> None:
        await asyncio.sleep(0.5)

    await cluster.start()
    await assign(cluster, "clicks", (3, 2))
    assert state_of(cluster, CLICKS)[0].isr == (3, 2)
    overwrite(cluster, CLICKS, isr=(3,))
    for broker_id in (2, 3):
        cluster.nodes[broker_id].kill()
    await cluster.until(lambda: sorted(cluster.registered()) == [1])
    await cluster.converge()
    cluster.network.pass_by = delay  # type: ignore[method-assign]
    cluster.nodes[2].peer.requests.clear()
    cluster.nodes[2].start()
    await asyncio.sleep(1)  # it is being told which brokers are alive
    assert cluster.nodes[2].peer.requests == []
    cluster.nodes[3].start()
    await cluster.converge()
    assert cluster.nodes[2].peer.led[CLICKS].leader == 3


# Deadlines


async def ask(controller: Controller, command: str, timeout_ms: int) -> Error:
    match command:
        case "create":
            new = NewTopic(
                name="views",
                num_partitions=1,
                replication_factor=1,
                assignments=[],
                configs=[],
            )
            outcomes = await controller.create_topics([new], timeout_ms)
        case "grow":
            grown = GrownTopic(name="clicks", count=5, assignments=None)
            outcomes = await controller.create_partitions([grown], timeout_ms)
        case _:
            outcomes = await controller.delete_topics([TopicToDelete(name="clicks")], timeout_ms)
    [outcome] = outcomes
    assert outcome.sentence == UNDER_WAY
    return outcome.error


@pytest.mark.parametrize("command", ["create", "grow", "delete"])
@pytest.mark.played(by=in_cluster, seed=49)
async def test_a_request_is_answered_at_its_deadline_while_zookeeper_is_slow_and_work_goes_on(
    cluster: Cluster, /, command: str
) -> None:
    await cluster.start()
    await cluster.create("clicks", 3)
    zk = cluster.nodes[1].zk
    assert zk is not None
    multi = zk.multi

    async def slow(operations: list[Operation]) -> Any:
        await asyncio.sleep(5)
        return await multi(operations)

    zk.multi = slow  # type: ignore[method-assign,assignment]
    start_s = cluster.loop.time()
    error = await ask(controller_of(cluster), command, timeout_ms=100)
    assert error is Error.REQUEST_TIMED_OUT
    assert 0.1 <= round(cluster.loop.time() - start_s, 6) < 0.2
    await asyncio.sleep(30)
    zk.multi = multi  # type: ignore[method-assign]
    await cluster.converge()
    partitions = Counter(each.topic for each in cluster.states())
    match command:
        case "create":
            assert partitions == {"clicks": 3, "views": 1}
        case "grow":
            assert partitions == {"clicks": 5}
        case _:
            assert partitions == {}
