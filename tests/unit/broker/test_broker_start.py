"""A whole broker in virtual time: start, failures while it runs, stop."""

from __future__ import annotations

import asyncio

import pytest

from kdist.broker.broker import State
from kdist.broker.identity import make_starting_paths
from kdist.errors import DiskFailed, Error, UserError
from kdist.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kdist.protocol.join_group import JoinGroupProtocol, JoinGroupRequest
from kdist.zk import znodes
from kdist.zk.cluster_values import EntitySettings, SettingsChange
from kdist.zk.election import claim
from kdist.zk.memory import MemoryZooKeeper
from tests.simulator.cluster import Cluster, create, produce, produce_request


def test_a_broker_registers_with_its_machine_and_address() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(broker_rack="r1")
        path = znodes.BROKER.path(1)
        found = znodes.BROKER.decode(path, cluster.ensemble.tree.get(path).data)
        assert (str(found.endpoints[0].listener), found.rack, found.host) == (
            "PLAINTEXT://m1:9092",
            "r1",
            "m1",
        )

    cluster.run(scenario())


@pytest.mark.parametrize("seed", range(10))
def test_a_broker_that_is_ready_creates_a_topic_at_the_first_try(seed: int) -> None:
    cluster = Cluster(seed)

    async def scenario() -> None:
        await cluster.started()
        assert (await create(await cluster.client(), "clicks")).error_code == 0

    cluster.run(scenario())


async def silent_controller(cluster: Cluster) -> MemoryZooKeeper:
    """The session of a controller that sends no requests."""
    zk = cluster.ensemble.client()
    await zk.connect()
    await make_starting_paths(zk)
    assert await claim(zk, 7, 0)
    return zk


def test_a_broker_is_not_ready_before_it_has_metadata_from_a_controller() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_a_broker_without_metadata_yet_calls_no_topic_unknown() -> None:
    """Consumers that had read from the broker before it was killed used to give up."""
    cluster = Cluster()

    async def scenario() -> None:
        other = await silent_controller(cluster)
        starting = cluster.loop.create_task(cluster.broker().start())
        await asyncio.sleep(30)
        answer = await produce(await cluster.client(), "clicks", b"early")
        assert answer.error_code == Error.NOT_LEADER_OR_FOLLOWER
        await other.close()
        await starting
        answer = await produce(await cluster.client(), "clicks", b"late")
        assert answer.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION

    cluster.run(scenario())


def test_a_disk_failure_ends_the_wait_for_a_controller() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await silent_controller(cluster)
        broker = cluster.broker()
        starting = cluster.loop.create_task(broker.start())
        await asyncio.sleep(30)
        broker.fail(UserError("broker.id 1 is taken"))
        await starting
        assert broker.state is State.STARTING
        await broker.abandon()

    cluster.run(scenario())


def test_a_stop_deregisters_and_marks_the_directory_clean() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        await broker.stop()
        assert broker.state is State.STOPPED
        assert cluster.ensemble.tree.exists(znodes.BROKER.path(1)) is None
        assert cluster.ensemble.tree.exists(znodes.CONTROLLER.path()) is None
        assert cluster.disks[1].exists("/d/.kafka_cleanshutdown")
        assert cluster.statuses[-1] == "stopped"

    cluster.run(scenario())


def test_records_are_there_after_a_restart() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        assert (await produce(client, "clicks", b"a", b"b")).base_offset == 0
        await broker.stop()
        await cluster.started()
        client = await cluster.client()
        assert (await produce(client, "clicks", b"c")).base_offset == 2

    cluster.run(scenario())


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


def test_a_broker_whose_session_expires_registers_again_and_loses_nothing() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_reads_and_writes_continue_without_zookeeper() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        cluster.ensemble.stop()
        assert (await produce(client, "clicks", b"a")).error_code == 0
        assert (await create(client, "views")).error_code == Error.NOT_CONTROLLER
        cluster.ensemble.start()
        await cluster.until(lambda: broker.service.controller.is_active)
        assert (await create(client, "views")).error_code == 0

    cluster.run(scenario())


def test_a_stop_without_zookeeper_is_still_clean() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        cluster.ensemble.stop()
        await broker.stop(drain_ms=1_000)
        assert cluster.disks[1].exists("/d/.kafka_cleanshutdown")

    cluster.run(scenario())


def test_a_disk_failure_ends_the_broker() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        cluster.disks[1].fail(after_calls=0)
        await client.tell(produce_request("clicks", b"x"), 9)
        assert isinstance(await broker.failure, DiskFailed)
        await broker.abandon()
        assert cluster.ensemble.tree.exists(znodes.BROKER.path(1)) is None

    cluster.run(scenario())


def test_a_start_with_a_taken_id_is_refused_and_undone() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(1)
        cluster.broker(2)  # gives machine 2 a disk
        twin = cluster.broker(2, broker_id="1")
        with pytest.raises(UserError, match=r"broker\.id 1 is taken"):
            await twin.start()
        twin = cluster.broker(2)
        with pytest.raises(UserError, match="belongs to broker 1"):
            await twin.start()

    cluster.run(scenario())


def test_the_registration_of_a_killed_run_is_removed_at_once() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        killed = await cluster.started()
        cluster.kill(killed)
        before_s = cluster.loop.time()
        broker = await cluster.started()
        await cluster.until(lambda: broker.service.controller.is_active)
        assert cluster.loop.time() - before_s < 1.0

    cluster.run(scenario())


def test_a_registration_of_another_disk_is_left_to_expire() -> None:
    """Its broker may be alive: a cloned machine has the same name and the same ports."""
    cluster = Cluster()

    async def scenario() -> None:
        killed = await cluster.started()
        cluster.kill(killed)
        del cluster.disks[1]
        before_s = cluster.loop.time()
        await cluster.started()
        assert cluster.loop.time() - before_s > 5.0

    cluster.run(scenario())


def test_a_waiting_consumer_is_answered_when_the_broker_stops() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_a_waiting_join_blocks_only_its_own_connection() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_a_changed_topic_setting_applies_without_a_restart() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_a_start_cancelled_during_the_scan_leaves_everything_to_the_next() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


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
