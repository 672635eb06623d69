"""Changes of brokers' settings: what is refused, tried, replaced, appended to."""

from __future__ import annotations

import pytest

from kdist.errors import Error
from kdist.protocol.describe_configs import ALL_BROKERS, BROKER
from kdist.protocol.incremental_alter_configs import APPEND, SET, SUBTRACT
from tests.simulator.cluster import Cluster
from tests.unit.broker.broker_configs import (
    FILES_MS,
    RETENTION,
    change,
    own_of_all,
    own_of_broker,
    replace,
    set_,
    settings_of,
    with_topic,
)


@pytest.mark.parametrize("broker", ["1", ALL_BROKERS])
@pytest.mark.parametrize(
    ("name", "value", "error", "sentence"),
    [
        ("num.partitions", "2", Error.INVALID_REQUEST, "num.partitions cannot be changed while"),
        ("log.roll.hours", "2", Error.INVALID_REQUEST, "use log.roll.ms"),
        ("log.segment.bytes", "x", Error.INVALID_CONFIG, "log.segment.bytes is 'x', but must be"),
        ("log.segment.byte", "1", Error.INVALID_CONFIG, "did you mean log.segment.bytes?"),
        ("max.connections", "0", Error.INVALID_CONFIG, "nobody else could connect"),
        ("max.connections", "1", Error.INVALID_CONFIG, "nobody else could connect"),
        ("max.connections.per.ip", "0", Error.INVALID_CONFIG, "must be an integer from 1 to"),
        ("ssl.protocol", "TLS", Error.INVALID_CONFIG, "ssl.protocol cannot be set"),
        ("log.cleaner.max.compaction.lag.ms", "4", Error.INVALID_CONFIG, "is above max.compaction"),
    ],
)
def test_a_request_with_an_unchangeable_setting_is_refused_as_a_whole(
    broker: str, name: str, value: str, error: Error, sentence: str
) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(log_cleaner_min_compaction_lag_ms="5")
        client = await cluster.client()
        for result in (
            await change(client, (RETENTION, SET, "1"), (name, SET, value), name=broker, kind=4),
            await replace(client, {RETENTION: "1", name: value}, broker, BROKER),
        ):
            assert result.error_code == error
            assert sentence in (result.error_message or "")
        assert (await own_of_broker(client), await own_of_all(client)) == ({}, {})

    cluster.run(scenario())


def test_validate_only_changes_nothing() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster)
        for name in ("1", ALL_BROKERS):
            asked = (RETENTION, SET, "1")
            result = await change(client, asked, name=name, kind=BROKER, is_trial=True)
            assert result.error_code == 0
        assert (await own_of_broker(client), await own_of_all(client)) == ({}, {})
        assert settings_of(cluster).retention_ms == FILES_MS

    cluster.run(scenario())


def test_alter_configs_replaces_all_dynamic_settings_of_a_broker() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster)
        for name, tell in (("1", own_of_broker), (ALL_BROKERS, own_of_all)):
            for wanted in ({RETENTION: "1", "log.roll.ms": "2"}, {"log.roll.ms": "3"}, {}):
                assert (await replace(client, wanted, name, BROKER)).error_code == 0
                assert await tell(client) == wanted  # type: ignore[operator]

    cluster.run(scenario())


def test_append_starts_from_the_list_of_the_layers_below() -> None:
    cluster = Cluster()
    name = "log.cleanup.policy"

    async def scenario() -> None:
        client = await with_topic(cluster)
        await set_(client, "1", name, "compact")
        for operation, value, left in (
            (APPEND, "compact", "delete,compact"),
            (SUBTRACT, "delete", "compact"),
        ):
            asked = (name, operation, value)
            result = await change(client, asked, name=ALL_BROKERS, kind=BROKER)
            assert result.error_code == 0, result.error_message
            assert await own_of_all(client) == {name: left}
        result = await change(client, (name, APPEND, "delete"), name="1", kind=BROKER)
        assert result.error_code == 0
        assert await own_of_broker(client) == {name: "compact,delete"}

    cluster.run(scenario())
