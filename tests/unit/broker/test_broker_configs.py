"""Settings described and changed by DescribeConfigs and AlterConfigs, the unusable ones too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kdist.config.layers import Source
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.alter_configs import AlterConfigsRequest, ReplacedResource
from kdist.protocol.describe_configs import (
    ALL_BROKERS,
    BROKER,
    BROKER_LOGGER,
    TOPIC,
    DescribeConfigsRequest,
    DescribedResource,
)
from kdist.protocol.incremental_alter_configs import APPEND, DELETE, SET, SUBTRACT
from kdist.wire.primitives import STRING_BYTES_MAX
from kdist.zk import znodes
from kdist.zk.client import Znode
from kdist.zk.session import SessionClient
from kdist.zk.values import EntitySettings, SettingsChange
from tests.simulator.cluster import Cluster, create
from tests.unit.broker.broker_configs import (
    FILES_MS,
    RETENTION,
    by_name,
    change,
    describe,
    own,
    own_of_all,
    own_of_broker,
    replace,
    set_,
    settings_of,
    unset,
    with_topic,
)

CLICKS = TopicPartition("clicks", 0)


def named(*names: str, kind: int = TOPIC) -> list[DescribedResource]:
    return [
        DescribedResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for name in names
    ]


@pytest.mark.parametrize("version", range(5))
async def test_a_topics_settings_are_described_with_their_source(
    cluster: Cluster, version: int
) -> None:
    client = await with_topic(cluster, segment_bytes="5000")
    found = by_name(await describe(client, version=version))
    size, time, policy = (
        found[each] for each in ("segment.bytes", "retention.ms", "cleanup.policy")
    )
    assert (size.value, time.value, policy.value) == ("5000", "10800000", "delete")
    assert not any(each.read_only or each.is_sensitive for each in found.values())
    if version == 0:
        assert [each.is_default for each in (size, time, policy)] == [False, False, True]
    else:
        sources = [each.config_source for each in (size, time, policy)]
        assert sources == [
            Source.DYNAMIC_TOPIC_CONFIG,
            Source.STATIC_BROKER_CONFIG,
            Source.DEFAULT_CONFIG,
        ]
    assert size.config_type == (3 if version >= 3 else 0)
    assert (size.synonyms, size.documentation) == ([], None)


async def test_synonyms_and_documentation_are_returned_on_request(cluster: Cluster) -> None:
    client = await with_topic(cluster, retention_ms="77")
    asked = {"include_synonyms": True, "include_documentation": True}
    found = by_name(await describe(client, keys=["retention.ms", "nothing"], **asked))
    (setting,) = found.values()
    synonyms = [(each.name, each.value, each.source) for each in setting.synonyms]
    assert synonyms == [
        ("retention.ms", "77", Source.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.hours", "3", Source.STATIC_BROKER_CONFIG),
    ]
    assert setting.documentation is not None
    assert setting.documentation.endswith(".")


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "nowhere", Error.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "no/where", Error.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", Error.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", Error.INVALID_REQUEST),
        (BROKER, "one", Error.INVALID_REQUEST),
        (BROKER, "9" * 5_000, Error.INVALID_REQUEST),  # more digits than Python reads
        (BROKER_LOGGER, "2", Error.INVALID_REQUEST),
        (99, "x", Error.INVALID_REQUEST),
    ],
)
async def test_resources_without_settings_here_are_refused(
    cluster: Cluster, kind: int, name: str, error: Error
) -> None:
    client = await with_topic(cluster)
    described = await describe(client, name, kind)
    changed = await change(client, ("retention.ms", SET, "1"), name=name, kind=kind)
    for result in (described, await replace(client, {}, name, kind), changed):
        assert result.error_code == error
        assert result.error_message


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_replaces_all_settings_of_a_topic(
    cluster: Cluster, version: int
) -> None:
    client = await with_topic(cluster, segment_bytes="5000")
    result = await replace(client, {"retention.ms": "77"}, version=version)
    assert (result.error_code, result.error_message) == (0, None)
    assert await own(client) == {"retention.ms": "77"}
    log = cluster.brokers[1].service.directory.logs[CLICKS]
    await cluster.until(lambda: log.settings.retention_ms == 77)
    assert log.settings.segment_bytes == 1 << 30
    assert (await replace(client, {}, version=version)).error_code == 0
    assert await own(client) == {}


@pytest.mark.parametrize("version", range(2))
async def test_an_incremental_change_leaves_other_settings_alone(
    cluster: Cluster, version: int
) -> None:
    client = await with_topic(cluster, segment_bytes="5000", retention_bytes="9")
    changes = [("retention.ms", SET, "77"), ("retention.bytes", DELETE, None)]
    assert (await change(client, *changes, version=version)).error_code == 0
    assert await own(client) == {"retention.ms": "77", "segment.bytes": "5000"}


async def test_append_and_subtract_start_from_the_list_in_force(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    name = "cleanup.policy"
    twice = "compact, compact,delete"
    assert (await change(client, (name, APPEND, twice))).error_code == 0
    assert await own(client) == {name: "delete,compact"}
    assert (await change(client, (name, SUBTRACT, "delete"))).error_code == 0
    assert await own(client) == {name: "compact"}
    assert (await change(client, (name, SUBTRACT, "compact"))).error_code == 0
    assert await own(client) == {name: ""}  # nothing is deleted
    number = await change(client, ("retention.ms", APPEND, "1"))
    assert number.error_code == Error.INVALID_CONFIG
    assert number.error_message == "retention.ms is not a list"
    assert await own(client) == {name: ""}


THROTTLED = "follower.replication.throttled.replicas"


@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        (None, SET, "*", "*"),
        (None, SET, "0:1,2:31", "0:1,2:31"),
        (None, SET, "0:1,", "0:1,"),  # as Kafka leaves it where it appends to an empty list
        (None, SET, "", ""),
        (None, SET, "*,*", None),
        (None, SET, "0:0,*", None),
        (None, SET, "*,0:0", None),
        (None, SET, "0", None),
        (None, SET, "0:*", None),
        (None, APPEND, "*", "*"),
        ("0:1", APPEND, "*", None),
        ("*", APPEND, "0:1", None),
        ("*", APPEND, "*", "*"),
        ("0:1", APPEND, "1:1", "0:1,1:1"),
        ("*", SUBTRACT, "*", ""),
        ("*", SUBTRACT, "0:1", "*"),
        ("0:1", SUBTRACT, "*", "0:1"),
    ],
)
async def test_all_replicas_are_throttled_by_a_star_alone(
    cluster: Cluster, before: str | None, operation: int, value: str, after: str | None
) -> None:
    client = await with_topic(cluster)
    if before is not None:
        assert (await change(client, (THROTTLED, SET, before))).error_code == 0
    result = await change(client, (THROTTLED, operation, value))
    assert result.error_code == (Error.INVALID_CONFIG if after is None else Error.NONE)
    kept = before if after is None else after
    assert await own(client) == ({} if kept is None else {THROTTLED: kept})


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("retention.ms", "soon", "retention.ms is 'soon', but must be an integer from -1"),
        ("retention.msec", "1", "retention.msec is not a setting: did you mean retention.ms?"),
        ("min.compaction.lag.ms", str(2**63 - 1), None),
        ("cleanup.policy", "compact,", "cleanup.policy is 'compact,', but must be any of"),
    ],
)
async def test_invalid_settings_are_refused_with_a_sentence(
    cluster: Cluster, name: str, value: str, sentence: str | None
) -> None:
    client = await with_topic(cluster, max_compaction_lag_ms="1000")
    kept = {"max.compaction.lag.ms": "1000"}
    for is_trial in (True, False):
        results = [
            await change(client, (name, SET, value), is_trial=is_trial),
            await replace(client, {**kept, name: value}, is_trial=is_trial),
        ]
        for result in results:
            assert result.error_code == Error.INVALID_CONFIG
            assert (sentence or name) in (result.error_message or "")
    assert await own(client) == kept


@pytest.mark.parametrize("version", range(3))
async def test_an_invalid_value_of_maximal_length_is_refused_within_the_length_of_an_answer(
    cluster: Cluster, version: int
) -> None:
    client = await with_topic(cluster)
    result = await replace(client, {"retention.ms": "x" * STRING_BYTES_MAX}, version=version)
    assert result.error_code == Error.INVALID_CONFIG
    assert (result.error_message or "").startswith("retention.ms is 'xxx")
    nobody = await describe(client, "\0" * STRING_BYTES_MAX, BROKER, version=version)
    assert nobody.error_code == Error.INVALID_REQUEST


async def test_a_topics_settings_may_take_as_many_bytes_as_one_string(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    wide = {f"metrics.{number}": " " * 8_000 for number in range(4)}
    assert (await replace(client, wide)).error_code == 0
    for result in (
        await change(client, ("metrics.4", SET, " " * 1_000)),
        await replace(client, wide | {"metrics.4": " " * 1_000}),
    ):
        assert result.error_code == Error.INVALID_CONFIG
        assert result.error_message == ("the topic's settings take 33045 bytes; the limit is 32767")


async def test_a_change_that_no_notification_can_hold_is_not_made(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    await cluster.zks[1].delete(znodes.SETTINGS_CHANGES.path())
    result = await change(client, ("retention.ms", SET, "1"))
    assert result.error_code == Error.REQUEST_TIMED_OUT
    assert "/config/changes" in (result.error_message or "")
    assert await own(client) == {}


async def test_validate_only_changes_nothing(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    assert (await change(client, ("retention.ms", SET, "1"), is_trial=True)).error_code == 0
    assert (await replace(client, {"retention.ms": "1"}, is_trial=True)).error_code == 0
    assert await own(client) == {}


async def test_a_request_that_contradicts_itself_is_refused(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    twice = await change(client, ("retention.ms", SET, "1"), ("retention.ms", DELETE, None))
    nothing = await change(client, ("retention.ms", SET, None))
    unknown = await change(client, ("retention.ms", 9, "1"))
    null = await replace(client, {"retention.ms": None})
    for result in (twice, nothing, unknown, null):
        assert result.error_code == Error.INVALID_REQUEST
        assert "retention.ms" in (result.error_message or "")
    resource = ReplacedResource(resource_type=TOPIC, resource_name="clicks", configs=[])
    request = AlterConfigsRequest(resources=[resource] * 2, validate_only=False)
    answer = await client.send(request, 2)
    assert [each.error_code for each in answer.responses] == [Error.INVALID_REQUEST] * 2


async def test_any_broker_accepts_a_change_and_the_leader_applies_it(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    await cluster.started(2)
    other = await cluster.client(2)
    assert (await change(other, ("retention.ms", SET, "77"))).error_code == 0
    assert await own(client) == {"retention.ms": "77"}
    log = cluster.brokers[1].service.directory.logs[CLICKS]
    await cluster.until(lambda: log.settings.retention_ms == 77)


async def test_a_new_session_finds_a_change_whose_notification_is_gone(cluster: Cluster) -> None:
    await with_topic(cluster)
    await cluster.started(2)
    other = await cluster.client(2)
    cluster.ensemble.suspend(cluster.zks[1])
    cluster.ensemble.expire(cluster.zks[1])
    assert (await change(other, ("retention.ms", SET, "77"))).error_code == 0
    zk, changes = cluster.zks[2], znodes.SETTINGS_CHANGES.path()
    for name in await zk.children(changes):
        await zk.delete(f"{changes}/{name}")
    cluster.ensemble.resume(cluster.zks[1])
    log = cluster.brokers[1].service.directory.logs[CLICKS]
    await cluster.until(lambda: log.settings.retention_ms == 77)


async def test_old_change_notifications_are_removed(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    zk, changes = cluster.zks[1], znodes.SETTINGS_CHANGES.path()
    for value in range(1, 5):
        await change(client, ("retention.ms", SET, str(value)))
    assert len(await zk.children(changes)) == 4
    await asyncio.sleep(16 * 60)
    client = await cluster.client()  # that one was idle for too long
    for value in range(5, 9):
        await change(client, ("retention.ms", SET, str(value)))
        await asyncio.sleep(1)
    assert len(await zk.children(changes)) == 4  # the last ones


async def test_changes_by_two_brokers_at_once_are_both_made(cluster: Cluster) -> None:
    first = await with_topic(cluster)
    await cluster.started(2)
    second = await cluster.client(2)
    loop = cluster.loop
    made = [
        loop.create_task(change(client, (f"{name}.ms", SET, str(number))))
        for number in range(100, 110)
        for client, name in ((first, "retention"), (second, "segment"))
    ]
    for each in made:
        assert (await each).error_code == 0
    assert await own(first) == {"retention.ms": "109", "segment.ms": "109"}


async def test_a_topic_without_a_znode_for_its_settings_gets_one(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    await cluster.zks[1].delete(znodes.TOPIC_SETTINGS.path("clicks"))
    assert await own(client) == {}
    assert (await change(client, ("retention.ms", SET, "77"))).error_code == 0
    assert await own(client) == {"retention.ms": "77"}


async def test_unusable_settings_of_an_old_tool_are_described_if_they_can_be_read(
    cluster: Cluster,
) -> None:
    client = await with_topic(cluster)
    zk, path = cluster.zks[1], znodes.TOPIC_SETTINGS.path("clicks")
    unusable = b'{"version":1,"config":{"retention.ms":"soon"}}'
    for content, told in ((unusable, {"retention.ms": "soon"}), (b"not json", {})):
        await zk.set(path, content)
        assert await own(client) == told
    assert (await replace(client, {"retention.ms": "77"})).error_code == 0
    assert await own(client) == {"retention.ms": "77"}


async def test_a_topic_that_is_gone_from_zookeeper_gets_no_settings(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    cache = cluster.brokers[1].service.cache
    known = cache.topics["clicks"]
    cache.topics["ghost"] = known
    result = await change(client, ("retention.ms", SET, "77"), name="ghost")
    assert result.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION


async def test_requests_get_an_error_while_zookeeper_is_unavailable(cluster: Cluster) -> None:
    client = await with_topic(cluster)
    cluster.ensemble.stop()
    for result in (
        await describe(client),
        await change(client, ("retention.ms", SET, "77")),
        await replace(client, {}),
    ):
        assert result.error_code == Error.REQUEST_TIMED_OUT
        assert "ZooKeeper" in (result.error_message or "")
    assert by_name(await describe(client, "1", BROKER))
    cluster.ensemble.start()


async def test_ignored_settings_and_old_names_are_described_and_can_be_removed(
    cluster: Cluster,
) -> None:
    """Kafka's own tool deletes only settings that a broker describes."""
    client = await with_topic(cluster)
    given = {"compression.zstd.level": "5", "message.timestamp.difference.max.ms": "99"}
    for name, value in given.items():
        assert (await change(client, (name, SET, value))).error_code == 0
    assert await own(client) == {
        **given,
        "message.timestamp.before.max.ms": "99",
        "message.timestamp.after.max.ms": "99",
    }
    level = by_name(await describe(client, include_documentation=True))[next(iter(given))]
    assert (level.config_type, level.documentation) == (
        2,
        "Ignored: kdist compresses at each codec's own default level.",
    )
    for name in given:
        assert (await change(client, (name, DELETE, None))).error_code == 0
    assert await own(client) == {}


