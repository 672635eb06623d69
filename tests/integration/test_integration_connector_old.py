"""A ZooKeeper group shared with members of Apache Kafka 0.8.2: all agree on who reads what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from peer.old_kafka import check_offsets, old_consumer

from tests.integration.broker_processes import settled
from tests.integration.connector_readers import Reader
from tests.integration.consumer_members import create, produce
from tests.integration.standalone_process import Standalone, standalone

pytestmark = pytest.mark.peer
GROUP, TOPIC = "mixed", "clicks"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("connector-old")) as run:
        create(f"127.0.0.1:{run.port}", TOPIC, 6)
        yield run


def test_a_group_is_shared_with_the_old_consumer_and_its_tool_sees_ours(
    cluster: Standalone, tmp_path: Path
) -> None:
    broker, zookeeper = f"127.0.0.1:{cluster.port}", cluster.addresses["zookeeper"]
    settings = {
        "group.id": GROUP,
        "zookeeper.connect": zookeeper,
        "zookeeper.session.timeout.ms": "6000",
        "auto.offset.reset": "smallest",
        "auto.commit.interval.ms": "300",
    }
    values = produce(broker, TOPIC, 300)
    with Reader(zookeeper, GROUP, TOPIC) as ours:
        settled(lambda: len(ours.messages) == 300)
        with old_consumer(tmp_path, TOPIC, settings) as theirs:
            # By number, as the old member has it: the first in the order of names has the first.
            settled(lambda: [each.partition for each in ours.owned] == [0, 1, 2])
            values += produce(broker, TOPIC, 300, start=300)
            settled(lambda: len(ours.messages) + len(theirs.read_bytes().split()) >= 600)
        settled(lambda: len(ours.owned) == 6)
        values += produce(broker, TOPIC, 60, start=600)
        settled(lambda: {*ours.values, *theirs.read_bytes().split()} == set(values))
        assert len(theirs.read_bytes().split()) >= 100
        owner = ours.connector._joined.id  # type: ignore[union-attr]

        def is_seen() -> bool:
            found = check_offsets(zookeeper, GROUP, TOPIC)
            assert {row[2] for row in found.values()} == {f"{owner}-0"}
            return len(found) == 6 and all(offset == end for offset, end, _ in found.values())

        settled(is_seen)
