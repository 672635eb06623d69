"""Replicas in virtual time: what three keep and refuse as brokers go, lose caches, or clean."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kdist.broker.broker import Broker
from kdist.client.admin.clients import AsyncAdmin
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.batch import read_header
from kdist.records.build import build_batch, read_batch
from kdist.replication.follower_session import FetchState
from kdist.replication.partition import Partition
from kdist.zk import znodes
from kdist.zk.values import PartitionState
from tests.simulator.cluster import PORT, Cluster, produce

IDS = (1, 2, 3)
TOPIC = "orders"


class Stage:
    """Three brokers, and a topic of one partition with three replicas, of which two must do."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def begin(self, **configs: str) -> None:
        for each in IDS:
            await self.cluster.started(each)
        brokers = [f"m{each}:{PORT}" for each in IDS]
        network = self.cluster.network.host("operator")
        settings = {"min.insync.replicas": "2"} | {
            name.replace("_", "."): value for name, value in configs.items()
        }
        async with AsyncAdmin(brokers, network=network) as admin:
            await admin.create_topic(TOPIC, 1, 3, settings)
        await self.cluster.until(lambda: len(self.replicas()) == len(IDS))

    def replicas(self) -> dict[int, Partition]:
        """The partition on each living broker."""
        found = {
            each.id: each.service.replicas.partitions.get((TOPIC, 0))
            for each in self.cluster.brokers.values()
            if not self.cluster.processes[each.id]._is_killed and each._service is not None
        }
        return {broker_id: each for broker_id, each in found.items() if each is not None}

    def leader(self) -> Broker:
        (found,) = (i for i, each in self.replicas().items() if each.is_leader)
        return self.cluster.brokers[found]

    def followers(self) -> list[Broker]:
        leader = self.leader()
        return [each for i, each in self.cluster.brokers.items() if i != leader.id]

    async def send(self, *values: bytes, acks: int = -1) -> Any:
        """Produce to the leader."""
        return await produce(await self.cluster.client(self.leader().id), TOPIC, *values, acks=acks)

    async def settle(self, end_offset: int) -> None:
        """Let time pass until every living replica ends there, and knows it to be committed."""
        await self.cluster.until(
            lambda: all(
                each.log.end_offset == each.high_watermark == end_offset
                for each in self.replicas().values()
            )
        )

    def contents(self) -> list[bytes]:
        """The bytes of the log on each living replica."""
        return [
            b"".join(segment.file.read(0, segment.size) for segment in each.log.segments)
            for each in self.replicas().values()
        ]


def play(scenario: Callable[[Stage], Awaitable[None]], seed: int = 0, **settings: str) -> None:
    cluster = Cluster(
        seed, settings={name.replace("_", "."): value for name, value in settings.items()}
    )

    async def run() -> None:
        await scenario(Stage(cluster))

    cluster.run(run())


pytestmark = pytest.mark.played(by=play)

SETTING = "flush.before.expose"


def state(stage: Stage) -> PartitionState:
    """The partition's, in ZooKeeper."""
    path = znodes.PARTITION_STATE.path(TOPIC, 0)
    return znodes.PARTITION_STATE.decode(path, stage.cluster.ensemble.tree.get(path).data)


async def set_flushing(stage: Stage, broker_id: int, value: str) -> None:
    network = stage.cluster.network.host("operator")
    async with AsyncAdmin([f"m{broker_id}:{PORT}"], network=network) as admin:
        await admin.incremental_alter_topic_configs(TOPIC, {SETTING: value, "flush.ms": "500"})


def are_set(stage: Stage, value: str) -> bool:
    """Whether all replicas that are alive are flushed first, and marked so, or none of them."""
    is_first = value == "true"
    found = {
        (each.log.is_flushed_first, each.log.flush_mark is not None)
        for each in stage.replicas().values()
    }
    return found == {(is_first, is_first)}


def kill(stage: Stage, *broker_ids: int, is_power_lost: bool) -> None:
    for each in broker_ids:
        stage.cluster.kill(stage.cluster.brokers[each], is_power_lost=is_power_lost)


RETENTION_MS = 2_000
TABLE = {
    "cleanup_policy": "compact",
    "segment_bytes": "400",
    "min_cleanable_dirty_ratio": "0.0",
    "delete_retention_ms": str(RETENTION_MS),
}
Table = dict[bytes, bytes | None]


