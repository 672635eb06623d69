"""The gate's two questions as tables of clusters, and how it reads them from ZooKeeper."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.client.admin.client_settings import AdminSettings
from kdist.client.admin.disks import LogDirectory, Replica
from kdist.client.cluster import Address, Cluster
from kdist.config.addresses import Listener
from kdist.errors import ApiError, Error, UserError
from kdist.model import TopicPartition
from kdist.ops import cluster_view
from kdist.ops.cluster_view import (
    ask_min_isr,
    broker_addresses,
    brokers_of_host,
    cluster_addresses,
    read_view,
)
from kdist.ops.gate import PROBE_PREFIX, PartitionView, View, review_return, review_stop
from kdist.testing.memory_zookeeper import MemoryEnsemble
from kdist.testing.virtual_clock import VirtualClock
from kdist.zk import znodes
from kdist.zk.client import Znode, ZooKeeper
from kdist.zk.registration import BrokerRegistration, Endpoint
from kdist.zk.values import ControllerInfo, EntitySettings, PartitionState, TopicAssignment

T = TypeVar("T")
ALL = (1, 2, 3)


def partition(
    number: int,
    replicas: tuple[int, ...] = ALL,
    isr: tuple[int, ...] | None = None,
    leader: int | None = None,
    min_isr: int = 2,
    topic: str = "clicks",
) -> PartitionView:
    in_sync = replicas if isr is None else isr
    led_by = in_sync[0] if leader is None else leader
    return PartitionView(TopicPartition(topic, number), replicas, led_by, in_sync, min_isr)


def view(
    *partitions: PartitionView,
    brokers: tuple[int, ...] = ALL,
    controller: int | None = 1,
    is_reassigning: bool = False,
    mover: str = "",
) -> View:
    return View(frozenset(brokers), controller, partitions, is_reassigning, mover)


def reasons(seen: View, *brokers: int, allowed: bool = False) -> list[str]:
    going = brokers or (2,)
    return list(review_stop(seen, going, ALL, allows_single_replica=allowed).reasons)


def test_a_broker_of_a_healthy_cluster_may_go_down() -> None:
    assert reasons(view(partition(0), partition(1))) == []


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (view(brokers=(1, 2)), "broker 3 not registered"),
        (view(brokers=(2,), controller=2), "brokers 1, 3 not registered"),
        (view(controller=None), "there is no controller"),
        (view(controller=9), "the controller, broker 9, is not registered"),
        (view(partition(4, (1, 3), leader=-1)), "1 partition has no leader: clicks-4"),
        (view(is_reassigning=True), "partitions are being reassigned"),
        (
            view(partition(4, (1, 3))._replace(is_moving=True), is_reassigning=True),
            "1 partition is being reassigned: clicks-4",
        ),
        (
            view(partition(0, isr=(1, 2))),
            "clicks-0 would have 1 in-sync replica, and asks for 2",
        ),
        (
            view(partition(0, isr=(2,), min_isr=0)),
            "clicks-0 would have 0 in-sync replicas, and asks for 1",
        ),
        (
            view(partition(0, (1, 2), min_isr=3)),
            "clicks-0 would have 1 in-sync replica, and asks for 2",
        ),
        (view(partition(0, (2,), min_isr=1)), "1 partition has no replica elsewhere: clicks-0"),
    ],
)
def test_a_broker_may_not_go_down(seen: View, reason: str) -> None:
    assert reasons(seen) == [reason]


@pytest.mark.parametrize(
    ("seen", "moves"),
    [
        (view(partition(0)), None),
        (view(partition(0, (1, 3), leader=-1)), None),
        (view(is_reassigning=True), "partitions are being reassigned"),
        (view(mover="bert"), "partitions are being reassigned, by bert"),
        (
            view(partition(4, (1, 3))._replace(is_moving=True), mover="bert"),
            "1 partition is being reassigned, by bert: clicks-4",
        ),
    ],
)
def test_moves_are_told_apart_from_other_reasons(seen: View, moves: str | None) -> None:
    """Between two of a plan's nothing may be moving: the plan is waited for all the same."""
    verdict = review_stop(seen, [2], ALL)
    assert verdict.moves == moves
    assert moves is None or verdict.reasons == (moves,)


def test_an_in_sync_replica_that_has_just_died_does_not_count() -> None:
    seen = view(partition(0, (2, 3), min_isr=1), brokers=(1, 2))
    assert review_stop(seen, [2], ()).reasons == (
        "clicks-0 would have 0 in-sync replicas, and asks for 1",
    )


def test_a_partition_under_min_isr_on_other_brokers_is_no_reason() -> None:
    assert reasons(view(partition(0, (1, 3), isr=(1,)))) == []


