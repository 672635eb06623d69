"""A client under failures: leaders that moved, connections that broke, brokers that are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import pytest

from kdist.client.admin.offsets import alter_group_offsets, list_group_offsets
from kdist.client.admin.topics import create_topic, delete_topic
from kdist.client.cluster import (
    Address,
    Cluster,
    NoBroker,
    Outcome,
    did_you_mean,
    parse_addresses,
    raise_worst,
)
from kdist.client.fetch_once import fetch_at
from kdist.client.offsets import TIMESTAMPS, find_epoch_ends, find_offsets
from kdist.client.produce_once import produce
from kdist.errors import ApiError, Error, UserError
from kdist.model import NO_LEADER, TopicPartition
from kdist.network.client import ClientSettings
from kdist.network.network import AsyncioNetwork
from kdist.protocol.list_offsets import LATEST_TIMESTAMP
from kdist.protocol.metadata import MetadataTopicResult
from kdist.records.build import build_batch, read_batch
from tests.refusals import refused
from tests.simulator.cluster import PORT, create
from tests.simulator.cluster import Cluster as BrokerCluster
from tests.simulator.cluster import Cluster as SimulatedCluster
from tests.simulator.cluster import produce as produce_simulated
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster
from tests.unit.client.producer_world import Scene, play

pytestmark = pytest.mark.played(by=play)

T = TypeVar("T")
NOBODY = Address("127.0.0.1", 1)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with cli_cluster(tmp_path_factory.mktemp("cluster")) as brokers:
        yield brokers


@asynccontextmanager
async def client(running: CliCluster, retry_ms: float = 5_000) -> AsyncIterator[Cluster]:
    network = AsyncioNetwork(asyncio.get_running_loop())
    settings = ClientSettings(client_id="test")
    cluster = Cluster(network, parse_addresses(running.address), settings, retry_ms)
    try:
        yield cluster
    finally:
        cluster.close()


def with_client(
    running: CliCluster, work: Callable[[Cluster], Awaitable[T]], retry_ms: float = 5_000
) -> T:
    async def run() -> T:
        async with client(running, retry_ms) as cluster:
            return await work(cluster)

    return asyncio.run(run())


async def partition_of(cluster: Cluster, topic: str) -> TopicPartition:
    """A new topic's only partition, whose leader is known."""
    await create_topic(cluster, topic, 1, 1)
    await cluster.topic(topic)
    return TopicPartition(topic, 0)


def batch(*values: bytes) -> bytearray:
    return build_batch(values, timestamp_ms=1)


PARTITION, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_leader_that_moved_is_looked_up(running: CliCluster) -> None:
    async def work(cluster: Cluster) -> None:
        partition = await partition_of(cluster, "moved")
        cluster.leaders[partition] = 3 - cluster.leaders[partition]
        assert await produce(cluster, {partition: batch(b"a")}) == {partition: 0}
        cluster.leaders[partition] = 3 - cluster.leaders[partition]
        ends = await find_offsets(cluster, [partition], LATEST_TIMESTAMP)
        assert ends == {partition: 1}

    with_client(running, work)


def test_a_broker_whose_address_is_dead_is_found_again(running: CliCluster) -> None:
    async def work(cluster: Cluster) -> None:
        partition = await partition_of(cluster, "dead-address")
        cluster.brokers = dict.fromkeys(cluster.brokers, NOBODY)
        assert await produce(cluster, {partition: batch(b"a")}) == {partition: 0}

    with_client(running, work)


def test_a_fetch_connects_again_after_its_connections_broke(running: CliCluster) -> None:
    async def work(cluster: Cluster) -> None:
        partition = await partition_of(cluster, "broken")
        for offset in range(3):
            await produce(cluster, {partition: batch(b"%d" % offset)})
            for each in cluster._lane._clients.values():
                each.close()
            fetched = await fetch_at(cluster, partition, offset)
            assert [record.value for record in read_batch(fetched.buffer)] == [b"%d" % offset]

    with_client(running, work)


