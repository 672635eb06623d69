"""Stored settings that cannot be used: they are described, can be removed, and harm no others."""

from __future__ import annotations

import pytest

from kdist.errors import Error
from kdist.protocol.describe_configs import ALL_BROKERS, BROKER
from kdist.protocol.incremental_alter_configs import DELETE, SET, SUBTRACT
from kdist.zk import znodes
from kdist.zk.cluster_values import EntitySettings, SettingsChange
from tests.simulator.cluster import Cluster
from tests.unit.broker.broker_configs import (
    FILES_MS,
    RETENTION,
    by_name,
    change,
    describe,
    own,
    own_of_all,
    own_of_broker,
    set_,
    settings_of,
    unset,
    with_topic,
)


@pytest.mark.parametrize("broker", ["1", ALL_BROKERS])
def test_a_brokers_unusable_setting_is_described_and_removable_and_others_can_change(
    broker: str,
) -> None:
    cluster = Cluster()
    unusable = {"log.segment.bytes": "soon", "num.partitions": "7", "no.such.setting": "1"}

    async def scenario() -> None:
        client = await with_topic(cluster)
        path = znodes.BROKER_SETTINGS.path(broker or znodes.DEFAULT_ENTITY)
        await cluster.zks[1].create(path, EntitySettings({**unusable, RETENTION: "5"}).encode())
        await cluster.until(lambda: settings_of(cluster).retention_ms == 5)

        async def told() -> dict[str, str | None]:
            return await (own_of_broker(client) if broker else own_of_all(client))

        assert await told() == {**unusable, RETENTION: "5"}
        result = await describe(client, broker, BROKER)
        assert len(by_name(result)) == len(result.configs)

        await set_(client, broker, RETENTION, "6")
        assert settings_of(cluster).retention_ms == 6
        still = await change(client, ("log.segment.bytes", SET, "later"), name=broker, kind=BROKER)
        assert still.error_code == Error.INVALID_CONFIG
        for name in unusable:
            assert name in await told()
            await unset(client, broker, name)
        assert await told() == {RETENTION: "6"}
        await unset(client, broker, RETENTION)
        assert settings_of(cluster).retention_ms == FILES_MS

    cluster.run(scenario())


def test_a_topics_unusable_setting_is_described_and_removable_and_its_others_hold() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster)
        zk, entity = cluster.zks[1], "topics/clicks"
        stored = {"segment.bytes": "soon", "retention.ms": "5"}
        await zk.set(znodes.TOPIC_SETTINGS.path("clicks"), EntitySettings(stored).encode())
        notice = znodes.SETTINGS_CHANGE.encode(SettingsChange(entity))
        await zk.create(znodes.SETTINGS_CHANGE.path(), notice, sequential=True)
        await cluster.until(lambda: settings_of(cluster).retention_ms == 5)
        assert settings_of(cluster).segment_bytes == 1 << 30
        assert await own(client) == stored
        result = await describe(client)
        assert len(by_name(result)) == len(result.configs)

        assert (await change(client, ("retention.ms", SET, "6"))).error_code == 0
        assert settings_of(cluster).retention_ms == 6
        assert await own(client) == {**stored, "retention.ms": "6"}
        assert (await change(client, ("segment.bytes", DELETE, None))).error_code == 0
        assert await own(client) == {"retention.ms": "6"}

    cluster.run(scenario())


def test_a_star_among_replicas_that_others_have_stored_throttles_none_and_can_be_taken_out() -> (
    None
):
    cluster = Cluster()
    name = "leader.replication.throttled.replicas"

    async def scenario() -> None:
        client = await with_topic(cluster)
        zk, entity = cluster.zks[1], "topics/clicks"
        stored = {name: "0:0,*", "retention.ms": "5"}
        await zk.set(znodes.TOPIC_SETTINGS.path("clicks"), EntitySettings(stored).encode())
        notice = znodes.SETTINGS_CHANGE.encode(SettingsChange(entity))
        await zk.create(znodes.SETTINGS_CHANGE.path(), notice, sequential=True)
        await cluster.until(lambda: settings_of(cluster).retention_ms == 5)
        assert settings_of(cluster).leader_replication_throttled_replicas == ()
        assert await own(client) == stored
        assert (await change(client, (name, SUBTRACT, "*"))).error_code == 0
        assert settings_of(cluster).leader_replication_throttled_replicas == ("0:0",)

    cluster.run(scenario())


def test_a_contradictory_change_is_refused_even_beside_an_unusable_setting() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster)
        path = znodes.BROKER_SETTINGS.path(1)
        stored = {"log.segment.bytes": "soon", "log.cleaner.min.compaction.lag.ms": "5"}
        await cluster.zks[1].create(path, EntitySettings(stored).encode())
        await cluster.until(lambda: settings_of(cluster).min_compaction_lag_ms == 5)
        asked = ("log.cleaner.max.compaction.lag.ms", SET, "4")
        result = await change(client, asked, name="1", kind=BROKER)
        assert result.error_code == Error.INVALID_CONFIG
        assert "is above max.compaction" in (result.error_message or "")

    cluster.run(scenario())