async def test_a_change_made_while_a_broker_starts_is_not_missed(cluster: Cluster) -> None:
    """Opening its logs, after the settings were read, may take minutes."""
    await with_topic(cluster)
    await cluster.started(2)
    other = await cluster.client(2)
    await cluster.brokers[1].stop()
    broker = cluster.broker(1)
    load_all = broker._overrides.load_all

    async def load_and_take_time() -> None:
        await load_all()
        assert (await change(other, ("retention.ms", SET, "77"))).error_code == 0

    broker._overrides.load_all = load_and_take_time  # type: ignore[method-assign]
    await broker.start()
    await cluster.until(
        lambda: (
            broker.service.directory.logs[TopicPartition("clicks", 0)].settings.retention_ms == 77
        )
    )


@pytest.mark.slow
async def test_hundreds_of_topics_are_read_in_a_few_requests_and_described_each(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(450)]
    read: list[int] = []
    get_many = SessionClient.get_many

    async def count(zk: SessionClient, paths: Sequence[str]) -> list[Znode | None]:
        read.append(len(paths))
        return await get_many(zk, paths)

    async def get(*_: object) -> None:
        raise AssertionError("one by one")

    await cluster.started(1)
    await cluster.started(2)
    client, other = await cluster.client(1), await cluster.client(2)
    for name in names:
        assert (await create(client, name)).error_code == 0
    assert (await change(other, ("retention.ms", SET, "77"), name="t7")).error_code == 0
    resources = [*named(*names, "gone"), *named("1", kind=BROKER)]
    await asyncio.sleep(1)  # until each broker has looked at what was changed
    monkeypatch.setattr(SessionClient, "get_many", count)
    monkeypatch.setattr(SessionClient, "get", get)
    answer = await client.send(DescribeConfigsRequest(resources=resources), 4)
    monkeypatch.undo()
    *topics, gone, broker = answer.results
    assert [each.resource_name for each in topics] == names
    own = {each.resource_name: by_name(each)["retention.ms"].value for each in topics}
    assert own.pop("t7") == "77"
    assert set(own.values()) == {"604800000"}
    assert gone.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION
    assert by_name(broker)["broker.id"].value == "1"
    assert read == [200, 200, 50]


