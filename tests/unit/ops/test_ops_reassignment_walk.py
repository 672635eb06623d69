"""Every small plan, from each state that its carrying out can be left in.

A topic has a partition for each way from one, two or three replicas to any others of the brokers:
growing, shrinking, swapping, another order, another leader. All are one plan, which whole brokers
carry out in virtual time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import permutations, product
from types import MappingProxyType

import pytest

from kdist.broker.broker import Broker
from kdist.client.admin.reassignments import Reassignment
from kdist.client.cluster import Address
from kdist.client.cluster import Cluster as Connected
from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.ops.reassignment import execution
from kdist.ops.reassignment.plan import Move, reversed_moves
from kdist.ops.reassignment.progress import Status, Statuses, status_of
from kdist.replication.partition import Partition
from kdist.zk import znodes
from kdist.zk.values import TopicAssignment
from tests.examples import first_of
from tests.simulator.cluster import PORT, Cluster

TOPIC = "clicks"
RATE = 50 << 20
Replicas = tuple[int, ...]


def ways(brokers: int) -> list[tuple[Replicas, Replicas]]:
    """From the first one, two and three brokers to each other choice."""
    targets = [each for size in (1, 2, 3) for each in permutations(range(1, brokers + 1), size)]
    origins = [tuple(range(1, size + 1)) for size in range(1, min(brokers, 3) + 1)]
    return [(before, after) for before, after in product(origins, targets) if before != after]


def plan_of(ways: Sequence[tuple[Replicas, Replicas]]) -> list[Move]:
    return [Move(TopicPartition(TOPIC, at), *way, 1 << 20) for at, way in enumerate(ways)]


# What the cluster says, and what it means


def during(move: Move) -> Reassignment:
    """The move under way, as the controller has it."""
    rest = tuple(each for each in move.before if each not in move.after)
    return Reassignment((*move.after, *rest), move.added, rest)


@pytest.mark.parametrize("brokers", [2, 3, 4])
def test_each_state_of_each_small_plan_is_known_by_what_the_cluster_says(brokers: int) -> None:
    for move in plan_of(ways(brokers)):
        under_way = during(move)
        (back,) = reversed_moves([move])
        is_told = {move.before: Status.WAITING, move.after: Status.DONE}
        for replicas in (move.before, under_way.replicas, move.after):  # a broker may be behind
            assert status_of(move, replicas, under_way) is Status.MOVING
            assert status_of(back, replicas, under_way) is Status.GOING_BACK
            expected = is_told.get(replicas, Status.MOVING)
            assert status_of(move, replicas, None) is expected
        for replicas, status in is_told.items():
            assert status_of(back, replicas, None) is not status
        other = (9, *move.before)
        assert status_of(move, other, None) is Status.ELSEWHERE
        assert status_of(move, move.before, Reassignment(other, (9,), ())) is Status.ELSEWHERE
        assert status_of(move, None, None) is Status.GONE


# Carried out


class Site:
    """Brokers with that topic, and the client that moves it."""

    def __init__(
        self,
        brokers: int,
        ways: Sequence[tuple[Replicas, Replicas]],
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.world = Cluster(settings=settings)
        self.moves = plan_of(ways)
        self.back = reversed_moves(self.moves)
        self.brokers: dict[int, Broker] = {}
        self._ids = range(1, brokers + 1)
        addresses = [Address(f"m{each}", PORT) for each in self._ids]
        network = self.world.network.host("client")
        self.connected = Connected(network, addresses, ClientSettings("tests"))

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def around() -> None:
            for each in self._ids:
                self.brokers[each] = await self.world.started(each)
            before = {each.partition.partition: each.before for each in self.moves}
            topic = TopicAssignment(before, None).encode()
            await self.world.zks[1].create(znodes.TOPIC.path(TOPIC), topic)
            await self.world.until(
                lambda: len(self.brokers[1].service.replicas.partitions) == len(before)
            )
            await asyncio.sleep(1)
            await scenario()
            self.connected.close()

        self.world.run(around())

    # What is asked

    async def execute(self, moves: Sequence[Move], at_once: int = 5) -> list[int]:
        """In so much time as its steps take; moves that nothing holds up take moments."""
        looks: list[Statuses] = []
        async with asyncio.timeout(len(moves) + 60):
            dead = await execution.carry_out(self.connected, moves, at_once, RATE, looks.append)
        assert {*looks[-1].values()} == {Status.DONE}
        return dead

    async def counts(self, moves: Sequence[Move]) -> dict[str, int]:
        statuses = await execution.read_statuses(self.connected, moves)
        return Counter(each.value for each in statuses.values())

    async def verify(self, moves: Sequence[Move]) -> dict[str, int]:
        """As the command does: it removes throttles, too."""
        counts = await self.counts(moves)
        await execution.unthrottle_if_idle(self.connected, moves)
        return counts

    # What is found

    def assigned(self) -> TopicAssignment:
        path = znodes.TOPIC.path(TOPIC)
        return znodes.TOPIC.decode(path, self.world.ensemble.tree.get(path).data)

    def throttled(self) -> list[str]:
        """The entities with a setting of throttles."""
        tree = self.world.ensemble.tree
        paths = [znodes.TOPIC_SETTINGS.path(TOPIC)]
        paths += [znodes.BROKER_SETTINGS.path(each) for each in self._ids]
        return [each for each in paths if tree.exists(each) and b"throttled" in tree.get(each).data]

    def check_ended(self, moves: Sequence[Move]) -> None:
        """All is where the plan has it, nothing moves, and no throttle is left."""
        topic = self.assigned()
        found = topic.partitions
        assert found == {**found, **{each.partition.partition: each.after for each in moves}}
        assert not topic.adding
        assert not topic.removing
        assert self.throttled() == []

    # What happens

    def hold_copies(self) -> None:
        """Have no broker copy what it is to get, until `let_go`."""
        for broker in self.brokers.values():
            fetchers = broker.service.replicas._fetchers
            update = fetchers.update

            def update_mine(
                partition: Partition, broker: Broker = broker, update: object = update
            ) -> None:
                assert callable(update)
                if broker.id not in partition.adding:
                    update(partition)

            fetchers.update = update_mine  # type: ignore[method-assign]

    def let_go(self) -> None:
        self.let_go_of(*self.brokers)

    def let_go_of(self, *brokers: int) -> None:
        for broker in brokers:
            replicas = self.brokers[broker].service.replicas
            del replicas._fetchers.update
            for each in list(replicas.partitions.values()):
                replicas._fetchers.update(each)

    async def begin(self, moves: Sequence[Move], seconds: float) -> asyncio.Task[list[int]]:
        """A carrying out that has gone on for a while."""
        carrying_out = execution.carry_out(self.connected, moves, 5, RATE, lambda _: None)
        task = asyncio.create_task(carrying_out)
        await asyncio.sleep(seconds)
        return task

    async def interrupt(self, task: asyncio.Task[list[int]]) -> None:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def stop(self, broker: int) -> None:
        self.world.kill(self.brokers.pop(broker))
        await asyncio.sleep(20)  # its session runs out

    async def restart(self, broker: int) -> None:
        self.brokers[broker] = await self.world.started(broker)
        await asyncio.sleep(20)  # it is in sync


@pytest.fixture(params=first_of([2, 3, 4], 2))
def site(request: pytest.FixtureRequest) -> Site:
    brokers: int = request.param
    return Site(brokers, ways(brokers))


def test_each_small_plan_is_carried_out_and_taken_back(site: Site) -> None:
    async def scenario() -> None:
        count = len(site.moves)
        assert await site.verify(site.moves) == {"waiting": count}
        for moves, back in ((site.moves, site.back), (site.back, site.moves)):
            assert await site.execute(moves) == []
            site.check_ended(moves)
            assert await site.verify(moves) == {"done": count}
            assert await site.verify(back) == {"waiting": count}
            await site.execute(moves)  # again: nothing is left to do
            site.check_ended(moves)

    site.run(scenario)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("then", ["resumed", "cancelled", "reversed"])
@pytest.mark.parametrize("is_way_back", [False, True])
def test_each_small_plan_is_left_amid_and_gone_on_with_or_taken_back(
    site: Site, is_way_back: bool, then: str, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        if is_way_back:
            await site.execute(site.moves)
            site.moves, site.back = site.back, site.moves
        site.hold_copies()
        begun = await site.begin(site.moves, 30)
        expected = await site.counts(site.moves)
        assert expected.get("moving")
        assert not {*expected} - {"moving", "waiting", "done"}
        with monkeypatch.context() as patched:
            if is_killed:

                async def nothing(*_: object) -> str:
                    return ""

                patched.setattr(execution, "_leave", nothing)
            await site.interrupt(begun)
        assert site.throttled()  # what has begun goes on, throttled
        assert await site.verify(site.moves) == expected
        assert site.throttled()
        moving = expected["moving"]
        other_way = await site.verify(site.back)
        assert other_way["going back"] == moving
        assert site.throttled()
        if then == "resumed":
            site.let_go()
            await site.execute(site.moves)
            site.check_ended(site.moves)
            return
        if then == "cancelled":
            wrong_way = await execution.cancel(site.connected, site.back)
            assert wrong_way.partitions == []
            assert len(wrong_way.going_back) == moving
            cancelled = await execution.cancel(site.connected, site.moves)
            assert (len(cancelled.partitions), cancelled.going_back) == (moving, [])
            counts = await site.verify(site.moves)
            assert counts.get("done", 0) == expected.get("done", 0)
            assert not {*counts} - {"done", "waiting"}
            assert site.throttled() == []
        site.let_go()
        await site.execute(site.back)
        site.check_ended(site.back)

    site.run(scenario)


def losses() -> Iterator[tuple[int, int]]:
    for brokers in (2, 3, 4):
        for broker in range(1, brokers + 1):
            yield brokers, broker


@pytest.mark.parametrize("loss", first_of(losses(), 5))
def test_each_small_plan_ends_with_a_broker_down_and_is_completed_once_it_is_back(
    loss: tuple[int, int],
) -> None:
    brokers, dead = loss
    site = Site(brokers, ways(brokers))

    async def scenario() -> None:
        await site.stop(dead)
        refused = [each for each in site.moves if dead in each.added]
        for each in refused:
            with pytest.raises(UserError, match=f"broker {dead} is to get replicas"):
                await site.execute([each])
        assert site.throttled() == []
        moves = [each for each in site.moves if each not in refused]
        # Whoever is to be copied from, or to be in sync in the end, is waited for, for a while.
        waits = [each for each in moves if needs(each, dead)]
        if waits:
            with pytest.raises(UserError, match=f"cannot get there without broker {dead}"):
                await site.execute(moves)
            assert await site.counts(moves) == Counter(
                {"moving": len(waits), "done": len(moves) - len(waits)}
            )
            cancelled = await execution.cancel(site.connected, waits)
            assert len(cancelled.partitions) == len(waits)
            counts = await site.verify(waits)
            assert counts.get("going back", 0) == len(cancelled.going_back)
            assert counts.get("going back", 0) + counts.get("waiting", 0) == len(waits)
        else:
            assert await site.execute(moves) in ([], [dead])
        await site.restart(dead)
        await site.execute(site.moves)
        site.check_ended(site.moves)
        await site.execute(site.back)
        site.check_ended(site.back)

    site.run(scenario)


def test_a_cancelled_move_whose_former_replicas_are_not_in_sync_is_known_to_go_back() -> None:
    site = Site(4, [((1, 2), (3, 4))], {"min.insync.replicas": "2"})

    async def scenario() -> None:
        site.hold_copies()
        begun = await site.begin(site.moves, 5)
        site.let_go_of(3)  # it gets in sync, so that the cluster can do without broker 2
        await asyncio.sleep(20)
        await site.interrupt(begun)
        await site.stop(2)
        await asyncio.sleep(20)
        cancelled = await execution.cancel(site.connected, site.moves)
        assert len(cancelled.partitions) == len(cancelled.going_back) == 1
        assert await site.verify(site.moves) == {"going back": 1}
        assert await site.verify(site.back) == {"moving": 1}
        again = await execution.cancel(site.connected, site.back)
        assert again == ([], [], [site.moves[0].partition])
        assert site.throttled()
        # Who changes his mind goes on with what was cancelled.
        site.let_go_of(4)
        assert await site.execute(site.moves) == [2]
        assert site.throttled() == [znodes.BROKER_SETTINGS.path(2)]
        await site.restart(2)
        assert await site.verify(site.moves) == {"done": 1}
        site.check_ended(site.moves)

    site.run(scenario)


def test_a_broker_that_is_restarted_meanwhile_is_waited_for() -> None:
    site = Site(3, [((1, 2), (3, 2)), ((1,), (3, 1))])

    async def scenario() -> None:
        site.hold_copies()
        begun = await site.begin(site.moves, 5)
        await site.stop(2)
        await site.restart(2)
        site.let_go_of(1, 3)
        assert await begun == []
        site.check_ended(site.moves)

    site.run(scenario)


def test_moves_that_wait_for_a_dead_broker_hold_up_no_others() -> None:
    stuck = [((1, 2), (3, 2))] * 2
    site = Site(4, [*stuck, ((1,), (3,)), ((1,), (4,))])

    async def scenario() -> None:
        await site.stop(2)
        with pytest.raises(UserError, match="cannot get there without broker 2"):
            await site.execute(site.moves, at_once=1)
        assert await site.counts(site.moves) == {"moving": 2, "done": 2}

    site.run(scenario)


def needs(move: Move, dead: int) -> bool:
    """Whether the move cannot end without this broker."""
    is_led = {*move.before} != {dead}
    takes_time = move.added or {*move.before} - {*move.after}
    return bool(takes_time) and (dead in move.after or not is_led)