def test_a_fetch_waits_for_a_leader_up_to_a_deadline(running: CliCluster) -> None:
    async def work(cluster: Cluster) -> None:
        partition = await partition_of(cluster, "leaderless")
        await produce(cluster, {partition: batch(b"a")})
        cluster.leaders[partition] = NO_LEADER
        assert len(list((await fetch_at(cluster, partition, 0)).headers())) == 1
        with refused(Error.UNKNOWN_TOPIC_OR_PARTITION, "leaderless-7"):
            await fetch_at(cluster, TopicPartition("leaderless", 7), 0)

    with_client(running, work, retry_ms=300)


def test_a_fetch_beyond_the_end_is_an_error(running: CliCluster) -> None:
    async def work(cluster: Cluster) -> None:
        partition = await partition_of(cluster, "beyond")
        with pytest.raises(ApiError, match="beyond-0") as told:
            await fetch_at(cluster, partition, 5)
        assert told.value.error is Error.OFFSET_OUT_OF_RANGE

    with_client(running, work)


def test_a_retriable_error_is_retried_until_the_deadline(running: CliCluster) -> None:
    tries = 0

    async def fail() -> None:
        nonlocal tries
        tries += 1
        raise ApiError(Error.LEADER_NOT_AVAILABLE)

    with refused(Error.LEADER_NOT_AVAILABLE):
        with_client(running, lambda cluster: cluster.retried(fail), retry_ms=250)
    assert tries >= 2


def test_a_permanent_error_is_raised_at_once(running: CliCluster) -> None:
    tries = 0

    async def fail() -> None:
        nonlocal tries
        tries += 1
        raise ApiError(Error.INVALID_TOPIC_EXCEPTION)

    with refused(Error.INVALID_TOPIC_EXCEPTION):
        with_client(running, lambda cluster: cluster.retried(fail))
    assert tries == 1


def test_cancelling_while_connecting_leaves_no_half_open_connection() -> None:
    world = BrokerCluster()

    async def scenario() -> None:
        await world.started()
        settings, bootstrap = ClientSettings("test"), [Address("m1", PORT)]
        taken_ms = 0
        while taken_ms < 20:
            taken_ms += 1
            cluster = Cluster(world.network.host("client"), bootstrap, settings)
            with suppress(TimeoutError):
                async with asyncio.timeout(taken_ms / 1000):
                    await cluster.metadata()
            assert (await cluster.metadata()).brokers, f"after {taken_ms} ms"
            cluster.close()

    world.run(scenario())


def test_a_retry_does_not_reopen_a_closed_client(running: CliCluster) -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.metadata()
        asking = asyncio.ensure_future(cluster.retried(cluster.metadata))
        await asyncio.sleep(0)
        cluster.close()
        with pytest.raises(UserError, match="the client is closed"):
            await asking
        assert all(each.is_closed for each in cluster._lane._clients.values())

    with_client(running, work)


def test_brokers_that_do_not_know_each_other_yet_are_a_retriable_error(running: CliCluster) -> None:
    async def work(cluster: Cluster) -> None:
        with pytest.raises(ApiError, match="do not know each other yet") as told:
            await cluster.any_client()
        assert told.value.error.retriable

    with_client(running, work)


def test_a_cluster_that_has_never_answered_is_not_waited_for() -> None:
    async def work() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        cluster = Cluster(network, [NOBODY], ClientSettings(client_id="test"))
        with pytest.raises(NoBroker, match=r"127\.0\.0\.1:1 \(connection refused\)"):
            await cluster.retried(cluster.metadata)

    asyncio.run(work())


def test_the_error_when_nobody_answers_names_the_address_once() -> None:
    async def told(host: str) -> str:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)  # says nothing
        address = Address(host, server.sockets[0].getsockname()[1])
        settings = ClientSettings("test", request_timeout_ms=50)
        with pytest.raises(NoBroker) as raised:
            await Cluster(AsyncioNetwork(loop), [address], settings).metadata()
        server.close()
        return str(raised.value).replace(str(address), "X")

    assert asyncio.run(told("127.0.0.1")) == (
        "no broker answers at X (accepted the connection, but did not answer in time)"
    )
    assert asyncio.run(told("no such host")).startswith("no broker answers at X (name or service")


