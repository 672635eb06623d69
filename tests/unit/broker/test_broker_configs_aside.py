"""Topic settings that are ignored or stored under another name: described and removed."""

from __future__ import annotations

from kdist.model import TopicPartition
from kdist.protocol.incremental_alter_configs import DELETE, SET
from tests.simulator.cluster import Cluster
from tests.unit.broker.broker_configs import by_name, change, describe, own, with_topic


def test_ignored_settings_and_old_names_are_described_and_can_be_removed() -> None:
    """Kafka's own tool deletes only settings that a broker describes."""
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_a_change_made_while_a_broker_starts_is_not_missed() -> None:
    """Opening its logs, after the settings were read, may take minutes."""
    cluster = Cluster()

    async def scenario() -> None:
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
                broker.service.directory.logs[TopicPartition("clicks", 0)].settings.retention_ms
                == 77
            )
        )

    cluster.run(scenario())