def test_a_partition_of_one_replica_is_listed_and_may_be_accepted() -> None:
    verdict = review_stop(view(partition(0, (2,))), [2], ALL, allows_single_replica=True)
    assert verdict == ((), (TopicPartition("clicks", 0),), None)


def test_of_many_partitions_only_some_are_named() -> None:
    (reason,) = reasons(view(*(partition(n, (1, 3), leader=-1) for n in range(7))))
    assert reason.endswith("clicks-0, clicks-1, clicks-2, clicks-3, clicks-4 and 2 more")


def test_a_leftover_probe_topic_is_no_reason() -> None:
    left = partition(0, (2,), leader=-1, topic=f"{PROBE_PREFIX}2")
    assert reasons(view(left)) == []


def test_a_hosts_brokers_are_judged_as_one() -> None:
    """Each could go down alone: their partitions are others, but for one."""
    seen = view(
        partition(0, (1, 2, 5), min_isr=2),
        partition(1, (1, 3, 5), min_isr=2),
        partition(2, (2, 3, 5), min_isr=2),
        brokers=(1, 2, 3, 5),
    )
    assert [reasons(seen, each) for each in (2, 3)] == [[], []]
    assert reasons(seen, 2, 3) == ["clicks-2 would have 1 in-sync replica, and asks for 2"]


def test_partitions_that_are_on_a_host_alone_go_offline_with_it() -> None:
    seen = view(partition(0, (2, 3), min_isr=1))
    assert reasons(seen, 2) == []
    assert reasons(seen, 2, 3) == ["1 partition has no replica elsewhere: clicks-0"]
    assert reasons(seen, 2, 3, allowed=True) == []


def test_a_host_is_back_once_each_of_its_brokers_is_in_every_isr() -> None:
    seen = view(partition(0, isr=(1, 3)), partition(1, isr=(1, 2)), partition(2, (1, 3)))
    assert review_return(seen, [2, 3], ALL).reasons == (
        "broker 2 is not yet in the ISR of clicks-0",
        "broker 3 is not yet in the ISR of clicks-1",
    )


@given(
    st.sets(st.sampled_from(ALL), min_size=1),
    st.integers(1, 3),
    st.sets(st.sampled_from(ALL), min_size=1, max_size=2),
)
def test_a_stop_that_is_allowed_leaves_enough_replicas_in_sync(
    isr: set[int], min_isr: int, going: set[int]
) -> None:
    each = partition(0, isr=tuple(sorted(isr)), min_isr=min_isr)
    may_go = not reasons(view(each), *going)
    assert may_go == (len(isr - going) >= min_isr)


def test_a_broker_is_back_once_it_is_in_every_isr() -> None:
    seen = view(partition(0), partition(1, isr=(1, 3)), partition(2, (1, 3), isr=(1,)))
    assert review_return(seen, [2], ALL).reasons == ("broker 2 is not yet in the ISR of clicks-1",)
    assert review_return(view(partition(0)), [2], ALL).reasons == ()


def test_a_broker_that_is_not_registered_is_not_back() -> None:
    assert review_return(view(brokers=(1, 3)), [2], ()).reasons == ("broker 2 not registered",)


LOST = partition(4, (3,), leader=-1)  # broker 3 alone has it
HELD = partition(5, (2, 3), isr=(3,), leader=3)  # broker 2 was not in sync when 3 died


def test_what_only_dead_brokers_could_lead_does_not_freeze_a_roll() -> None:
    """One dead host, or one dead disk, would keep every other broker from being restarted."""
    seen = view(partition(0, (1, 2), min_isr=1), LOST, HELD, brokers=(1, 2))
    assert reasons_of_stop(seen, down=(3,)) == ()
    assert len(reasons_of_stop(seen, down=())) == 2
    # One that is alive could lead: the gate waits for its election.
    unled = partition(0, (1, 3), leader=3)
    assert len(reasons_of_stop(view(unled, brokers=(1, 2)), down=(3,))) == 1
    assert len(reasons_of_stop(view(LOST), down=(3,))) == 1


def reasons_of_stop(seen: View, down: tuple[int, ...]) -> tuple[str, ...]:
    return review_stop(seen, [2], (1, 2), down=down).reasons


def test_a_broker_that_returns_does_not_wait_for_what_dead_ones_have() -> None:
    """A roll stood still for an hour, for each broker, once another host had died."""
    seen = view(partition(0), LOST, HELD, brokers=(1, 2))
    assert review_return(seen, [2], ()).reasons == ()
    behind = view(partition(0, isr=(1,)), LOST, HELD, brokers=(1, 2))
    assert review_return(behind, [2], ()).reasons == ("broker 2 is not yet in the ISR of clicks-0",)
    # Whoever names those that must be there wants to hear of everything.
    assert len(review_return(seen, [2], (1, 2)).reasons) == 2


