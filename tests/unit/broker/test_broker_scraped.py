"""What a scrape shows that a look finds: groups' lag, topics' retention, the roll's lock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kdist.broker import group_lags
from kdist.broker.broker import Broker
from kdist.broker.scraped import EVERY_MS
from kdist.controller.context import ControllerContext
from kdist.groups.member import Caller
from kdist.metrics.groups import GroupLagMetrics
from kdist.model import TopicPartition
from kdist.ops.roll_lock import release_lock, take_lock
from kdist.protocol.delete_groups import DeleteGroupsRequest
from kdist.zk import znodes
from tests.simulator.cluster import Cluster, create, produce
from tests.unit.broker.test_broker_start_groups import commit, with_offsets_topic


def run(scenario: Any, seed: int = 0) -> None:
    cluster = Cluster(seed)
    cluster.run(scenario(cluster))


async def looked(*brokers: Broker) -> None:
    """Scrape the brokers, and let their looks end."""
    await asyncio.sleep(EVERY_MS / 1000)
    for broker in brokers:
        broker._metrics_page()
        await asyncio.sleep(1)


def lag(*brokers: Broker, group: str = "g") -> tuple[int, float]:
    """Of the group in the topic clicks, wherever it is coordinated."""
    (found,) = (
        shown
        for broker in brokers
        for key, shown in broker.measures.lags.items()
        if key == (group, "clicks")
    )
    return found.lag_records, found.lag_seconds


def test_a_scrape_shows_how_far_a_group_is_behind() -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        await with_offsets_topic(cluster, broker)
        assert await commit(client, "g", 0) == 0
        await looked(broker)
        assert lag(broker) == (0, 0.0)
        await produce(client, "clicks", b"1", b"2", b"3")
        assert await commit(client, "g", 1) == 0
        await looked(broker)
        records, seconds = lag(broker)
        assert records == 2
        assert 10 <= seconds <= 13
        page = broker._metrics_page().body.decode()
        assert 'kdist_group_lag_records{group="g",topic="clicks"} 2.0' in page
        assert await commit(client, "g", 3) == 0
        await looked(broker)
        assert lag(broker) == (0, 0.0)

    run(scenario)


def test_partitions_of_other_leaders_are_asked_for() -> None:
    async def scenario(cluster: Cluster) -> None:
        brokers = [await cluster.started(number) for number in (1, 2)]
        clients = [await cluster.client(number) for number in (1, 2)]
        await create(clients[0], "clicks")
        await with_offsets_topic(cluster, brokers[0])
        clicks = TopicPartition("clicks", 0)
        await cluster.until(lambda: all(each.service.cache.has(clicks) for each in brokers))
        leader = brokers[0].service.cache.leader_of(clicks)
        await produce(clients[leader - 1], "clicks", b"1", b"2")
        for coordinator in (1, 2):
            names, there = map(str, range(20)), clients[coordinator - 1]
            group, *_ = [name for name in names if await commit(there, name, 0) == 0]
            await looked(*brokers)
            assert lag(brokers[coordinator - 1], group=group)[0] == 2

    run(scenario)


def test_a_leader_that_is_gone_costs_no_lag_that_is_known_otherwise() -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        await with_offsets_topic(cluster, broker)
        await produce(client, "clicks", b"1")
        assert await commit(client, "g", 0) == 0
        await looked(broker)
        broker.service.cache.topics["clicks"].partitions[0].leader = 7
        del broker.service.replicas.partitions[TopicPartition("clicks", 0)]
        await looked(broker)
        assert lag(broker)[0] == 1
        assert not broker.failure.done()

    run(scenario)


def test_nothing_is_asked_more_often_than_every_ten_seconds() -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        await with_offsets_topic(cluster, broker)
        assert await commit(client, "g", 0) == 0
        await looked(broker)
        await produce(client, "clicks", b"1")
        broker._metrics_page()
        await asyncio.sleep(1)
        assert lag(broker)[0] == 0
        await looked(broker)
        assert lag(broker)[0] == 1

    run(scenario)


def test_a_group_that_is_gone_is_shown_no_more() -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        await with_offsets_topic(cluster, broker)
        assert await commit(client, "g", 0) == 0
        await looked(broker)
        assert broker.measures.lags
        coordinator = broker.service.coordinator
        request = DeleteGroupsRequest(groups_names=["g"])
        coordinator.delete_groups(request, Caller(2, "admin", "/here"), lambda _: None)
        await looked(broker)
        assert not broker.measures.lags

    run(scenario)


def test_more_groups_than_are_shown_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        await with_offsets_topic(cluster, broker)
        await produce(client, "clicks", b"1", b"2", b"3")
        for offset in range(3):
            assert await commit(client, f"g{offset}", offset) == 0
        monkeypatch.setattr(group_lags, "SHOWN_MAX", 2)
        await looked(broker)
        assert set(broker.measures.lags) == {("g0", "clicks"), ("g1", "clicks")}
        assert broker.measures.groups.hidden_lags == 1

    run(scenario)


def test_the_limit_is_the_one_that_the_metric_tells() -> None:
    assert f"At most {group_lags.SHOWN_MAX} groups" in (GroupLagMetrics.__doc__ or "")


def test_the_controller_shows_how_long_the_rolls_lock_has_been_held() -> None:
    async def scenario(cluster: Cluster) -> None:
        broker, other = await cluster.started(1), await cluster.started(2)
        metrics, zk, clock = broker.measures.controller, cluster.zks[1], cluster.clock
        assert broker.service.controller.is_active
        await looked(broker, other)
        assert (metrics.roll_lock_seconds(), metrics.roll_lock_overdue_seconds()) == (0, 0)
        assert str(other.measures.controller.roll_lock_seconds()) == "nan"
        await take_lock(zk, "ann", "run-1", 30_000, clock)
        await looked(broker)
        assert 10 <= metrics.roll_lock_seconds() <= 12
        assert metrics.roll_lock_overdue_seconds() == 0
        await asyncio.sleep(60)
        assert 70 <= metrics.roll_lock_seconds() <= 72
        assert 40 <= metrics.roll_lock_overdue_seconds() <= 42
        await release_lock(zk, "run-1")
        await looked(broker)
        assert metrics.roll_lock_seconds() == 0

    run(scenario)


def test_a_lock_that_cannot_be_read_is_not_known_and_harms_nobody() -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.started()
        path = znodes.LOCK.path(znodes.ROLL_LOCK)
        await cluster.zks[1].create(path, b"{", make_parents=True)
        await looked(broker)
        assert str(broker.measures.controller.roll_lock_seconds()) == "nan"
        assert not broker.failure.done()

    run(scenario)


def test_a_scrape_shows_for_how_long_topics_keep_records_unless_it_is_for_good() -> None:
    async def scenario(cluster: Cluster) -> None:
        brokers = [await cluster.started(number) for number in (1, 2)]
        client = await cluster.client()
        kept_s = {"clicks": 60.0, "views": 604_800.0}
        await create(client, "clicks", partitions=3, retention_ms="60000")
        await create(client, "views")
        await create(client, "endless", retention_ms="-1")
        await create(client, "compacted", cleanup_policy="compact")
        topics = (*kept_s, "endless", "compacted")
        await cluster.until(
            lambda: all(
                any(
                    (found := broker.service.replicas.partitions.get(TopicPartition(topic, 0)))
                    and found.is_leader
                    for broker in brokers
                )
                for topic in topics
            )
        )
        await looked(*brokers)
        shown = [
            (topic, each.retention_seconds)
            for broker in brokers
            for (topic,), each in broker.measures.retention.items()
        ]
        assert sorted(shown) == sorted(kept_s.items())

    run(scenario)


def test_a_scrape_of_the_controller_goes_through_no_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def walked(_cluster: ControllerContext) -> object:
        raise AssertionError

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.started()
        await create(await cluster.client(), "clicks", 3)
        monkeypatch.setattr(ControllerContext, "partitions", walked)
        monkeypatch.setattr(ControllerContext, "living_topics", walked)
        shown = broker.measures.exposition.render().decode()
        assert "kdist_controller_partitions 3.0" in shown
        assert "kdist_controller_offline_partitions 0.0" in shown

    run(scenario)
