"""Requests for the controller while none is known: they wait, but not for ever."""

from __future__ import annotations

import asyncio

import pytest
from controller_world import SESSION_TIMEOUT_MS, Cluster, in_cluster

from kdist.controller.commands import TopicOutcome
from kdist.controller.controller import NOT_LOADED, UNDER_WAY, Controller
from kdist.errors import Error
from kdist.protocol.create_partitions import GrownTopic
from kdist.protocol.create_topics import NewTopic
from kdist.zk import znodes
from kdist.zk.client import Operation


def ask(
    controller: Controller | None, timeout_ms: int = 30_000
) -> asyncio.Task[list[TopicOutcome]]:
    assert controller is not None
    new = NewTopic(
        name="clicks", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    return asyncio.ensure_future(controller.create_topics([new], timeout_ms))


async def outcome_of(asked: asyncio.Task[list[TopicOutcome]]) -> TopicOutcome:
    (outcome,) = await asked
    return outcome


@pytest.mark.played(by=in_cluster, seed=21, brokers=1)
async def test_a_candidate_answers_as_soon_as_it_is_elected_and_has_loaded(
    cluster: Cluster, /
) -> None:
    cluster.nodes[1].start()
    asked = ask(cluster.nodes[1].controller)
    assert not cluster.exists(znodes.CONTROLLER.path())
    assert (await outcome_of(asked)).error is Error.NONE


@pytest.mark.played(by=in_cluster, seed=28, brokers=1)
async def test_an_expired_controller_stands_for_election_again_once_registered(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    node = cluster.nodes[1]
    for _ in range(5):
        node.expire()
        await cluster.until(lambda: node.controller and not node.controller.is_active)
        assert (await outcome_of(ask(node.controller))).error in (
            Error.NONE,
            Error.TOPIC_ALREADY_EXISTS,
        )


@pytest.mark.played(by=in_cluster, seed=22, brokers=1)
async def test_a_controller_that_loads_for_longer_than_a_request_waits_says_so(
    cluster: Cluster, /
) -> None:
    node = cluster.nodes[1]
    node.start()
    outcome = await outcome_of(ask(node.controller, timeout_ms=0))
    assert (outcome.error, outcome.sentence) == (Error.REQUEST_TIMED_OUT, NOT_LOADED)
    await cluster.converge()
    assert cluster.topics() == []


@pytest.mark.played(by=in_cluster, seed=23)
async def test_a_controller_answers_after_a_short_loss_of_its_connection(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    first = cluster.nodes[1]
    assert first.zk is not None
    cluster.ensemble.suspend(first.zk)
    assert first.controller is not None
    await cluster.until(lambda: not first.controller.is_active)
    asked = ask(first.controller)
    await asyncio.sleep(1)
    assert not asked.done()
    cluster.ensemble.resume(first.zk)
    assert (await outcome_of(asked)).error is Error.NONE


@pytest.mark.parametrize("turns", range(0, 40, 2))
@pytest.mark.played(by=in_cluster, seed=29)
async def test_a_creation_interrupted_by_a_lost_connection_happens_once(
    cluster: Cluster, /, turns: int
) -> None:
    await cluster.start()
    zk = cluster.nodes[1].zk
    assert zk is not None
    asked = ask(cluster.nodes[1].controller)
    cluster.loop.arm(turns + 1, lambda: cluster.ensemble.suspend(zk))
    await asyncio.sleep(1)
    cluster.ensemble.resume(zk)
    assert (await outcome_of(asked)).error is Error.NONE
    await cluster.converge()
    assert cluster.topics() == ["clicks"]


@pytest.mark.played(by=in_cluster, seed=30)
async def test_a_creation_interrupted_until_its_deadline_may_be_made_yet_and_the_answer_says_so(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    zk = cluster.nodes[1].zk
    assert zk is not None
    multi = zk.multi

    async def lose_answer(operations: list[Operation]) -> None:
        zk.multi = multi  # type: ignore[method-assign]
        await multi(operations)
        cluster.ensemble.suspend(zk)
        await asyncio.sleep(1)  # the term ends meanwhile

    zk.multi = lose_answer  # type: ignore[method-assign,assignment]
    outcome = await outcome_of(ask(cluster.nodes[1].controller, timeout_ms=500))
    assert (outcome.error, outcome.sentence) == (Error.REQUEST_TIMED_OUT, UNDER_WAY)
    cluster.ensemble.resume(zk)
    await cluster.converge()
    assert cluster.topics() == ["clicks"]


@pytest.mark.parametrize("turns", range(0, 40, 2))
@pytest.mark.played(by=in_cluster, seed=30)
async def test_added_partitions_interrupted_by_a_lost_connection_are_added_once(
    cluster: Cluster, /, turns: int
) -> None:
    await cluster.start()
    assert await cluster.create("clicks", 2) == "NONE"
    zk, controller = cluster.nodes[1].zk, cluster.nodes[1].controller
    assert zk is not None
    assert controller is not None
    grown = GrownTopic(name="clicks", count=5, assignments=None)
    asked = asyncio.ensure_future(controller.create_partitions([grown], 30_000))
    cluster.loop.arm(turns + 1, lambda: cluster.ensemble.suspend(zk))
    await asyncio.sleep(1)
    cluster.ensemble.resume(zk)
    outcome = await outcome_of(asked)
    assert (outcome.error, outcome.sentence) == (Error.NONE, None)
    await cluster.converge()
    assert len(cluster.states()) == 5


@pytest.mark.played(by=in_cluster, seed=24)
async def test_a_controller_that_is_cut_off_sends_clients_away_once_its_session_may_be_over(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    first, lost = cluster.nodes[1], []
    assert first.zk is not None
    assert first.controller is not None
    first.controller.on_loss.append(lambda: lost.append(cluster.loop.time()))
    cluster.ensemble.suspend(first.zk)
    await cluster.until(lambda: not first.controller.is_active)
    start_s = cluster.loop.time()
    assert (await outcome_of(ask(first.controller, 60_000))).error is Error.NOT_CONTROLLER
    waited_ms = (cluster.loop.time() - start_s) * 1000
    session_timeout_ms = cluster.config.zookeeper.session_timeout_ms
    assert SESSION_TIMEOUT_MS <= waited_ms <= session_timeout_ms
    assert lost == [cluster.loop.time()]


@pytest.mark.played(by=in_cluster, seed=25)
async def test_a_controller_that_resigns_answers_waiting_requests(cluster: Cluster, /) -> None:
    await cluster.start()
    first = cluster.nodes[1]
    assert first.zk is not None
    assert first.controller is not None
    cluster.ensemble.suspend(first.zk)
    await cluster.until(lambda: not first.controller.is_active)
    asked, start_s = ask(first.controller), cluster.loop.time()
    await asyncio.sleep(0)
    resigning = asyncio.ensure_future(first.controller.resign())
    assert (await outcome_of(asked)).error is Error.NOT_CONTROLLER
    assert cluster.loop.time() - start_s < 1
    resigning.cancel()


@pytest.mark.played(by=in_cluster, seed=26)
async def test_a_broker_that_is_cut_off_and_not_controller_sends_clients_away_at_once(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    second = cluster.nodes[2]
    assert second.zk is not None
    cluster.ensemble.suspend(second.zk)
    await asyncio.sleep(0.1)
    start_s = cluster.loop.time()
    assert (await outcome_of(ask(second.controller))).error is Error.NOT_CONTROLLER
    assert cluster.loop.time() == start_s


@pytest.mark.played(by=in_cluster, seed=27, brokers=2)
async def test_a_broker_about_to_be_elected_answers_the_requests_that_wait(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    second = cluster.nodes[2]
    cluster.nodes[1].kill()
    await cluster.until(lambda: not cluster.exists(znodes.CONTROLLER.path()))
    await asyncio.sleep(0.003)  # it has heard
    assert second.controller is not None
    assert (await outcome_of(ask(second.controller))).error is Error.NONE