async def test_without_zookeeper_a_broker_describes_itself_and_refuses_topics(
    cluster: Cluster,
) -> None:
    await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    cluster.ensemble.stop()
    resources = [*named("clicks"), *named("1", kind=BROKER)]
    request = DescribeConfigsRequest(resources=resources)
    topic, broker = (await client.send(request, 4)).results
    assert (topic.error_code, topic.configs) == (Error.REQUEST_TIMED_OUT, [])
    assert by_name(broker)["broker.id"].value == "1"


@pytest.mark.parametrize("broker", ["1", ALL_BROKERS])
async def test_a_brokers_unusable_setting_is_described_and_removable_and_others_can_change(
    cluster: Cluster, broker: str
) -> None:
    unusable = {"log.segment.bytes": "soon", "num.partitions": "7", "no.such.setting": "1"}
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


async def test_a_topics_unusable_setting_is_described_and_removable_and_its_others_hold(
    cluster: Cluster,
) -> None:
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


async def test_a_star_among_replicas_that_others_have_stored_throttles_none_and_can_be_taken_out(
    cluster: Cluster,
) -> None:
    name = "leader.replication.throttled.replicas"
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


async def test_a_contradictory_change_is_refused_even_beside_an_unusable_setting(
    cluster: Cluster,
) -> None:
    client = await with_topic(cluster)
    path = znodes.BROKER_SETTINGS.path(1)
    stored = {"log.segment.bytes": "soon", "log.cleaner.min.compaction.lag.ms": "5"}
    await cluster.zks[1].create(path, EntitySettings(stored).encode())
    await cluster.until(lambda: settings_of(cluster).min_compaction_lag_ms == 5)
    asked = ("log.cleaner.max.compaction.lag.ms", SET, "4")
    result = await change(client, asked, name="1", kind=BROKER)
    assert result.error_code == Error.INVALID_CONFIG
    assert "is above max.compaction" in (result.error_message or "")
