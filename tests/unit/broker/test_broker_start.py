"""A whole broker in virtual time: start, also without ZooKeeper, failures, strays, stop."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kdist.broker.broker import Broker, State
from kdist.broker.membership import make_starting_paths
from kdist.controller.channels import BrokerChannel, BrokerRequestBatch
from kdist.errors import DiskFailed, Error, UserError
from kdist.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kdist.protocol.find_coordinator import FindCoordinatorRequest
from kdist.protocol.join_group import JoinGroupProtocol, JoinGroupRequest
from kdist.testing.memory_zookeeper import MemoryZooKeeper
from kdist.zk import znodes
from kdist.zk.election import claim
from kdist.zk.errors import NoSuchServer, Refused, ZooKeeperError
from kdist.zk.values import EntitySettings, SettingsChange
from tests.simulator.cluster import Cluster, create, produce, produce_request
from tests.unit.broker.test_broker_metadata import ask

MOMENTS_MS = range(1, 160, 3)  # of a start that takes 110 ms to its registration
LIMIT = {"zookeeper_connection_timeout_ms": "10000"}

SHORT = {"log_retention_ms": "1000", "log_retention_check_interval_ms": "500"}


async def remove(zk: MemoryZooKeeper, path: str) -> None:
    for name in await zk.children(path):
        await remove(zk, f"{path}/{name}")
    await zk.delete(path)


async def damage(zk: MemoryZooKeeper, path: str) -> None:
    await zk.set(path, b"no JSON")


async def started_without(
    cluster: Cluster, topic: str, how: Callable[[MemoryZooKeeper, str], Awaitable[None]] = remove
) -> Broker:
    """A broker that comes back to a ZooKeeper where somebody has removed a topic, say."""
    broker = await cluster.started()
    client = await cluster.client()
    for name in ("clicks", topic):
        assert (await create(client, name, 2)).error_code == 0
        assert (await produce(client, name, b"v")).error_code == 0
    await broker.stop()
    zk = cluster.ensemble.client()
    await zk.connect()
    await how(zk, znodes.TOPIC.path(topic))
    return await cluster.started(**SHORT)


async def test_a_broker_registers_with_its_machine_and_address(cluster: Cluster) -> None:
    await cluster.started(broker_rack="r1")
    path = znodes.BROKER.path(1)
    found = znodes.BROKER.decode(path, cluster.ensemble.tree.get(path).data)
    assert (str(found.endpoints[0].listener), found.rack, found.host) == (
        "PLAINTEXT://m1:9092",
        "r1",
        "m1",
    )


@pytest.mark.parametrize("seed", range(10))
async def test_a_broker_that_is_ready_creates_a_topic_at_the_first_try(
    cluster: Cluster, seed: int
) -> None:
    await cluster.started()
    assert (await create(await cluster.client(), "clicks")).error_code == 0


async def silent_controller(cluster: Cluster) -> MemoryZooKeeper:
    """The session of a controller that sends no requests."""
    zk = cluster.ensemble.client()
    await zk.connect()
    await make_starting_paths(zk)
    assert await claim(zk, 7, 0)
    return zk


async def test_a_broker_is_not_ready_before_it_has_metadata_from_a_controller(
    cluster: Cluster,
) -> None:
    other = await silent_controller(cluster)
    broker = cluster.broker()
    starting = cluster.loop.create_task(broker.start())
    await asyncio.sleep(30)
    assert broker.state is State.STARTING
    assert cluster.statuses[-1] == "waiting for a controller to tell of the cluster"
    await other.close()
    await starting
    assert broker.state is State.READY
    assert (await create(await cluster.client(), "clicks")).error_code == 0


async def test_a_broker_without_metadata_yet_calls_no_topic_unknown(cluster: Cluster) -> None:
    """Consumers that had read from the broker before it was killed used to give up."""
    other = await silent_controller(cluster)
    starting = cluster.loop.create_task(cluster.broker().start())
    await asyncio.sleep(30)
    answer = await produce(await cluster.client(), "clicks", b"early")
    assert answer.error_code == Error.NOT_LEADER_OR_FOLLOWER
    await other.close()
    await starting
    answer = await produce(await cluster.client(), "clicks", b"late")
    assert answer.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_disk_failure_ends_the_wait_for_a_controller(cluster: Cluster) -> None:
    await silent_controller(cluster)
    broker = cluster.broker()
    starting = cluster.loop.create_task(broker.start())
    await asyncio.sleep(30)
    broker.fail(UserError("broker.id 1 is taken"))
    await starting
    assert broker.state is State.STARTING
    await broker.abandon()


async def test_a_stop_deregisters_and_marks_the_directory_clean(cluster: Cluster) -> None:
    broker = await cluster.started()
    await broker.stop()
    assert broker.state is State.STOPPED
    assert cluster.ensemble.tree.exists(znodes.BROKER.path(1)) is None
    assert cluster.ensemble.tree.exists(znodes.CONTROLLER.path()) is None
    assert cluster.disks[1].exists("/d/.kafka_cleanshutdown")
    assert cluster.statuses[-1] == "stopped"


async def test_records_are_there_after_a_restart(cluster: Cluster) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    assert (await produce(client, "clicks", b"a", b"b")).base_offset == 0
    await broker.stop()
    await cluster.started()
    client = await cluster.client()
    assert (await produce(client, "clicks", b"c")).base_offset == 2


def test_records_flushed_before_exposure_survive_a_power_loss() -> None:
    cluster = Cluster(seed=3)

    async def scenario() -> None:
        broker = await cluster.started(log_flush_before_expose="true")
        client = await cluster.client()
        await create(client, "clicks")
        for _ in range(5):
            assert (await produce(client, "clicks", b"x")).error_code == 0
        cluster.kill(broker, is_power_lost=True)
        await cluster.started(log_flush_before_expose="true")
        client = await cluster.client()
        assert (await produce(client, "clicks", b"y")).base_offset == 5

    cluster.run(scenario())


async def test_a_broker_whose_session_expires_registers_again_and_loses_nothing(
    cluster: Cluster,
) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    await produce(client, "clicks", b"a")
    before = broker.service.replicas.broker_epoch
    cluster.ensemble.expire(cluster.zks[1])
    await cluster.until(lambda: broker.service.replicas.broker_epoch > before)
    await cluster.until(lambda: broker.service.controller.is_active)
    assert broker.measures.broker.expired_sessions == 1
    assert (await produce(client, "clicks", b"b")).base_offset == 1


async def test_reads_and_writes_continue_without_zookeeper(cluster: Cluster) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    cluster.ensemble.stop()
    assert (await produce(client, "clicks", b"a")).error_code == 0
    assert (await create(client, "views")).error_code == Error.NOT_CONTROLLER
    cluster.ensemble.start()
    await cluster.until(lambda: broker.service.controller.is_active)
    assert (await create(client, "views")).error_code == 0


async def test_a_stop_without_zookeeper_is_still_clean(cluster: Cluster) -> None:
    broker = await cluster.started()
    cluster.ensemble.stop()
    await broker.stop(drain_ms=1_000)
    assert cluster.disks[1].exists("/d/.kafka_cleanshutdown")


async def test_a_disk_failure_ends_the_broker(cluster: Cluster) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    cluster.disks[1].fail(after_calls=0)
    await client.tell(produce_request("clicks", b"x"), 9)
    assert isinstance(await broker.failure, DiskFailed)
    await broker.abandon()
    assert cluster.ensemble.tree.exists(znodes.BROKER.path(1)) is None


async def test_a_start_with_a_taken_id_is_refused_and_undone(cluster: Cluster) -> None:
    await cluster.started(1)
    cluster.broker(2)  # gives machine 2 a disk
    twin = cluster.broker(2, broker_id="1")
    with pytest.raises(UserError, match=r"broker\.id 1 is taken"):
        await twin.start()
    twin = cluster.broker(2)
    with pytest.raises(UserError, match="belongs to broker 1"):
        await twin.start()


async def test_the_registration_of_a_killed_run_is_removed_at_once(cluster: Cluster) -> None:
    killed = await cluster.started()
    cluster.kill(killed)
    before_s = cluster.loop.time()
    broker = await cluster.started()
    await cluster.until(lambda: broker.service.controller.is_active)
    assert cluster.loop.time() - before_s < 1.0


async def test_a_registration_of_another_disk_is_left_to_expire(cluster: Cluster) -> None:
    """Its broker may be alive: a cloned machine has the same name and the same ports."""
    killed = await cluster.started()
    cluster.kill(killed)
    del cluster.disks[1]
    before_s = cluster.loop.time()
    await cluster.started()
    assert cluster.loop.time() - before_s > 5.0


async def test_a_waiting_consumer_is_answered_when_the_broker_stops(cluster: Cluster) -> None:
    broker = await cluster.started()
    client, other = await cluster.client(), await cluster.client()
    await create(client, "clicks")
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    waits = cluster.loop.create_task(
        client.send(
            FetchRequest(
                max_wait_ms=25_000,
                min_bytes=1,
                topics=[FetchTopic(topic="clicks", partitions=[partition])],
            ),
            11,
        )
    )
    await cluster.until(lambda: len(broker.service.replicas.delayed))
    before_s = cluster.loop.time()
    await broker.stop()
    answer = await waits
    assert answer.responses[0].partitions[0].error_code == Error.NOT_LEADER_OR_FOLLOWER
    assert cluster.loop.time() - before_s < 1.0
    other.close()


async def test_a_waiting_join_blocks_only_its_own_connection(cluster: Cluster) -> None:
    broker = await cluster.started(group_initial_rebalance_delay_ms="3000")
    client, other = await cluster.client(), await cluster.client()
    broker.service.creation.create_offsets_topic()
    await cluster.until(lambda: "__consumer_offsets" in broker.service.cache.topics)
    await create(client, "clicks")
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupProtocol(name="range", metadata=b"")],
    )
    joins = cluster.loop.create_task(client.send(join, 2))
    behind = cluster.loop.create_task(produce(client, "clicks", b"a"))
    before_s = cluster.loop.time()
    assert (await produce(other, "clicks", b"b")).error_code == 0
    assert cluster.loop.time() - before_s < 1.0
    assert not behind.done()
    assert (await joins).generation_id == 1
    assert (await behind).error_code == 0


async def test_a_changed_topic_setting_applies_without_a_restart(cluster: Cluster) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks", max_message_bytes="1000")
    assert (await produce(client, "clicks", b"x" * 2000)).error_code == Error.MESSAGE_TOO_LARGE
    zk = cluster.ensemble.client()
    await zk.connect()
    path = znodes.TOPIC_SETTINGS.path("clicks")
    settings = EntitySettings({"max.message.bytes": "5000"})
    await zk.set(path, znodes.TOPIC_SETTINGS.encode(settings))
    change = znodes.SETTINGS_CHANGE.encode(SettingsChange("topics/clicks"))
    await zk.create(znodes.SETTINGS_CHANGE.path(), change, sequential=True)
    log = next(iter(broker.service.directory.logs.values()))
    await cluster.until(lambda: log.settings.max_message_bytes == 5000)
    assert (await produce(client, "clicks", b"x" * 2000)).error_code == 0


async def test_a_start_cancelled_during_the_scan_leaves_everything_to_the_next(
    cluster: Cluster,
) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks", 5)
    await produce(client, "clicks", b"a")
    cluster.kill(broker)
    early = cluster.broker()

    def hear(status: str) -> None:
        if status == "opening the log directory":
            cluster.loop.call_soon(start.cancel)

    early.context = early.context._replace(status=hear)
    start = cluster.loop.create_task(early.start())
    with pytest.raises(asyncio.CancelledError):
        await start
    assert early.state is State.STOPPED
    assert len(early.service.directory.logs) < 5
    assert not cluster.disks[1].exists("/d/.kafka_cleanshutdown")
    await cluster.started()
    assert (await produce(await cluster.client(), "clicks", b"b")).base_offset == 1


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> list[str]:
        cluster = Cluster(seed=5)

        async def scenario() -> list[str]:
            broker = await cluster.started()
            client = await cluster.client()
            await create(client, "clicks", 3)
            await produce(client, "clicks", b"a")
            await broker.stop()
            return [*cluster.statuses, str(cluster.loop.time()), str(cluster.rng.random())]

        found: list[str] = cluster.run(scenario())
        return found

    assert run() == run()


async def test_a_broker_without_metadata_yet_does_not_request_the_offsets_topic(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic probably exists. Clients retry, and waiting requests are answered in the end."""
    may_send, send = asyncio.Event(), BrokerChannel._send_update_metadata

    async def send_late(
        channel: BrokerChannel, peer: Any, batch: BrokerRequestBatch, *rows: Any
    ) -> None:
        if channel.broker.id == 2 and batch.is_full:  # not the first one, which has only brokers
            await may_send.wait()
        await send(channel, peer, batch, *rows)

    monkeypatch.setattr(BrokerChannel, "_send_update_metadata", send_late)
    await cluster.started(1)
    await create(await cluster.client(1), "clicks", 2)
    broker = cluster.broker(2)
    starting = cluster.loop.create_task(broker.start())
    await cluster.until(lambda: broker._gateway.endpoints)
    client = await cluster.client(2)
    found = await client.send(FindCoordinatorRequest(key="g"), 3)
    assert found.error_code == Error.COORDINATOR_NOT_AVAILABLE
    refused = await produce(client, "clicks", b"x")
    assert refused.error_code == Error.NOT_LEADER_OR_FOLLOWER
    asked = cluster.loop.create_task(ask(client, 9, "clicks"))
    await asyncio.sleep(10)
    assert not asked.done()
    may_send.set()
    assert len((await asked).topics[0].partitions) == 2
    await starting
    assert "__consumer_offsets" not in broker.service.cache.topics
    assert "is not created" not in caplog.text


