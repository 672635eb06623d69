"""Dynamic settings of brokers and topics: described, refused, in force, stored, followed."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from kdist.config.layers import Source
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.network.client import Client
from kdist.protocol.describe_configs import ALL_BROKERS, BROKER
from kdist.protocol.incremental_alter_configs import APPEND, SET, SUBTRACT
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.build import build_batch
from kdist.testing.memory_zookeeper import MemoryZooKeeper
from kdist.zk import znodes
from kdist.zk.errors import Refused
from kdist.zk.values import EntitySettings
from tests.simulator.cluster import Cluster, create, produce
from tests.unit.broker.broker_configs import (
    FILES_MS,
    OWN,
    RETENTION,
    SHARED,
    by_name,
    change,
    describe,
    own_of_all,
    own_of_broker,
    replace,
    set_,
    settings_of,
    unset,
    with_topic,
)


async def store(cluster: Cluster, entity: str | int, content: bytes, broker: int = 1) -> None:
    """Write settings as an operator or another program might: without a notification."""
    zk, path = cluster.zks[broker], znodes.BROKER_SETTINGS.path(entity)
    if await zk.exists(path) is None:
        await zk.create(path, content)
    else:
        await zk.set(path, content)


async def produce_keyed(client: Client) -> None:
    records = bytes(build_batch([bytes(100)], [b"key"], timestamp_ms=1_700_000_000_000))
    part = ProducePartition(index=0, records=records)
    topics = [ProduceTopic(name="clicks", partition_data=[part])]
    request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=topics)
    answer = await client.send(request, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def refusing(real: Callable[..., Awaitable[Any]], times: int) -> Callable[..., Awaitable[Any]]:
    """A request that ZooKeeper refuses a few times, as a server does that has too much to do."""
    left = [Refused("/config", "ZooKeeper says ThrottledOpError")] * times

    async def ask(*args: Any) -> Any:
        if left:
            raise left.pop()
        return await real(*args)

    return ask


def refuse(zk: MemoryZooKeeper, request: str, times: int = 3) -> None:
    setattr(zk, request, refusing(getattr(zk, request), times))


def note_reads(zk: MemoryZooKeeper, paths: list[str]) -> None:
    read = zk.get_many

    async def noted(asked: Sequence[str]) -> Any:
        paths.extend(asked)
        return await read(asked)

    zk.get_many = noted  # type: ignore[method-assign]


# Described


async def test_a_brokers_settings_are_described_with_which_of_them_are_dynamic(
    cluster: Cluster,
) -> None:
    client = await with_topic(cluster)
    found = by_name(await describe(client, "1", BROKER))
    assert found["broker.id"].config_source == Source.STATIC_BROKER_CONFIG
    assert found["num.partitions"].config_source == Source.DEFAULT_CONFIG
    assert found[RETENTION].value == str(FILES_MS)
    changeable = {name for name, each in found.items() if not each.read_only}
    assert {RETENTION, "message.max.bytes", "compression.type", "max.connections"} < changeable
    assert {
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
    } < changeable
    assert not {"broker.id", "num.partitions", "listeners"} & changeable
    assert by_name(await describe(client, ALL_BROKERS, BROKER)) == {}


async def test_a_brokers_own_setting_precedes_the_cluster_default_and_that_its_file(
    cluster: Cluster,
) -> None:
    client = await with_topic(cluster)
    await set_(client, ALL_BROKERS, RETENTION, "500000")
    assert settings_of(cluster).retention_ms == 500_000
    await set_(client, "1", RETENTION, "400000")
    assert settings_of(cluster).retention_ms == 400_000
    beneath = [
        ("log.retention.ms", "400000", OWN),
        ("log.retention.ms", "500000", SHARED),
        ("log.retention.hours", "3", Source.STATIC_BROKER_CONFIG),
    ]
    for name, kind in (("1", BROKER), ("clicks", 2)):
        found = by_name(await describe(client, name, kind, include_synonyms=True))
        setting = found[RETENTION if kind == BROKER else "retention.ms"]
        assert (setting.value, setting.config_source) == ("400000", OWN)
        assert [(e.name, e.value, e.source) for e in setting.synonyms] == beneath
    assert await own_of_all(client) == {RETENTION: "500000"}
    await unset(client, "1", RETENTION)
    assert settings_of(cluster).retention_ms == 500_000
    await unset(client, ALL_BROKERS, RETENTION)
    assert settings_of(cluster).retention_ms == FILES_MS
    assert (await own_of_broker(client), await own_of_all(client)) == ({}, {})


# In force


async def test_a_change_of_the_cleaners_settings_reaches_it_at_once(cluster: Cluster) -> None:
    client = await with_topic(cluster, cleanup_policy="compact", segment_bytes="200")
    for _ in range(4):
        await produce_keyed(client)
    cleaner = cluster.brokers[1].measures.cleaner
    await asyncio.sleep(1)
    begun_s = cluster.loop.time()
    await set_(client, ALL_BROKERS, "log.cleaner.backoff.ms", "100")
    await cluster.until(lambda: cleaner.passes)
    assert cluster.loop.time() < begun_s + 5, "by default it looks each 15 s"


async def test_a_change_reaches_topics_without_an_override_at_once(cluster: Cluster) -> None:
    client = await with_topic(cluster, segment_bytes="5000")
    await create(client, "views")
    await set_(client, ALL_BROKERS, "log.segment.bytes", "200")
    assert settings_of(cluster, "clicks").segment_bytes == 5000
    assert settings_of(cluster, "views").segment_bytes == 200
    await create(client, "later")
    assert settings_of(cluster, "later").segment_bytes == 200
    for topic in ("clicks", "views"):
        for _ in range(2):
            assert (await produce(client, topic, b"x" * 100)).error_code == 0
    logs = cluster.brokers[1].service.directory.logs
    assert len(logs[TopicPartition("clicks", 0)].segments) == 1
    assert len(logs[TopicPartition("views", 0)].segments) == 2


async def test_a_changed_message_max_bytes_applies_at_once(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    await set_(client, "1", "message.max.bytes", "100")
    refused = await produce(client, "clicks", b"x" * 100)
    assert refused.error_code == Error.MESSAGE_TOO_LARGE
    await unset(client, "1", "message.max.bytes")
    assert (await produce(client, "clicks", b"x" * 100)).error_code == 0


async def test_a_changed_connection_limit_applies_to_new_connections(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    metrics = cluster.brokers[1].measures.network
    await set_(client, "1", "max.connections", str(metrics.open_connections))
    await cluster.client()
    await asyncio.sleep(0.1)
    assert metrics.refused_connections == 1
    await unset(client, "1", "max.connections")
    await cluster.client()
    await asyncio.sleep(0.1)
    assert metrics.refused_connections == 1


async def test_no_setting_raises_the_connection_limit_above_the_descriptor_limit(
    cluster: Cluster,
) -> None:
    client = await with_topic(cluster)
    broker = cluster.brokers[1]
    broker._gateway._quotas.most = broker.measures.network.open_connections
    await set_(client, "1", "max.connections", "1000")
    await cluster.client()
    await asyncio.sleep(0.1)
    assert broker.measures.network.refused_connections == 1


async def test_all_brokers_apply_cluster_defaults_and_each_its_own_settings(
    cluster: Cluster,
) -> None:
    first = await with_topic(cluster)
    await cluster.started(2)
    second = await cluster.client(2)
    await set_(second, ALL_BROKERS, RETENTION, "500000")
    await set_(second, "2", "log.segment.bytes", "20000")
    await cluster.until(lambda: settings_of(cluster).retention_ms == 500_000)
    assert settings_of(cluster).segment_bytes == 1 << 30
    assert await own_of_all(first) == {RETENTION: "500000"}
    assert await own_of_broker(second, "2") == {"log.segment.bytes": "20000"}
    stranger = await change(first, (RETENTION, SET, "1"), name="2", kind=BROKER)
    assert stranger.error_code == Error.INVALID_REQUEST
    assert stranger.error_message == "this is broker 1, not broker '2'"


async def test_after_a_restart_dynamic_settings_apply_before_the_logs_are_opened(
    cluster: Cluster,
) -> None:
    client = await with_topic(cluster)
    await set_(client, "1", "log.segment.bytes", "300")
    await set_(client, ALL_BROKERS, "max.connections", "7")
    await cluster.brokers[1].stop()
    broker = cluster.broker(1)
    opened = broker._open_logs

    async def look_and_open(directory: object) -> None:
        assert broker._dynamic.config.topic_defaults.segment_bytes == 300
        await opened(directory)  # type: ignore[arg-type]

    broker._open_logs = look_and_open  # type: ignore[method-assign]
    await broker.start()
    assert settings_of(cluster).segment_bytes == 300
    assert await own_of_broker(await cluster.client()) == {"log.segment.bytes": "300"}
    assert broker._gateway._listeners[0].settings.max_connections == 7


async def test_a_change_during_a_lost_session_is_seen_with_or_without_notification(
    cluster: Cluster,
) -> None:
    client = await with_topic(cluster)
    await cluster.started(2)
    cluster.ensemble.suspend(cluster.zks[1])
    cluster.ensemble.expire(cluster.zks[1])
    for entity, name in ((1, RETENTION), (znodes.DEFAULT_ENTITY, "log.segment.bytes")):
        await store(cluster, entity, EntitySettings({name: "777"}).encode(), broker=2)
    cluster.ensemble.resume(cluster.zks[1])
    await cluster.until(lambda: settings_of(cluster).retention_ms == 777)
    await cluster.until(lambda: settings_of(cluster).segment_bytes == 777)
    assert await own_of_broker(client) == {RETENTION: "777"}


# Stored


async def test_changes_and_notifications_are_stored_as_kafka_stores_them(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    zk = cluster.zks[1]
    changes = znodes.SETTINGS_CHANGES.path()
    before = set(await zk.children(changes))
    await set_(client, ALL_BROKERS, RETENTION, "5")
    await set_(client, "1", RETENTION, "4")
    stored = [(await zk.get(f"/config/brokers/{name}"))[0] for name in ("<default>", "1")]
    assert stored == [
        b'{"version":1,"config":{"log.retention.ms":"5"}}',
        b'{"version":1,"config":{"log.retention.ms":"4"}}',
    ]
    told = sorted(set(await zk.children(changes)) - before)
    assert [(await zk.get(f"{changes}/{name}"))[0] for name in told] == [
        b'{"version":2,"entity_path":"brokers/<default>"}',
        b'{"version":2,"entity_path":"brokers/1"}',
    ]


@pytest.mark.parametrize("entity", [1, znodes.DEFAULT_ENTITY])
async def test_unusable_stored_settings_are_left_out_and_logged(
    cluster: Cluster, entity: int | str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    stored = {
        "log.segment.bytes": "soon",
        "log.retention.hours": "1",
        "no.such.setting": "1",
        "broker.id": "7",
        "max.connections": "0",
        RETENTION: "5",
    }
    await with_topic(cluster)
    await store(cluster, entity, EntitySettings(stored).encode())
    await cluster.until(lambda: settings_of(cluster).retention_ms == 5)
    await cluster.brokers[1].stop()
    caplog.clear()
    await cluster.started(log_retention_hours="3")
    assert settings_of(cluster).retention_ms == 5
    assert settings_of(cluster).segment_bytes == 1 << 30
    for name in stored.keys() - {RETENTION}:
        assert f"{name} " in caplog.text
    await store(cluster, entity, b"not json")
    await cluster.until(lambda: settings_of(cluster).retention_ms == FILES_MS)
    assert "not json" in caplog.text
    await set_(await cluster.client(), "1", RETENTION, "6")
    assert settings_of(cluster).retention_ms == 6


async def test_ignored_settings_are_described_and_told_and_can_be_removed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    client = await with_topic(cluster)
    for broker, tell in (("1", own_of_broker), (ALL_BROKERS, own_of_all)):
        caplog.clear()
        await set_(client, broker, "log.cleaner.threads", "2")
        assert await tell(client) == {"log.cleaner.threads": "2"}  # type: ignore[operator]
        (warning,) = (each for each in caplog.records if each.levelno == logging.WARNING)
        assert "log.cleaner.threads is ignored: " in warning.getMessage()
        await unset(client, broker, "log.cleaner.threads")
        assert await tell(client) == {}  # type: ignore[operator]


async def test_a_change_without_a_znode_for_brokers_settings_gets_an_error(
    cluster: Cluster,
) -> None:
    client = await with_topic(cluster)
    await cluster.zks[1].delete(znodes.BROKER_SETTINGS.parent)
    asked = change(client, (RETENTION, SET, "1"), name="1", kind=BROKER)
    result = await asyncio.wait_for(asked, 30)
    assert result.error_code == Error.REQUEST_TIMED_OUT
    assert "/config/brokers/1" in (result.error_message or "")


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
        (
            "zookeeper.ssl.crl.enable",
            "true",
            Error.INVALID_CONFIG,
            "zookeeper.ssl.crl.enable cannot be set",
        ),
        ("log.cleaner.max.compaction.lag.ms", "4", Error.INVALID_CONFIG, "is above max.compaction"),
    ],
)
async def test_a_request_with_an_unchangeable_setting_is_refused_as_a_whole(
    cluster: Cluster, broker: str, name: str, value: str, error: Error, sentence: str
) -> None:
    await cluster.started(log_cleaner_min_compaction_lag_ms="5")
    client = await cluster.client()
    for result in (
        await change(client, (RETENTION, SET, "1"), (name, SET, value), name=broker, kind=4),
        await replace(client, {RETENTION: "1", name: value}, broker, BROKER),
    ):
        assert result.error_code == error
        assert sentence in (result.error_message or "")
    assert (await own_of_broker(client), await own_of_all(client)) == ({}, {})


async def test_validate_only_changes_nothing(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    for name in ("1", ALL_BROKERS):
        asked = (RETENTION, SET, "1")
        result = await change(client, asked, name=name, kind=BROKER, is_trial=True)
        assert result.error_code == 0
    assert (await own_of_broker(client), await own_of_all(client)) == ({}, {})
    assert settings_of(cluster).retention_ms == FILES_MS


async def test_alter_configs_replaces_all_dynamic_settings_of_a_broker(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    for name, tell in (("1", own_of_broker), (ALL_BROKERS, own_of_all)):
        for wanted in ({RETENTION: "1", "log.roll.ms": "2"}, {"log.roll.ms": "3"}, {}):
            assert (await replace(client, wanted, name, BROKER)).error_code == 0
            assert await tell(client) == wanted  # type: ignore[operator]


async def test_append_starts_from_the_list_of_the_layers_below(cluster: Cluster) -> None:
    name = "log.cleanup.policy"
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


@pytest.mark.parametrize("request_name", ["get", "get_many"])
async def test_a_change_that_could_not_be_read_is_read_again(
    cluster: Cluster, request_name: str
) -> None:
    first, _ = await cluster.started(1), await cluster.started(2)
    client, other = await cluster.client(1), await cluster.client(2)
    for name in ("clicks", "views"):
        assert (await create(client, name, 2)).error_code == 0
    refuse(cluster.zks[1], request_name)
    for name in ("clicks", "views"):
        result = await change(other, ("retention.ms", SET, "77"), name=name)
        assert result.error_code == 0
    for name in ("clicks", "views"):
        await cluster.until(lambda name=name: settings_of(cluster, name).retention_ms == 77)
    assert not first.failure.done()


async def test_the_settings_of_a_new_topic_are_not_read_by_the_broker_that_wrote_them(
    cluster: Cluster,
) -> None:
    await cluster.started(1)
    second = await cluster.started(2)
    client = await cluster.client(1)
    await cluster.until(lambda: second.service.cache.loaded.is_set())
    reads: dict[int, list[str]] = {1: [], 2: []}
    for broker_id, zk in cluster.zks.items():
        note_reads(zk, reads[broker_id])
    second._overrides.expect("clicks", uuid.uuid4(), {"retention.ms": "5"})  # of another id
    assert (await create(client, "clicks", 2, retention_ms="77")).error_code == 0
    assert [settings_of(cluster, broker=each).retention_ms for each in (1, 2)] == [77, 77]
    assert reads == {1: [], 2: ["/config/topics/clicks"]}
    assert (await change(client, ("retention.ms", SET, "78"))).error_code == 0
    await cluster.until(lambda: settings_of(cluster).retention_ms == 78)


async def test_topics_that_could_not_be_read_at_once_in_a_new_session_are_read_later(
    cluster: Cluster,
) -> None:
    await cluster.started(1)
    await cluster.started(2)
    client, other = await cluster.client(1), await cluster.client(2)
    assert (await create(client, "clicks", 2)).error_code == 0
    zk = cluster.zks[1]
    cluster.ensemble.suspend(zk)
    assert (await change(other, ("retention.ms", SET, "77"))).error_code == 0
    for name in await cluster.zks[2].children("/config/changes"):
        await cluster.zks[2].delete(f"/config/changes/{name}")
    cluster.ensemble.expire(zk)
    refuse(zk, "get_many")
    cluster.ensemble.resume(zk)
    await cluster.until(lambda: settings_of(cluster).retention_ms == 77)
