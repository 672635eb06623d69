"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, asked of brokers in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from kdist.config.layers import Source
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.alter_configs import AlterConfigsRequest, ReplacedResource
from kdist.protocol.describe_configs import BROKER, BROKER_LOGGER, TOPIC
from kdist.protocol.incremental_alter_configs import APPEND, DELETE, SET, SUBTRACT
from kdist.wire.primitives import STRING_BYTES_MAX
from kdist.zk import znodes
from tests.unit.broker.broker_cluster import Cluster
from tests.unit.broker.broker_configs import by_name, change, describe, own, replace, with_topic

CLICKS = TopicPartition("clicks", 0)


@pytest.mark.parametrize("version", range(5))
def test_a_topics_settings_are_told_with_where_they_are_from(version: int) -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_synonyms_and_documentation_come_when_they_are_asked_for() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster, retention_ms="77")
        asked = {"include_synonyms": True, "include_documentation": True}
        found = by_name(await describe(client, keys=["retention.ms", "nothing"], **asked))
        (setting,) = found.values()
        synonyms = [(each.name, each.value, each.source) for each in setting.synonyms]
        assert synonyms == [
            ("retention.ms", "77", Source.DYNAMIC_TOPIC_CONFIG),
            ("log.retention.hours", "3", Source.STATIC_BROKER_CONFIG),
            ("log.retention.ms", "604800000", Source.DEFAULT_CONFIG),
        ]
        assert setting.documentation is not None
        assert setting.documentation.endswith(".")

    cluster.run(scenario())


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "nowhere", Error.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "no/where", Error.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", Error.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", Error.INVALID_REQUEST),
        (BROKER, "one", Error.INVALID_REQUEST),
        (BROKER, "9" * 5_000, Error.INVALID_REQUEST),  # more digits than Python reads
        (BROKER_LOGGER, "1", Error.INVALID_REQUEST),
        (99, "x", Error.INVALID_REQUEST),
    ],
)
def test_what_has_no_settings_here_is_refused(kind: int, name: str, error: Error) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster)
        described = await describe(client, name, kind)
        changed = await change(client, ("retention.ms", SET, "1"), name=name, kind=kind)
        for result in (described, await replace(client, {}, name, kind), changed):
            assert result.error_code == error
            assert result.error_message

    cluster.run(scenario())


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_gives_a_topic_these_settings_and_no_others(version: int) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster, segment_bytes="5000")
        result = await replace(client, {"retention.ms": "77"}, version=version)
        assert (result.error_code, result.error_message) == (0, None)
        assert await own(client) == {"retention.ms": "77"}
        log = cluster.brokers[1].service.directory.logs[CLICKS]
        await cluster.until(lambda: log.settings.retention_ms == 77)
        assert log.settings.segment_bytes == 1 << 30
        assert (await replace(client, {}, version=version)).error_code == 0
        assert await own(client) == {}

    cluster.run(scenario())


@pytest.mark.parametrize("version", range(2))
def test_single_settings_are_changed_and_the_others_stay(version: int) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster, segment_bytes="5000", retention_bytes="9")
        changes = [("retention.ms", SET, "77"), ("retention.bytes", DELETE, None)]
        assert (await change(client, *changes, version=version)).error_code == 0
        assert await own(client) == {"retention.ms": "77", "segment.bytes": "5000"}

    cluster.run(scenario())


def test_lists_are_appended_to_and_subtracted_from_as_they_are_in_force() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("retention.ms", "soon", "retention.ms is 'soon', but must be an integer from -1"),
        ("retention.msec", "1", "retention.msec is not a setting: did you mean retention.ms?"),
        ("min.compaction.lag.ms", str(2**63 - 1), None),
        ("cleanup.policy", "compact,", "cleanup.policy is 'compact,', but must be any of"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_a_sentence(
    name: str, value: str, sentence: str | None
) -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


@pytest.mark.parametrize("version", range(3))
def test_a_value_as_long_as_can_be_is_refused_with_a_sentence_that_fits_the_answer(
    version: int,
) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster)
        result = await replace(client, {"retention.ms": "x" * STRING_BYTES_MAX}, version=version)
        assert result.error_code == Error.INVALID_CONFIG
        assert (result.error_message or "").startswith("retention.ms is 'xxx")
        nobody = await describe(client, "\0" * STRING_BYTES_MAX, BROKER, version=version)
        assert nobody.error_code == Error.INVALID_REQUEST

    cluster.run(scenario())


