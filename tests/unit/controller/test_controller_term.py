"""A term begins with what was written before it, though its server of ZooKeeper lags behind."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable
from unittest.mock import AsyncMock

import pytest

from kdist.config.addresses import Listener
from kdist.config.load import broker_from
from kdist.config.topic import TopicSettings
from kdist.controller import term as term_module
from kdist.controller.commands import CommandContext, ListReassignments
from kdist.controller.context import ControllerContext, TermCrashed
from kdist.controller.elections import Plan
from kdist.controller.term import ControllerDependencies, ControllerTerm
from kdist.controller.writing import FencedWriter
from kdist.errors import ApiError, DiskFailed, Error
from kdist.metrics.controller import ControllerMetrics
from kdist.model import TopicPartition
from kdist.testing.memory_zookeeper import MemoryEnsemble
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.election import Leadership, claim
from kdist.zk.registration import BrokerRegistration, Endpoint
from kdist.zk.values import PartitionState, TopicAssignment, VettedDisk
from tests.refusals import refused

CLICKS = TopicPartition("clicks", 0)
STATE = PartitionState(-1, 3, (1,), 1)
SERVERS = ("a", "b", "c")
GIVEN = {
    "broker.id": "1",
    "log.dir": "/d",
    "listeners": "PLAINTEXT://:9092",
    "zookeeper.connect": "z",
}


async def fill(zk: ZooKeeper) -> Leadership:
    """A cluster with one partition, as an earlier controller left it."""
    for path in znodes.STARTING_PATHS:
        await zk.create(path, make_parents=True)
    assignment = TopicAssignment({0: (1,)}, None)
    await zk.create(znodes.TOPIC.path("clicks"), assignment.encode())
    path = znodes.PARTITION_STATE.path(*CLICKS)
    await zk.create(path, STATE.encode(), make_parents=True)
    leadership = await claim(zk, 1, 0)
    assert leadership is not None
    return leadership


def term_of(
    zk: ZooKeeper, clock: VirtualClock, rng: random.Random, writer: FencedWriter
) -> ControllerTerm:
    context = ControllerDependencies(
        zk=zk,
        clock=clock,
        broker_id=1,
        config=lambda: broker_from(GIVEN),
        connect=AsyncMock(side_effect=ApiError(Error.NETWORK_EXCEPTION)),
        listener="PLAINTEXT",
        rng=rng,
        metrics=ControllerMetrics(),
        on_planned=lambda _: None,
        load_settings=AsyncMock(),
        settings_of=lambda _: TopicSettings(),
    )
    return ControllerTerm(context, writer)


@pytest.mark.parametrize("server", SERVERS)
def test_a_term_reads_what_the_last_one_wrote_though_its_server_lags(server: str) -> None:
    clock = VirtualClock()
    loop, rng = VirtualLoop(clock), random.Random(1)
    ensemble = MemoryEnsemble(clock, rng, 2, servers=SERVERS, loop=loop)

    async def scenario() -> None:
        early, late = ensemble.client(), ensemble.client(servers=(server,))
        await early.connect()
        leadership = await fill(early)
        await late.connect()
        await late.sync("/")
        ensemble.lag(server, 5_000)
        path = znodes.PARTITION_STATE.path(*CLICKS)
        await early.set(path, STATE._replace(leader_epoch=4).encode())
        term = term_of(late, clock, rng, FencedWriter(late, leadership))
        await term.on_controller_failover()
        state = term.cluster.leader_and_isr(CLICKS)
        assert state is not None
        assert (state.leader_epoch, state.zk_version) == (4, 1)
        await early.close()
        await late.close()

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


def test_commands_are_refused_in_their_order_when_a_term_ends() -> None:
    """Else who hears of it first is decided by addresses, and no run is like another."""
    clock = VirtualClock()
    loop, rng = VirtualLoop(clock), random.Random(1)
    refused: list[int] = []

    async def scenario() -> None:
        zk = MemoryEnsemble(clock, rng, 2, loop=loop).client()
        await zk.connect()
        term = term_of(zk, clock, rng, FencedWriter(zk, await fill(zk)))
        for number in range(100):
            answer = term.submit(AsyncMock())
            answer.add_done_callback(lambda _, number=number: refused.append(number))
        term.close()
        await asyncio.sleep(0)
        await zk.close()

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
    assert refused == list(range(100))


class Poison:
    """A command that meets a bug, perhaps after it has written something."""

    def __init__(self, bug: Exception, *, writes: bool = False) -> None:
        self.bug, self.writes = bug, writes

    async def carry_out(self, context: CommandContext) -> None:
        if self.writes:
            await context.executor._writer.write_disks({9: VettedDisk("d", None)}, {})
        raise self.bug


def played(act: Callable[[ControllerTerm], Awaitable[None]]) -> None:
    """With a term that has loaded the cluster."""
    clock = VirtualClock()
    loop, rng = VirtualLoop(clock), random.Random(1)

    async def scenario() -> None:
        zk = MemoryEnsemble(clock, rng, 2, loop=loop).client()
        await zk.connect()
        term = term_of(zk, clock, rng, FencedWriter(zk, await fill(zk)))
        await term.handle(term.on_controller_failover)
        await act(term)
        await zk.close()

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


pytestmark = pytest.mark.played(by=played)


async def test_a_bug_that_a_command_meets_before_it_writes_costs_that_command(
    term: ControllerTerm, /
) -> None:
    running = asyncio.ensure_future(term.run())
    poisoned = [term.submit(Poison(ZeroDivisionError())) for _ in range(2)]
    after = term.submit(ListReassignments(None))
    assert await after == {}
    for each in poisoned:
        with refused(Error.UNKNOWN_SERVER_ERROR):
            each.result()
    assert term._context.metrics.crashed == 2
    assert not running.done()
    running.cancel()


@pytest.mark.parametrize(
    "poison", [Poison(ZeroDivisionError(), writes=True), Poison(AssertionError())]
)
async def test_a_bug_after_which_the_context_may_be_wrong_ends_the_term_too(
    term: ControllerTerm, /, poison: Poison
) -> None:
    poisoned, after = term.submit(poison), term.submit(ListReassignments(None))
    with pytest.raises(TermCrashed):
        await term.run()
    term.close()
    for answer, told in ((poisoned, Error.UNKNOWN_SERVER_ERROR), (after, Error.NOT_CONTROLLER)):
        with pytest.raises(ApiError) as failure:
            answer.result()
        assert failure.value.error is told
    assert term._context.metrics.crashed == 1


async def test_a_bug_that_an_event_meets_ends_the_term_and_not_the_broker(
    term: ControllerTerm, /
) -> None:
    with pytest.raises(TermCrashed):
        await term.handle(AsyncMock(side_effect=KeyError))
    assert term._context.metrics.crashed == 1


async def test_a_failed_disk_is_no_bug_of_the_term(term: ControllerTerm, /) -> None:
    term.submit(Poison(DiskFailed("/d", OSError())))
    with pytest.raises(DiskFailed):
        await term.run()


async def test_the_end_of_a_broker_has_only_its_own_partitions_planned(
    term: ControllerTerm, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[TopicPartition] = []
    plan = term_module.plan_for_broker_change

    def noted(cluster: ControllerContext, some: Iterable[TopicPartition], epoch: int) -> Plan:
        planned.extend(some := list(some))
        return plan(cluster, some, epoch)

    zk = term._context.zk
    listener = Endpoint(Listener("PLAINTEXT", "there", 9092), "PLAINTEXT")
    for broker_id in (1, 2):
        registration = BrokerRegistration((listener,), 0)
        await zk.create(znodes.BROKER.path(broker_id), registration.encode())
    for name, replicas in (("views", (2, 1)), ("orders", (1,))):
        assignment = TopicAssignment({0: replicas}, uuid.UUID(int=len(name)))
        await zk.create(znodes.TOPIC.path(name), assignment.encode())
    running = asyncio.ensure_future(term.run())
    views = TopicPartition("views", 0)
    while len(term.cluster.brokers) < 2 or term.cluster.leader_and_isr(views) is None:
        await asyncio.sleep(0.01)
    monkeypatch.setattr(term_module, "plan_for_broker_change", noted)
    await zk.delete(znodes.BROKER.path(2))
    while len(term.cluster.brokers) > 1 or not planned:
        await asyncio.sleep(0.01)
    assert planned == [views]
    state = term.cluster.leader_and_isr(views)
    assert state is not None
    assert state.leader == 1
    running.cancel()
    term.close()