def test_offsets_are_committed_and_read_back(running: CliCluster) -> None:
    async def work(cluster: Cluster) -> None:
        partition = await partition_of(cluster, "positions")
        assert await list_group_offsets(cluster, "nobody") == {}
        await alter_group_offsets(cluster, "somebody", {partition: 7})
        await alter_group_offsets(cluster, "somebody", {})
        assert await list_group_offsets(cluster, "somebody") == {partition: 7}

    with_client(running, work)


def test_several_addresses_and_ipv6_are_accepted() -> None:
    assert parse_addresses("a:1, [::1]:9092") == (Address("a", 1), Address("::1", 9092))


def test_only_a_similar_name_is_suggested() -> None:
    assert did_you_mean("clcks", ["clicks", "orders"]) == ": did you mean clicks?"
    assert did_you_mean("xyz", ["clicks", "orders"]) == ""


def test_of_several_errors_the_permanent_one_is_raised() -> None:
    passing = Outcome(Error.NOT_LEADER_OR_FOLLOWER.code)
    final = Outcome(Error.MESSAGE_TOO_LARGE.code, "570 bytes")
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    with pytest.raises(ApiError, match="a-1: 570 bytes") as told:
        raise_worst({first: passing, second: final})
    assert told.value.error is Error.MESSAGE_TOO_LARGE
    with refused(Error.NOT_LEADER_OR_FOLLOWER, "a-0"):
        raise_worst({first: passing, second: passing})
    raise_worst({})


def test_a_topic_that_was_deleted_has_no_leaders(running: CliCluster) -> None:
    async def work(cluster: Cluster) -> None:
        await create_topic(cluster, "passing", 2)
        await cluster.topic("passing")
        assert TopicPartition("passing", 1) in cluster.leaders
        await delete_topic(cluster, "passing")
        await cluster.metadata(["passing"])
        assert not [each for each in cluster.leaders if each.topic == "passing"]

    with_client(running, work)


@pytest.mark.played(by=play, hosts=2)
async def test_a_broker_that_hangs_is_asked_last_once_another_has_answered(scene: Scene, /) -> None:
    bootstrap = [Address("b0", PORT), Address("b1", PORT)]
    settings = ClientSettings("test", request_timeout_ms=9_000)
    cluster = Cluster(scene.network.host("client"), bootstrap, settings)
    await cluster.metadata()
    assert (await cluster.any_client()).name == f"b0:{PORT}"
    scene.network.partition({"client", "b1"}, {"b0"})
    await cluster.metadata()  # waits for the first
    begun_ns = scene.clock.monotonic_ns()
    await cluster.metadata()
    assert (await cluster.any_client()).name == f"b1:{PORT}"
    assert scene.clock.monotonic_ns() - begun_ns < 1e9
    cluster.close()


class Silent(asyncio.BufferedProtocol):
    """A server that accepts connections and never answers."""

    def __init__(self, lost: list[float], loop: asyncio.AbstractEventLoop) -> None:
        self._lost = lost
        self._loop = loop

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(1000)

    def buffer_updated(self, nbytes: int) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        self._lost.append(self._loop.time())


@pytest.mark.parametrize("is_reached", [True, False])
async def test_the_first_connection_does_not_wait_for_a_server_that_hangs(
    scene: Scene, /, is_reached: bool
) -> None:
    loop, lost = asyncio.get_running_loop(), list[float]()
    hanging = scene.network.host("hanging")
    await hanging.listen(lambda: Silent(lost, loop), "", PORT)
    if not is_reached:
        scene.network.partition({"client", "b0"}, {"hanging"})
    bootstrap = [Address("hanging", PORT), Address("hanging", PORT + 1), Address("b0", PORT)]
    cluster = Cluster(scene.network.host("client"), bootstrap, ClientSettings("test"))
    begun_s = loop.time()
    assert len((await cluster.metadata()).brokers) == 1
    assert 1 < loop.time() - begun_s < 5
    await asyncio.sleep(0.1)
    assert len(lost) == (1 if is_reached else 0)  # it was given up, before it had answered
    begun_s = loop.time()
    await cluster.metadata()
    assert loop.time() - begun_s < 0.1
    cluster.close()


