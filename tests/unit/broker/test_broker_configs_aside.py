"""What a topic was given that is not in force under that name, described and taken back."""

from __future__ import annotations

from kdist.protocol.incremental_alter_configs import DELETE, SET
from tests.unit.broker.broker_cluster import Cluster
from tests.unit.broker.broker_configs import by_name, change, describe, own, with_topic


def test_what_a_topic_was_given_in_vain_or_by_another_name_is_told_and_taken_back() -> None:
    """Kafka's own tool deletes only what it is told of."""
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
