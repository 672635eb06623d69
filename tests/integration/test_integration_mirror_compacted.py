"""`kdist mirror` of a compacted topic: offsets have holes, and more come while it is mirrored."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
import pytest
from compacted_topics import (
    HASTY_CLEANER,
    KEYS,
    TIMEOUT_S,
    address_of,
    await_clean,
    create,
    key_of,
    left_of,
    number_in,
    send,
)

from tests.integration.broker_processes import settled
from tests.integration.mirror_processes import MirrorProcess, end_of, ended, flow
from tests.integration.standalone_process import Standalone, standalone

RECORDS = 3_000
HASTY = (*HASTY_CLEANER, "--config", "group.min.session.timeout.ms=100")
Pair = tuple[Standalone, Standalone]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "target"))
    with standalone(source, *HASTY) as first, standalone(target, *HASTY) as second:
        yield first, second


def numbers_in(run: Standalone, topic: str) -> list[int]:
    """The numbers of all records of a topic, in the order of their offsets."""
    consumer = ck.Consumer(
        {"bootstrap.servers": address_of(run), "group.id": "g", "enable.partition.eof": True}
    )
    consumer.assign([ck.TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
        found.append(number_in(message.value()))
        assert (message.key() or b"").decode() == key_of(found[-1])
    assert message is not None
    assert message.error().code() == ck.KafkaError._PARTITION_EOF
    consumer.close()
    return found


def await_mirrored(mirror: MirrorProcess, source: Standalone, topic: str) -> None:
    """Wait until the mirror's position is the source's end; it must miss nothing till then."""
    end = end_of(address_of(source), topic, 0)

    def look() -> bool:
        (row,) = mirror.status()
        assert (row["lost_records"], row["stopped"]) == (0, None)
        return bool(row["position"] == end)

    settled(look)


@pytest.mark.parametrize(
    ("policy", "kills"),
    [
        ("delete", 1),
        pytest.param("delete", 6, marks=pytest.mark.stress),
        pytest.param("compact", 6, marks=pytest.mark.stress),
    ],
)
def test_a_mirror_that_is_killed_copies_a_compacted_topic_once(
    clusters: Pair, tmp_path: Path, policy: str, kills: int
) -> None:
    """The topic of the target keeps all that it got, or is compacted, too, as mirrors make it."""
    source, target = clusters
    topic = f"{policy}-{kills}"
    create(source, topic)
    if policy == "delete":
        create(target, topic, cleanup_policy="delete")
    start_ms = int(time.time() * 1000) - 3_600_000
    send(source, topic, range(RECORDS), start_ms)
    await_clean(source, topic)
    mirror = MirrorProcess(
        tmp_path, policy, flow(address_of(source), address_of(target), policy, topics=topic)
    )

    with ended(mirror):
        mirror.start()
        for kill in range(1, kills + 1):
            await_mirrored(mirror, source, topic)
            before = end_of(address_of(target), topic, 0)
            send(source, topic, range(kill * RECORDS, (kill + 1) * RECORDS), start_ms)
            settled(lambda b=before: end_of(address_of(target), topic, 0) > b)
            mirror.kill()
            if kill % 2:
                await_clean(source, topic)  # what it goes on with is gone, in part
            mirror.start()
        sent = (kills + 1) * RECORDS
        left = left_of(sent, await_clean(source, topic))
        await_mirrored(mirror, source, topic)
        assert mirror.stop() == 0
    assert "lost" not in mirror.text
    if policy == "compact":
        await_clean(target, topic)
    found = numbers_in(target, topic)
    assert found == sorted(set(found)), "each once, and in order"
    last = {key_of(number): number for number in found}
    assert last == {key: number for number, key in left}
    if policy == "delete":
        assert {number for number, _ in left} <= set(found)
        assert len(found) < sent, "it read what the cleaner had left"
    else:
        assert len(found) < sent / 2
        assert len(last) > KEYS