@pytest.mark.parametrize("moment_ms", MOMENTS_MS)
def test_a_start_resumes_when_zookeeper_is_back(moment_ms: int) -> None:
    cluster = Cluster(seed=moment_ms)

    async def scenario() -> None:
        broker = cluster.broker(**LIMIT)
        starting = cluster.loop.create_task(broker.start())
        await asyncio.sleep(moment_ms / 1000)
        cluster.ensemble.stop()
        await asyncio.sleep(4)
        cluster.ensemble.start()
        await starting
        assert broker.state is State.READY
        client = await cluster.client()
        assert (await create(client, "clicks")).error_code == 0
        assert (await produce(client, "clicks", b"x")).error_code == 0

    cluster.run(scenario())


@pytest.mark.parametrize("moment_ms", MOMENTS_MS)
def test_a_start_resumes_in_a_new_session_when_its_own_has_expired(moment_ms: int) -> None:
    cluster = Cluster(seed=moment_ms)

    async def scenario() -> None:
        broker = cluster.broker(**LIMIT)
        starting = cluster.loop.create_task(broker.start())
        await asyncio.sleep(moment_ms / 1000)
        cluster.ensemble.expire(cluster.zks[1])
        await starting
        path = znodes.BROKER.path(1)
        await cluster.until(lambda: cluster.ensemble.tree.exists(path))
        await cluster.until(lambda: broker.service.controller.is_active)
        assert (await create(await cluster.client(), "clicks")).error_code == 0

    cluster.run(scenario())


