"""The origins of mirrored topics, as a cluster records them; and how far behind a partition is."""

from __future__ import annotations

import random

import pytest
from mirror_world import PARTITION, Scene, play, source_batches

from kdist.client.cluster import Cluster, parse_addresses
from kdist.client.fetch_once import FetchedBatches
from kdist.errors import CorruptRecords
from kdist.mirror.lag import NO_LAG, ask_lag
from kdist.mirror.origins import TOPIC, read_origins, write_origins
from kdist.mirror.selection import Origin
from kdist.model import OffsetRange, TopicPartition
from kdist.network.client import ClientSettings
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from kdist.records.message_set import write_message_set
from kdist.records.record import Record
from tests.unit.client.producer_world import PORT

FLIGHTS, OPS = Origin("flights", ("A",)), Origin("ops", ("A", "B"))


def cluster_of(scene: Scene) -> Cluster:
    network = scene.network.host("asks")
    return Cluster(network, parse_addresses(f"b0:{PORT}"), ClientSettings("t"), retry_ms=0)


def test_the_last_record_of_a_topics_origin_counts() -> None:
    async def work(scene: Scene) -> None:
        cluster = cluster_of(scene)
        assert await read_origins(cluster) == {}
        await write_origins(cluster, {"dc1.flights": Origin("x", ("C",)), "dc1.ops": OPS}, 1)
        await write_origins(cluster, {"dc1.flights": FLIGHTS}, 2)
        assert await read_origins(cluster) == {"dc1.flights": FLIGHTS, "dc1.ops": OPS}
        await write_origins(cluster, {"dc1.ops": None, "never": None}, 3)
        assert await read_origins(cluster) == {"dc1.flights": FLIGHTS}
        cluster.close()

    play(work)


def test_the_origins_of_thousands_of_topics_take_several_requests() -> None:
    async def work(scene: Scene) -> None:
        cluster = cluster_of(scene)
        origins = {f"t{n:05}".ljust(249, "-"): Origin("x" * 249, ("C" * 22,)) for n in range(3_000)}
        await write_origins(cluster, origins, 1)
        assert await read_origins(cluster) == origins
        batches = scene.brokers.log(TopicPartition(TOPIC, 0)).data
        assert max(map(len, batches)) < 1_000_000
        cluster.close()

    play(work)


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"topic": "x"}', b'{"through": []}'])
def test_a_record_that_is_not_an_origin_is_an_error(value: bytes) -> None:
    async def work(scene: Scene) -> None:
        log = scene.brokers.log(TopicPartition(TOPIC, 0))
        log.append(bytes(build_batch([value], [b"t"], timestamp_ms=0)))
        cluster = cluster_of(scene)
        with pytest.raises(CorruptRecords, match="is not an origin"):
            await read_origins(cluster)
        cluster.close()

    play(work)


def test_messages_of_an_old_log_are_handled_as_batches() -> None:
    records = [Record(offset, 1_000 + offset, None, b"x") for offset in (5, 6, 8)]
    found = list(FetchedBatches(write_message_set(records, 1, Codec.GZIP)).headers())
    assert [(each.base_offset, each.record_count) for each in found] == [(5, 2), (8, 1)]
    assert found[0].base_timestamp == 1_005


def test_lag_is_measured_by_the_first_record_that_is_behind() -> None:
    async def work(scene: Scene) -> None:
        log = scene.brokers.log()
        batches = source_batches(random.Random(1), 10, 0.0)
        for batch in batches:
            log.append(bytes(build_batch(batch.raw_values(), timestamp_ms=5_000)))
        cluster, end = cluster_of(scene), len(log.records)
        assert await ask_lag(cluster, PARTITION, end, OffsetRange(0, end), 9_000) == NO_LAG
        lag = await ask_lag(cluster, PARTITION, 0, OffsetRange(0, end), 9_000)
        size = len(log.data[0]) / len(batches[0].raw_values())
        assert lag == (end, end * size, 4.0)
        cluster.close()

    play(work)