async def put(stage: Stage, pairs: list[tuple[bytes, bytes | None]], acks: int = -1) -> None:
    """Produce each pair in a batch of its own."""
    client = await stage.cluster.client(stage.leader().id)
    for key, value in pairs:
        now_ms = stage.cluster.clock.now_ms()
        part = ProducePartition(
            index=0, records=bytes(build_batch([value], [key], timestamp_ms=now_ms))
        )
        topics = [ProduceTopic(name=TOPIC, partition_data=[part])]
        request = ProduceRequest(acks=acks, timeout_ms=20_000, topic_data=topics)
        answer: Any = await client.send(request, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0


def rows(partition: Partition) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of each record in a replica's log."""
    found = []
    for segment in partition.log.segments:
        data, at = segment.file.read(0, segment.size), 0
        while at < len(data):
            found += [(each.offset, each.key, each.value) for each in read_batch(data, at)]
            at += read_header(data, at).size
    return found


def table(partition: Partition) -> Table:
    """What a reader who starts now ends with: keys that were deleted are not in it."""
    last = {key: value for _, key, value in rows(partition) if key is not None}
    return {key: value for key, value in last.items() if value is not None}


def has_tombstone(partition: Partition, key: bytes) -> bool:
    return any(k == key and value is None for _, k, value in rows(partition))


async def churn(stage: Stage, seconds: float) -> None:
    """For so long, close segments with older values in them, so that cleaners have what to do."""
    end_s = stage.cluster.loop.time() + seconds
    while stage.cluster.loop.time() < end_s:
        await put(stage, [(b"busy", bytes(150))] * 3)
        await asyncio.sleep(RETENTION_MS / 4000)


def played(scenario: Callable[[Stage], Awaitable[None]], seed: int = 0, **settings: str) -> None:
    play(scenario, seed, log_cleaner_backoff_ms="100", **settings)


def isr_of(stage: Stage) -> list[int]:
    return sorted(stage.replicas()[stage.leader().id].state.isr)


async def test_a_record_that_is_acknowledged_is_on_every_replica(stage: Stage, /) -> None:
    await stage.begin()
    result = await stage.send(b"a", b"b")
    assert (result.error_code, result.base_offset) == (0, 0)
    assert {each.log.end_offset for each in stage.replicas().values()} == {2}
    await stage.settle(2)
    assert len(set(stage.contents())) == 1


@pytest.mark.parametrize("flushes", ["true", "false"])
async def test_a_leaders_death_loses_nothing_that_was_acknowledged(
    stage: Stage, /, flushes: str
) -> None:
    await stage.begin(flush_before_expose=flushes)
    assert (await stage.send(b"a")).error_code == 0
    dead = stage.leader()
    stage.cluster.kill(dead, is_power_lost=True)
    await stage.cluster.until(lambda: any(p.is_leader for p in stage.replicas().values()))
    assert (await stage.send(b"b")).base_offset == 1
    await stage.cluster.started(dead.id)
    await stage.settle(2)
    assert len(set(stage.contents())) == 1
    assert sorted(stage.replicas()[stage.leader().id].state.isr) == [1, 2, 3]


async def test_a_record_that_only_the_dead_leader_had_is_cut_off_when_it_is_back(
    stage: Stage, /
) -> None:
    await stage.begin()
    assert (await stage.send(b"kept")).error_code == 0
    dead = stage.leader()
    others = [f"m{each.id}" for each in stage.followers()]
    stage.cluster.network.partition((f"m{dead.id}", "client"), others)
    assert (await stage.send(b"lost", acks=1)).error_code == 0
    stage.cluster.kill(dead)
    stage.cluster.network.heal()
    await stage.cluster.until(lambda: any(p.is_leader for p in stage.replicas().values()))
    assert (await stage.send(b"other")).base_offset == 1
    await stage.cluster.started(dead.id)
    await stage.settle(2)
    assert len(set(stage.contents())) == 1
    assert all(b"lost" not in each for each in stage.contents())


@pytest.mark.played(by=play, replica_lag_time_max_ms="2000", zookeeper_session_timeout_ms="60000")
async def test_a_lagging_follower_leaves_the_isr_and_joins_it_again(stage: Stage, /) -> None:
    await stage.begin()
    slow = next(each for each in stage.followers() if not each.service.controller.is_active)
    stage.cluster.processes[slow.id].pause()
    leading = stage.replicas()[stage.leader().id]
    assert (await stage.send(b"a")).error_code == Error.NONE
    assert slow.id not in leading.state.isr
    stage.cluster.processes[slow.id].resume()
    await stage.cluster.until(lambda: slow.id in leading.state.isr)
    await stage.settle(1)


async def test_below_the_minimum_of_replicas_acks_all_is_refused_and_nothing_becomes_visible(
    stage: Stage, /
) -> None:
    await stage.begin()
    assert (await stage.send(b"a")).error_code == 0
    leading = stage.replicas()[stage.leader().id]
    for each in stage.followers():
        stage.cluster.kill(each)
    waiting = await stage.send(b"b")
    assert waiting.error_code in (
        Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Error.REQUEST_TIMED_OUT,
    )
    await stage.cluster.until(lambda: len(leading.state.isr) == 1)
    assert (await stage.send(b"c")).error_code == Error.NOT_ENOUGH_REPLICAS
    assert (await stage.send(b"d", acks=1)).error_code == 0
    assert leading.high_watermark == 1


async def test_a_replica_that_was_away_while_records_were_deleted_begins_anew(
    stage: Stage, /
) -> None:
    await stage.begin(segment_bytes="250", file_delete_delay_ms="0")
    away = stage.followers()[0]
    leading = stage.replicas()[stage.leader().id]
    stage.cluster.kill(away)
    await stage.cluster.until(lambda: away.id not in leading.state.isr)
    for number in range(5):
        assert (await stage.send(bytes([number]) * 150)).error_code == 0
    network = stage.cluster.network.host("operator")
    async with AsyncAdmin([f"m{stage.leader().id}:{PORT}"], network=network) as admin:
        await admin.delete_records({TopicPartition(TOPIC, 0): 4})
    await stage.cluster.started(away.id)
    await stage.settle(5)
    assert {each.log.start_offset for each in stage.replicas().values()} == {4}


async def test_a_leader_that_became_a_follower_is_counted_on_once_it_has_flushed(
    stage: Stage, /
) -> None:
    await stage.begin(flush_before_expose="true")
    former, cluster = stage.leader(), stage.cluster
    assert (await stage.send(b"a", acks=1)).error_code == 0
    await cluster.until(lambda: all(p.log.end_offset == 1 for p in stage.replicas().values()))
    mine = stage.replicas()[former.id]
    assert mine.log.recovery_point == 0
    cluster.ensemble.expire(cluster.zks[former.id])
    await cluster.until(lambda: not mine.is_leader)

    def is_counted_on() -> bool:
        leading = [p.in_sync for p in stage.replicas().values() if p.in_sync is not None]
        return any(each.remotes[former.id].end_offset == 1 for each in leading)

    await cluster.until(is_counted_on)
    assert mine.log.recovery_point == 1


async def test_a_log_that_is_being_cut_off_is_not_fetched_in_the_next_epoch_until_that_has_ended(
    stage: Stage, /
) -> None:
    await stage.begin()
    await stage.send(b"a")
    follower, key = stage.followers()[0], TopicPartition(TOPIC, 0)
    partition, fetchers = stage.replicas()[follower.id], follower.service.replicas._fetchers
    ended: list[BaseException | None] = []
    follower.service.directory.trimmer.truncate(partition.log, 0, ended.append)
    assert partition.log.is_truncating
    epoch = partition.leader_epoch + 1
    partition.lead_or_follow(partition.state._replace(leader_epoch=epoch), partition.replicas)
    fetchers.update(partition)
    followed = fetchers._fetchers[partition.state.leader].followed[key]
    assert followed.role.epoch == epoch
    assert followed.state is FetchState.BUSY
    await stage.cluster.until(lambda: followed.state is FetchState.READY)
    assert not partition.log.is_truncating
    assert partition.log.end_offset == 0


@pytest.mark.played(by=play, seed=1)
async def test_a_leader_that_is_back_on_a_new_disk_within_its_session_leads_nothing(
    stage: Stage, /
) -> None:
    await stage.begin()
    cluster, leader = stage.cluster, stage.leader()
    assert not leader.service.controller.is_active
    assert (await stage.send(b"a")).error_code == 0
    cluster.kill(leader)
    del cluster.disks[leader.id]
    starting = asyncio.create_task(cluster.started(leader.id))
    network = cluster.network.host("operator")
    async with AsyncAdmin([f"m1:{PORT}"], network=network) as admin:
        await admin.create_topic("other", 1, 1)  # of which the controller tells all
    await starting
    await stage.settle(1)
    assert len(set(stage.contents())) == 1
    assert stage.leader().id != leader.id


async def test_a_leader_hears_of_a_followers_next_registration_though_nothing_is_new(
    stage: Stage, /
) -> None:
    await stage.begin()
    follower = stage.followers()[0]
    epoch = follower.service.replicas.broker_epoch + 1
    follower.service.replicas.know_epoch(epoch)

    def heard() -> bool:
        leading = [p.in_sync for p in stage.replicas().values() if p.in_sync is not None]
        return any(each.remotes[follower.id].broker_epoch == epoch for each in leading)

    await stage.cluster.until(heard)


def test_a_new_topics_settings_are_known_where_zookeeper_lags() -> None:
    cluster = Cluster(servers=("z1", "z2", "z3"))

    async def scenario() -> None:
        stage = Stage(cluster)
        for name in ("z1", "z2", "z3"):
            cluster.ensemble.lag(name, 2_000)
        await stage.begin(min_insync_replicas="3")
        settings = [each.log.settings for each in stage.replicas().values()]
        assert [each.min_insync_replicas for each in settings] == [3, 3, 3]

    cluster.run(scenario())


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.played(by=play, zookeeper_session_timeout_ms="20000")
async def test_a_setting_that_comes_after_a_loss_or_just_before_it_makes_nobody_trusted(
    stage: Stage, /, is_late: bool
) -> None:
    """The others have the record, and are away when the one that lost it is back."""
    await stage.begin(flush_before_expose="false")
    assert (await stage.send(b"a")).error_code == 0
    await stage.settle(1)
    lost, *others = sorted(IDS, key=lambda each: each != stage.leader().id)
    if is_late:
        kill(stage, lost, is_power_lost=True)
        await set_flushing(stage, others[0], "true")
    else:
        log = stage.replicas()[lost].log
        await set_flushing(stage, others[0], "true")
        assert (log.recovery_point, log.flush_mark) == (0, None)  # it may have heard of it
        kill(stage, lost, is_power_lost=True)
    assert lost in state(stage).isr
    kill(stage, *others, is_power_lost=False)
    await stage.cluster.started(lost)
    assert state(stage).leader == -1
    for each in others:
        await stage.cluster.started(each)
    await stage.settle(1)
    assert len(set(stage.contents())) == 1
    assert not state(stage).is_recovering


@pytest.mark.parametrize("is_late", [False, True])
async def test_one_that_had_flushed_first_leads_alone_with_all_after_the_power_of_all_was_lost(
    stage: Stage, /, is_late: bool
) -> None:
    await stage.begin(flush_before_expose=str(not is_late).lower())
    assert (await stage.send(b"a")).error_code == 0
    if is_late:
        await set_flushing(stage, 1, "true")
        await stage.cluster.until(lambda: are_set(stage, "true"))
    assert (await stage.send(b"b")).error_code == 0
    kill(stage, *IDS, is_power_lost=True)
    assert sorted(state(stage).isr) == [1, 2, 3]
    await stage.cluster.started(2)
    await stage.cluster.until(lambda: state(stage).leader == 2)
    assert (state(stage).is_recovering, stage.replicas()[2].log.end_offset) == (False, 2)


@pytest.mark.played(by=play, zookeeper_session_timeout_ms="20000")
async def test_after_the_setting_has_gone_nobody_is_trusted_whatever_comes_later(
    stage: Stage, /
) -> None:
    await stage.begin(flush_before_expose="true")
    assert (await stage.send(b"a")).error_code == 0
    await set_flushing(stage, 1, "false")
    await stage.cluster.until(lambda: are_set(stage, "false"))
    assert (await stage.send(b"b")).error_code == 0
    controller = next(e for e in IDS if stage.cluster.brokers[e].service.controller.is_active)
    lost, *others = sorted(IDS, key=lambda each: each == controller)
    kill(stage, lost, is_power_lost=True)
    await set_flushing(stage, controller, "true")
    assert lost in state(stage).isr
    kill(stage, *others, is_power_lost=False)
    await stage.cluster.started(lost)
    assert (state(stage).leader, lost in state(stage).isr) == (-1, False)


async def test_a_broker_whose_vetted_disk_cannot_be_read_starts_and_is_trusted_with_nothing(
    stage: Stage, /
) -> None:
    await stage.begin(flush_before_expose="true")
    assert (await stage.send(b"a")).error_code == 0
    kill(stage, 1, is_power_lost=True)
    await stage.cluster.zks[2].set(znodes.VETTED_DISK.path(1), b"?")
    broker = await stage.cluster.started(1)
    assert broker.service.directory.flushed == {}
    await stage.settle(1)


@pytest.mark.parametrize("ends", ["killed", "without power"])
@pytest.mark.played(by=played)
async def test_a_replica_that_was_away_longer_than_tombstones_stay_brings_nothing_back(
    stage: Stage, /, ends: str
) -> None:
    await stage.begin(**TABLE)
    await put(stage, [(b"gone", b"1"), (b"kept", b"2")])
    await stage.settle(2)
    away = stage.followers()[0]
    others = [each for each in IDS if each != away.id]
    stage.cluster.kill(away, is_power_lost=ends == "without power")
    await stage.cluster.until(lambda: any(p.is_leader for p in stage.replicas().values()))
    await put(stage, [(b"gone", None)])
    await churn(stage, 10 * RETENTION_MS / 1000)
    assert isr_of(stage) == others
    for each in stage.replicas().values():
        assert (0, b"gone", b"1") not in rows(each), "it was cleaned"
        assert has_tombstone(each, b"gone")

    await stage.cluster.started(away.id)
    await stage.cluster.until(lambda: isr_of(stage) == list(IDS))
    await churn(stage, 10 * RETENTION_MS / 1000)
    for each in stage.replicas().values():
        assert not has_tombstone(each, b"gone"), "its time is over, and all have seen it"
        assert sorted(table(each)) == [b"busy", b"kept"]

    for broker_id in others:  # what a client reads when only that replica is left
        stage.cluster.kill(stage.cluster.brokers[broker_id])
    await stage.cluster.until(lambda: stage.replicas()[away.id].is_leader)
    assert sorted(table(stage.replicas()[away.id])) == [b"busy", b"kept"]


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_that_dies_within_a_clean_leaves_every_replica_with_the_same_table(
    seed: int,
) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(**TABLE)
        for number in range(3):
            await put(stage, [(b"a", b"%d" % number), (b"b", b"%d" % number), (b"c", None)] * 3)
            leader = stage.leader()
            await stage.cluster.until(lambda on=leader: on.service.cleaner._pass is not None)
            stage.cluster.kill(leader, is_power_lost=True)
            await stage.cluster.until(lambda: any(p.is_leader for p in stage.replicas().values()))
            await put(stage, [(b"a", b"after %d" % number)])
            await stage.cluster.started(leader.id)
            await stage.cluster.until(lambda: isr_of(stage) == list(IDS))
        await churn(stage, 4 * RETENTION_MS / 1000)
        tables = [table(each) for each in stage.replicas().values()]
        assert tables == [{b"a": b"after 2", b"b": b"2", b"busy": bytes(150)}] * 3

    played(scenario, seed)


async def succeeded(stage: Stage, dead: Broker) -> Broker:
    """Who leads once `dead` has been killed."""
    stage.cluster.kill(dead)
    await stage.cluster.until(lambda: any(p.is_leader for p in stage.replicas().values()))
    return stage.leader()


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.played(by=played, auto_leader_rebalance_enable="false")
async def test_a_copy_of_a_cleaned_log_tells_a_former_leader_where_its_epoch_ended(
    stage: Stage, /, stays: bool
) -> None:
    """What it alone had goes, what was committed stays; `stays`: a record of its epoch, too."""
    await stage.begin(**TABLE)
    cluster, first = stage.cluster, stage.leader()
    await put(stage, [(b"old", b"0")])
    await stage.settle(1)
    former = await succeeded(stage, first)
    await cluster.started(first.id)
    await cluster.until(lambda: isr_of(stage) == list(IDS))
    await put(stage, [(b"kept" if stays else b"busy", b"1"), (b"busy", b"2")])
    await stage.settle(3)
    await asyncio.sleep(10)  # until the high watermark is in the checkpoint

    others = [f"m{each.id}" for each in stage.followers()]
    cluster.network.partition((f"m{former.id}", "client"), others)
    await put(stage, [(b"stale", b"3")], acks=1)
    mark = stage.replicas()[former.id].high_watermark
    source = await succeeded(stage, former)
    cluster.network.heal()
    assert stage.replicas()[source.id].log.end_offset == mark == 3
    await churn(stage, 2 * RETENTION_MS / 1000)
    began = stage.replicas()[source.id].log.epochs.entries

    (copy,) = (each for each in IDS if each not in (former.id, source.id))
    cluster.kill(cluster.brokers[copy])
    del cluster.disks[copy]
    await cluster.started(copy)
    await cluster.until(lambda: isr_of(stage) == sorted((copy, source.id)))
    assert 4 not in [offset for offset, *_ in rows(stage.replicas()[copy])]
    assert [each for each in stage.replicas()[copy].log.epochs.entries if each.epoch] == [
        each for each in began if each.epoch
    ]

    assert (await succeeded(stage, source)).id == copy
    await cluster.started(former.id)
    await cluster.until(lambda: former.id in isr_of(stage))
    back = cluster.brokers[former.id].service.replicas
    assert back._context.metrics.truncated_committed == 0
    assert b"stale" not in [key for _, key, _ in rows(stage.replicas()[former.id])]