# What is read from ZooKeeper


def with_zookeeper(work: Callable[[ZooKeeper], Awaitable[T]]) -> T:
    async def run() -> T:
        client = MemoryEnsemble(VirtualClock(), random.Random(1)).client()
        await client.connect()
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())


async def add_topic(keeper: ZooKeeper, topic: str, replicas: tuple[int, ...]) -> None:
    value = TopicAssignment({0: replicas}, None).encode()
    await keeper.create(znodes.TOPIC.path(topic), value, make_parents=True)


async def add_state(keeper: ZooKeeper, topic: str, isr: tuple[int, ...]) -> None:
    value = PartitionState(isr[0], 0, isr, 1).encode()
    await keeper.create(znodes.PARTITION_STATE.path(topic, 0), value, make_parents=True)


def test_a_view_has_brokers_controller_states_and_settings() -> None:
    async def work(keeper: ZooKeeper) -> View:
        for broker in (1, 2):
            await keeper.create(znodes.BROKER.path(broker), make_parents=True)
        await keeper.create(znodes.CONTROLLER.path(), ControllerInfo(2, 0).encode())
        await add_topic(keeper, "clicks", (1, 2))
        await add_state(keeper, "clicks", (2,))
        own = EntitySettings({"min.insync.replicas": "2"}).encode()
        await keeper.create(znodes.TOPIC_SETTINGS.path("clicks"), own, make_parents=True)
        await add_topic(keeper, "new", (1,))
        await add_topic(keeper, "doomed", (1,))
        await keeper.create(znodes.TOPIC_DELETION.path("doomed"), make_parents=True)
        await keeper.create(znodes.REASSIGNMENT.path(), make_parents=True)
        return await read_view(keeper, 3, VirtualClock())

    assert with_zookeeper(work) == View(
        frozenset({1, 2}),
        2,
        (
            PartitionView(TopicPartition("clicks", 0), (1, 2), 2, (2,), 2),
            PartitionView(TopicPartition("new", 0), (1,), -1, (), 3),
        ),
        is_reassigning=True,
    )


@pytest.mark.parametrize(
    ("adding", "removing", "is_moving"),
    [({}, {}, False), ({0: (3,)}, {}, True), ({}, {0: (1,)}, True), ({0: ()}, {1: (2,)}, False)],
)
def test_moves_begun_by_the_api_are_seen_in_their_topics(
    adding: dict[int, tuple[int, ...]], removing: dict[int, tuple[int, ...]], is_moving: bool
) -> None:
    async def work(keeper: ZooKeeper) -> View:
        value = TopicAssignment({0: (1, 2, 3)}, None, adding, removing).encode()
        await keeper.create(znodes.TOPIC.path("clicks"), value, make_parents=True)
        await add_state(keeper, "clicks", (1, 2))
        return await read_view(keeper, 1, VirtualClock())

    seen = with_zookeeper(work)
    (found,) = seen.partitions
    assert found.is_moving == is_moving
    # Who is only being added is not waited for when it is back.
    returned = review_return(seen._replace(brokers=frozenset(ALL), controller=1), [3], ())
    assert bool(returned.reasons) is not bool(adding.get(0))


@pytest.mark.parametrize(("given", "min_isr"), [("2", 2), ("soon", 3)])
def test_settings_for_all_brokers_override_the_file(given: str, min_isr: int) -> None:
    async def work(keeper: ZooKeeper) -> View:
        await add_topic(keeper, "new", (1,))
        shared = EntitySettings({"min.insync.replicas": given}).encode()
        path = znodes.BROKER_SETTINGS.path(znodes.DEFAULT_ENTITY)
        await keeper.create(path, shared, make_parents=True)
        return await read_view(keeper, 3, VirtualClock())

    assert [each.min_isr for each in with_zookeeper(work).partitions] == [min_isr]


def test_a_cluster_without_brokers_is_empty() -> None:
    assert with_zookeeper(lambda keeper: read_view(keeper, 1, VirtualClock())) == View(
        frozenset(), None, ()
    )


def test_a_broker_that_is_not_registered_has_no_address() -> None:
    with pytest.raises(UserError, match="broker 7 is not registered"):
        with_zookeeper(lambda keeper: broker_addresses(keeper, 7, AdminSettings()))


def test_a_hosts_brokers_are_those_that_registered_with_its_name() -> None:
    async def work(keeper: ZooKeeper) -> list[int]:
        for broker, host in ((12, "h2"), (7, "h1"), (3, "h1"), (9, None)):
            data = znodes.BROKER.encode(BrokerRegistration((), 0, host=host))
            await keeper.create(znodes.BROKER.path(broker), data, make_parents=True)
        with pytest.raises(
            UserError, match=r"no broker is registered on host 'h3': there are h1, h2"
        ):
            await brokers_of_host(keeper, "h3")
        return await brokers_of_host(keeper, "h1")

    assert with_zookeeper(work) == [3, 7]