@pytest.mark.parametrize("moment_ms", range(2, 110, 12))
def test_a_start_waits_for_zookeeper_for_as_long_as_it_is_away(
    moment_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a power cut, when brokers' hosts are back hours before ZooKeeper's."""
    cluster = Cluster(seed=moment_ms)
    said: list[str] = []

    async def scenario() -> None:
        broker = cluster.broker(**LIMIT)
        broker.context = broker.context._replace(status=said.append)
        starting = cluster.loop.create_task(broker.start())
        await asyncio.sleep(moment_ms / 1000)
        cluster.ensemble.stop()
        await asyncio.sleep(3 * 3600)
        assert said[-1].startswith("waiting for ZooKeeper: ")
        assert json.loads(broker._health_page().body)["state"] == "starting"
        cluster.ensemble.start()
        await starting
        assert broker.state is State.READY
        assert said[-1].startswith("ready: ")

    with caplog.at_level(logging.WARNING):
        cluster.run(scenario())
    told = [each for each in caplog.records if each.message.startswith("waiting for ZooKeeper")]
    assert 100 < len(told) < 3 * 3600  # at each attempt, not in each second


@pytest.mark.parametrize("moment_ms", range(2, 110, 12))
def test_a_start_that_waits_for_zookeeper_can_be_stopped_at_once(moment_ms: int) -> None:
    cluster = Cluster(seed=moment_ms)

    async def scenario() -> None:
        broker = cluster.broker(**LIMIT)
        starting = cluster.loop.create_task(broker.start())
        await asyncio.sleep(moment_ms / 1000)
        cluster.ensemble.stop()
        await asyncio.sleep(600)
        before_s = cluster.loop.time()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert cluster.loop.time() - before_s < 1
        assert broker.state is State.STOPPED

    cluster.run(scenario())


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("connect", NoSuchServer("there is no host of zk9:2181")),
        ("connect", Refused("/", "ZooKeeper says AuthFailedError")),
        ("exists", Refused("/brokers", "ZooKeeper says NoAuthError")),
    ],
)
def test_a_zookeeper_that_is_wrong_or_refuses_ends_the_start_at_once(
    call: str, error: ZooKeeperError, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(seed=1)

    async def refuse(*_: object) -> None:
        raise error

    async def scenario() -> None:
        broker = cluster.broker(**LIMIT)
        monkeypatch.setattr(broker.context.zk, call, refuse)
        with pytest.raises(UserError, match=f"ZooKeeper on memory: {error}"):
            await broker.start()
        assert cluster.loop.time() < 1
        assert broker.state is State.STOPPED

    cluster.run(scenario())


def test_logs_of_unknown_topics_are_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await started_without(cluster, "gone")
        await asyncio.sleep(600)

    cluster.run(scenario())
    (told,) = [each.getMessage() for each in caplog.records if "gone-" in each.getMessage()]
    assert told.startswith(
        "2 logs in /d are of no partition of the cluster, and are kept: gone-0, gone-1"
    )
    assert "clicks" not in told


def test_logs_of_a_topic_whose_znode_cannot_be_read_are_not_called_stray(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An operator might delete them, and repair the topic's znode afterwards."""
    cluster = Cluster()

    async def scenario() -> None:
        await started_without(cluster, "broken", damage)
        await asyncio.sleep(600)

    cluster.run(scenario())
    assert "no partition of the cluster" not in caplog.text


def test_nothing_is_reported_where_the_cluster_knows_all_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        assert (await create(await cluster.client(), "clicks", 2)).error_code == 0
        await broker.stop()
        await cluster.started()
        await asyncio.sleep(600)

    cluster.run(scenario())
    assert "no partition of the cluster" not in caplog.text


async def test_retention_leaves_logs_of_unknown_topics_alone(cluster: Cluster) -> None:
    """Their topics' retention is unknown too."""
    broker = await started_without(cluster, "gone")
    await asyncio.sleep(600)
    ends = {str(key): log.start_offset for key, log in broker.service.directory.logs.items()}
    assert ends == {"clicks-0": 1, "clicks-1": 0, "gone-0": 0, "gone-1": 0}
