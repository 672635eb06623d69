"""A pytest plugin for kafka-python's suite: creates topics for clients older than CreateTopics.

For these, the suite's fixtures would run Kafka's command line tool against ZooKeeper; the plugin
uses a newer client of the same library instead. Load it with `-p kdist_topics`.
"""

from __future__ import annotations

import sys
from typing import Any


def pytest_collection_finish() -> None:
    """The suite's fixtures are imported by now."""
    fixtures = sys.modules.get("test.integration.fixtures")
    if fixtures is not None:
        fixtures.KafkaFixture._create_topic_via_cli = _create_topic


def _create_topic(broker: Any, name: str, partitions: int, replicas: int) -> None:
    from kafka import KafkaAdminClient
    from kafka.errors import TopicAlreadyExistsError

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_server(), api_version=(2, 4))
    try:
        admin.create_topics({name: {"num_partitions": partitions, "replication_factor": replicas}})
    except TopicAlreadyExistsError:
        pass  # created by an earlier attempt of the fixture
    finally:
        admin.close()