def test_a_topics_settings_together_may_be_as_long_as_one_string() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster)
        wide = {f"metrics.{number}": " " * 8_000 for number in range(4)}
        assert (await replace(client, wide)).error_code == 0
        for result in (
            await change(client, ("metrics.4", SET, " " * 1_000)),
            await replace(client, wide | {"metrics.4": " " * 1_000}),
        ):
            assert result.error_code == Error.INVALID_CONFIG
            assert result.error_message == (
                "the topic's settings take 33045 bytes; the limit is 32767"
            )

    cluster.run(scenario())


def test_settings_whose_change_cannot_be_told_to_the_brokers_stay_as_they_are() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster)
        await cluster.zks[1].delete(znodes.SETTINGS_CHANGES.path())
        result = await change(client, ("retention.ms", SET, "1"))
        assert result.error_code == Error.REQUEST_TIMED_OUT
        assert "/config/changes" in (result.error_message or "")
        assert await own(client) == {}

    cluster.run(scenario())


def test_a_trial_changes_nothing() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster)
        assert (await change(client, ("retention.ms", SET, "1"), is_trial=True)).error_code == 0
        assert (await replace(client, {"retention.ms": "1"}, is_trial=True)).error_code == 0
        assert await own(client) == {}

    cluster.run(scenario())


def test_a_request_that_contradicts_itself_is_refused() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_any_broker_takes_changes_and_the_leader_hears_of_them() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster)
        await cluster.started(2)
        other = await cluster.client(2)
        assert (await change(other, ("retention.ms", SET, "77"))).error_code == 0
        assert await own(client) == {"retention.ms": "77"}
        log = cluster.brokers[1].service.directory.logs[CLICKS]
        await cluster.until(lambda: log.settings.retention_ms == 77)

    cluster.run(scenario())


def test_a_change_that_is_told_of_no_more_is_found_in_a_new_session() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_what_tells_of_changes_is_removed_in_time() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_changes_by_two_brokers_at_once_are_both_made() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_a_topic_without_a_znode_for_its_settings_gets_one() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster)
        await cluster.zks[1].delete(znodes.TOPIC_SETTINGS.path("clicks"))
        assert await own(client) == {}
        assert (await change(client, ("retention.ms", SET, "77"))).error_code == 0
        assert await own(client) == {"retention.ms": "77"}

    cluster.run(scenario())


def test_settings_that_an_old_tool_left_and_nobody_can_use_are_told_if_they_can_be_read() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster)
        zk, path = cluster.zks[1], znodes.TOPIC_SETTINGS.path("clicks")
        unusable = b'{"version":1,"config":{"retention.ms":"soon"}}'
        for content, told in ((unusable, {"retention.ms": "soon"}), (b"not json", {})):
            await zk.set(path, content)
            assert await own(client) == told
        assert (await replace(client, {"retention.ms": "77"})).error_code == 0
        assert await own(client) == {"retention.ms": "77"}

    cluster.run(scenario())


def test_a_topic_that_zookeeper_has_no_more_is_not_given_settings() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = await with_topic(cluster)
        cache = cluster.brokers[1].service.cache
        known = cache.topics["clicks"]
        cache.topics["ghost"] = known
        result = await change(client, ("retention.ms", SET, "77"), name="ghost")
        assert result.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION

    cluster.run(scenario())


def test_while_zookeeper_is_away_who_asks_hears_it() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())
