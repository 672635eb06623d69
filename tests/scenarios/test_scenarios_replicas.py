"""Replicas in virtual time: what a cluster of three keeps, and what it refuses, when brokers go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kdist.broker.broker import Broker
from kdist.client.admin.asynchronous import AsyncAdmin
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.replication.fetching.followed import FetchState
from kdist.replication.partition import Partition
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


def test_a_record_that_is_acknowledged_is_on_every_replica() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin()
        result = await stage.send(b"a", b"b")
        assert (result.error_code, result.base_offset) == (0, 0)
        assert {each.log.end_offset for each in stage.replicas().values()} == {2}
        await stage.settle(2)
        assert len(set(stage.contents())) == 1

    play(scenario)


@pytest.mark.parametrize("flushes", ["true", "false"])
def test_a_leaders_death_loses_nothing_that_was_acknowledged(flushes: str) -> None:
    async def scenario(stage: Stage) -> None:
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

    play(scenario)


def test_a_record_that_only_the_dead_leader_had_is_cut_off_when_it_is_back() -> None:
    async def scenario(stage: Stage) -> None:
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

    play(scenario)


def test_a_lagging_follower_leaves_the_isr_and_joins_it_again() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin()
        slow = next(each for each in stage.followers() if not each.service.controller.is_active)
        stage.cluster.processes[slow.id].pause()
        leading = stage.replicas()[stage.leader().id]
        assert (await stage.send(b"a")).error_code == Error.NONE
        assert slow.id not in leading.state.isr
        stage.cluster.processes[slow.id].resume()
        await stage.cluster.until(lambda: slow.id in leading.state.isr)
        await stage.settle(1)

    play(scenario, replica_lag_time_max_ms="2000", zookeeper_session_timeout_ms="60000")


def test_below_the_minimum_of_replicas_acks_all_is_refused_and_nothing_becomes_visible() -> None:
    async def scenario(stage: Stage) -> None:
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

    play(scenario)


def test_a_replica_that_was_away_while_records_were_deleted_begins_anew() -> None:
    async def scenario(stage: Stage) -> None:
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

    play(scenario)


def test_a_leader_that_became_a_follower_is_counted_on_once_it_has_flushed() -> None:
    async def scenario(stage: Stage) -> None:
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

    play(scenario)


def test_a_log_that_is_being_cut_off_is_not_fetched_in_the_next_epoch_until_that_has_ended() -> (
    None
):
    async def scenario(stage: Stage) -> None:
        await stage.begin()
        await stage.send(b"a")
        follower, key = stage.followers()[0], TopicPartition(TOPIC, 0)
        partition, fetchers = stage.replicas()[follower.id], follower.service.replicas._fetchers
        ended: list[BaseException | None] = []
        follower.service.directory.truncate(partition.log, 0, ended.append)
        assert partition.log.is_truncating
        epoch = partition.leader_epoch + 1
        partition.lead_or_follow(partition.state._replace(leader_epoch=epoch), partition.replicas)
        fetchers.see_to(partition)
        followed = fetchers._fetchers[partition.state.leader].followed[key]
        assert followed.role.epoch == epoch
        assert followed.state is FetchState.BUSY
        await stage.cluster.until(lambda: followed.state is FetchState.READY)
        assert not partition.log.is_truncating
        assert partition.log.end_offset == 0

    play(scenario)


def test_a_leader_that_is_back_on_a_new_disk_within_its_session_leads_nothing() -> None:
    async def scenario(stage: Stage) -> None:
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

    play(scenario, seed=1)


def test_a_leader_hears_of_a_followers_next_registration_though_nothing_is_new() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin()
        follower = stage.followers()[0]
        epoch = follower.service.replicas.broker_epoch + 1
        follower.service.replicas.know_epoch(epoch)

        def heard() -> bool:
            leading = [p.in_sync for p in stage.replicas().values() if p.in_sync is not None]
            return any(each.remotes[follower.id].broker_epoch == epoch for each in leading)

        await stage.cluster.until(heard)

    play(scenario)


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