@pytest.mark.parametrize(
    ("silent", "lacks"),
    [((), 60 + 500 + 0), ((1,), None), ((3,), 60)],
    ids=["all answer", "it does not answer", "a leader does not answer"],
)
def test_a_broker_lacks_what_the_leaders_logs_are_larger(
    monkeypatch: pytest.MonkeyPatch, silent: tuple[int, ...], lacks: int | None
) -> None:
    """Of a partition that it has nothing of, all; one that is larger here takes nothing away."""
    sizes = {1: {0: 40, 2: 9}, 2: {0: 100, 1: 7}, 3: {1: 500, 2: 8}, 4: {0: 1 << 40}}

    async def directories(_cluster: object, broker: int) -> list[LogDirectory]:
        if broker in silent:
            raise ApiError(Error.UNKNOWN_SERVER_ERROR, "no")
        found = [Replica(TopicPartition("clicks", n), s, 0) for n, s in sizes[broker].items()]
        return [LogDirectory("/data", None, None, None, tuple(found))]

    class Brokers:
        brokers = (1, 2, 3, 4)

        async def metadata(self) -> None: ...

        async def retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
            return await attempt()

    monkeypatch.setattr(cluster_view, "log_directories", directories)
    behind = [
        partition(0, isr=(2,)),
        partition(1, isr=(3,)),
        partition(2, isr=(3,)),
        partition(3, isr=(9,), leader=9),
    ]
    work = cluster_view.lacking_bytes(cast("Cluster", Brokers()), 1, behind)
    assert asyncio.run(work) == lacks


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        (AdminSettings(), Address("b1", 9092)),
        (AdminSettings(security_protocol="SSL"), Address("b1", 9093)),
        (AdminSettings(bootstrap_servers=("b2:9094",)), Address("b2", 9094)),
    ],
)
def test_a_broker_is_asked_where_it_listens_by_the_security_protocol(
    settings: AdminSettings, address: Address
) -> None:
    """Unless its address is given, as of brokers with several listeners by that protocol."""
    tls, plain = Listener("OUTSIDE", "b1", 9093), Listener("INSIDE", "b1", 9092)
    endpoints = (Endpoint(tls, "SSL"), Endpoint(plain, "PLAINTEXT"))

    async def work(keeper: ZooKeeper) -> list[list[Address]]:
        data = znodes.BROKER.encode(BrokerRegistration(endpoints, 0))
        await keeper.create(znodes.BROKER.path(7), data, make_parents=True)
        one = await broker_addresses(keeper, 7, settings)
        return [[*one], [*await cluster_addresses(keeper, settings)]]

    assert with_zookeeper(work) == [[address]] * 2


def test_without_a_listener_by_the_security_protocol_nothing_is_taken_for_granted() -> None:
    endpoints = (Endpoint(Listener("CLIENTS", "b1", 9093), "SASL_SSL"),)

    async def work(keeper: ZooKeeper) -> None:
        data = znodes.BROKER.encode(BrokerRegistration(endpoints, 0))
        await keeper.create(znodes.BROKER.path(7), data, make_parents=True)
        with pytest.raises(UserError, match="broker 7 has no listener for PLAINTEXT"):
            await broker_addresses(keeper, 7, AdminSettings())
        with pytest.raises(UserError, match="no broker has a listener for PLAINTEXT"):
            await ask_min_isr(keeper, AdminSettings())

    with_zookeeper(work)


def test_whether_a_broker_of_a_large_site_is_back_reads_what_it_has_alone() -> None:
    """480 brokers with 4,800 partitions of three replicas: 30 are this one's."""
    read: list[str] = []

    async def work(keeper: ZooKeeper) -> View:
        for topic in range(10):
            name = f"t{topic}"
            placed = {n: (n, (n + 1) % 480, (n + 2) % 480) for n in range(480)}
            value = TopicAssignment(placed, None).encode()
            await keeper.create(znodes.TOPIC.path(name), value, make_parents=True)
        for broker in range(480):
            await keeper.create(znodes.BROKER.path(broker), make_parents=True)
        get_many = keeper.get_many

        async def noted(paths: Sequence[str]) -> list[Znode | None]:
            read.extend(paths)
            return await get_many(paths)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(keeper, "get_many", noted)
            return await read_view(keeper, 1, VirtualClock(), [7])

    seen = with_zookeeper(work)
    assert len(read) == 30
    assert {p.partition.partition for p in seen.partitions} == {5, 6, 7}
    assert len(seen.brokers) == 480