async def test_a_server_that_never_answers_costs_the_connection_timeout(scene: Scene, /) -> None:
    loop = asyncio.get_running_loop()
    hanging = scene.network.host("hanging")
    await hanging.listen(lambda: Silent([], loop), "", PORT)
    settings = ClientSettings("test", request_timeout_ms=30_000, connect_timeout_ms=10_000)
    cluster = Cluster(scene.network.host("client"), [Address("hanging", PORT)], settings)
    begun_s = loop.time()
    with pytest.raises(NoBroker, match="accepted the connection, but did not answer"):
        await cluster.metadata()
    assert 9 < loop.time() - begun_s < 12
    cluster.close()


@pytest.mark.played(by=play, hosts=3)
async def test_servers_that_all_hang_are_waited_for_concurrently(scene: Scene, /) -> None:
    loop = asyncio.get_running_loop()
    scene.network.partition({"client"}, {"b0", "b1", "b2"})
    bootstrap = [Address(f"b{number}", PORT) for number in range(3)]
    settings = ClientSettings("test", connect_timeout_ms=10_000)
    cluster = Cluster(scene.network.host("client"), bootstrap, settings)
    begun_s = loop.time()
    with pytest.raises(NoBroker, match=r"no broker answers at b0.*; b1.*; b2"):
        await cluster.metadata()
    assert loop.time() - begun_s < 15
    cluster.close()


async def test_an_answer_without_a_topics_name_is_refused(
    scene: Scene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = scene.brokers.topic

    def nameless(name: str) -> MetadataTopicResult:
        told = tell(name)
        told.name = None
        return told

    monkeypatch.setattr(scene.brokers, "topic", nameless)
    settings = ClientSettings("test")
    cluster = Cluster(scene.network.host("client"), [Address("b0", PORT)], settings)
    answer = await cluster.metadata(["clicks"])
    assert (answer.topics, cluster.leaders) == ([], {})
    cluster.close()


@pytest.mark.parametrize(
    ("partition", "error"),
    [
        (TopicPartition("t", 0), Error.LEADER_NOT_AVAILABLE),
        (TopicPartition("t", 9), Error.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("nowhere", 0), Error.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_partition_that_does_not_exist_is_not_said_to_lack_a_leader(
    monkeypatch: pytest.MonkeyPatch, partition: TopicPartition, error: Error
) -> None:
    async def metadata(cluster: Cluster, _: Iterable[str]) -> None:
        cluster.leaders[TopicPartition("t", 0)] = NO_LEADER

    async def work() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        cluster = Cluster(network, [], ClientSettings("test"), retry_ms=150)
        await find_offsets(cluster, [partition], TIMESTAMPS["latest"])

    monkeypatch.setattr(Cluster, "metadata", metadata)
    with refused(error, str(partition)):
        asyncio.run(work())


def test_an_epoch_ends_where_its_last_record_does_and_one_to_come_is_left_out() -> None:
    simulated = SimulatedCluster()

    async def work() -> None:
        await simulated.started(1)
        client = await simulated.client()
        await client.negotiate()
        await create(client, "t", partitions=2)
        await produce_simulated(client, "t", b"1", b"2")
        network = simulated.network.host("asks")
        cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("asks"))
        assert await find_epoch_ends(cluster, {PARTITION: 0, OTHER: 99}) == {PARTITION: 2}
        assert await find_epoch_ends(cluster, {}) == {}
        cluster.close()

    simulated.run(work())
