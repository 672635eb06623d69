"""Three replicas that clean their logs: what is deleted or cut off stays so, whoever was away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from test_scenarios_replicas import IDS, TOPIC, Stage, play

from kdist.broker.broker import Broker
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.batch import read_header
from kdist.records.build import build_batch, read_batch
from kdist.replication.partition import Partition

RETENTION_MS = 2_000
TABLE = {
    "cleanup_policy": "compact",
    "segment_bytes": "400",
    "min_cleanable_dirty_ratio": "0.0",
    "delete_retention_ms": str(RETENTION_MS),
}
Table = dict[bytes, bytes | None]


async def put(stage: Stage, pairs: list[tuple[bytes, bytes | None]], acks: int = -1) -> None:
    """Produce each pair in a batch of its own."""
    client = await stage.cluster.client(stage.leader().id)
    for key, value in pairs:
        now_ms = stage.cluster.clock.now_ms()
        part = ProducePartition(
            index=0, records=bytes(build_batch([value], [key], timestamp_ms=now_ms))
        )
        topics = [ProduceTopic(name=TOPIC, partition_data=[part])]
        request = ProduceRequest(acks=acks, timeout_ms=20_000, topic_data=topics)
        answer: Any = await client.send(request, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0


def rows(partition: Partition) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of each record in a replica's log."""
    found = []
    for segment in partition.log.segments:
        data, at = segment.file.read(0, segment.size), 0
        while at < len(data):
            found += [(each.offset, each.key, each.value) for each in read_batch(data, at)]
            at += read_header(data, at).size
    return found


def table(partition: Partition) -> Table:
    """What a reader who starts now ends with: keys that were deleted are not in it."""
    last = {key: value for _, key, value in rows(partition) if key is not None}
    return {key: value for key, value in last.items() if value is not None}


def has_tombstone(partition: Partition, key: bytes) -> bool:
    return any(k == key and value is None for _, k, value in rows(partition))


async def churn(stage: Stage, seconds: float) -> None:
    """For so long, close segments with older values in them, so that cleaners have what to do."""
    end_s = stage.cluster.loop.time() + seconds
    while stage.cluster.loop.time() < end_s:
        await put(stage, [(b"busy", bytes(150))] * 3)
        await asyncio.sleep(RETENTION_MS / 4000)


def played(scenario: Callable[[Stage], Awaitable[None]], seed: int = 0, **settings: str) -> None:
    play(scenario, seed, log_cleaner_backoff_ms="100", **settings)


def isr_of(stage: Stage) -> list[int]:
    return sorted(stage.replicas()[stage.leader().id].state.isr)


@pytest.mark.parametrize("ends", ["killed", "without power"])
def test_a_replica_that_was_away_longer_than_tombstones_stay_brings_nothing_back(ends: str) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(**TABLE)
        await put(stage, [(b"gone", b"1"), (b"kept", b"2")])
        await stage.settle(2)
        away = stage.followers()[0]
        others = [each for each in IDS if each != away.id]
        stage.cluster.kill(away, is_power_lost=ends == "without power")
        await stage.cluster.until(lambda: any(p.is_leader for p in stage.replicas().values()))
        await put(stage, [(b"gone", None)])
        await churn(stage, 10 * RETENTION_MS / 1000)
        assert isr_of(stage) == others
        for each in stage.replicas().values():
            assert (0, b"gone", b"1") not in rows(each), "it was cleaned"
            assert has_tombstone(each, b"gone")

        await stage.cluster.started(away.id)
        await stage.cluster.until(lambda: isr_of(stage) == list(IDS))
        await churn(stage, 10 * RETENTION_MS / 1000)
        for each in stage.replicas().values():
            assert not has_tombstone(each, b"gone"), "its time is over, and all have seen it"
            assert sorted(table(each)) == [b"busy", b"kept"]

        for broker_id in others:  # what a client reads when only that replica is left
            stage.cluster.kill(stage.cluster.brokers[broker_id])
        await stage.cluster.until(lambda: stage.replicas()[away.id].is_leader)
        assert sorted(table(stage.replicas()[away.id])) == [b"busy", b"kept"]

    played(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_that_dies_within_a_clean_leaves_every_replica_with_the_same_table(
    seed: int,
) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(**TABLE)
        for number in range(3):
            await put(stage, [(b"a", b"%d" % number), (b"b", b"%d" % number), (b"c", None)] * 3)
            leader = stage.leader()
            await stage.cluster.until(lambda on=leader: on.service.cleaner._pass is not None)
            stage.cluster.kill(leader, is_power_lost=True)
            await stage.cluster.until(lambda: any(p.is_leader for p in stage.replicas().values()))
            await put(stage, [(b"a", b"after %d" % number)])
            await stage.cluster.started(leader.id)
            await stage.cluster.until(lambda: isr_of(stage) == list(IDS))
        await churn(stage, 4 * RETENTION_MS / 1000)
        tables = [table(each) for each in stage.replicas().values()]
        assert tables == [{b"a": b"after 2", b"b": b"2", b"busy": bytes(150)}] * 3

    played(scenario, seed)


async def succeeded(stage: Stage, dead: Broker) -> Broker:
    """Who leads once `dead` has been killed."""
    stage.cluster.kill(dead)
    await stage.cluster.until(lambda: any(p.is_leader for p in stage.replicas().values()))
    return stage.leader()


@pytest.mark.parametrize("stays", [True, False])
def test_a_copy_of_a_cleaned_log_tells_a_former_leader_where_its_epoch_ended(stays: bool) -> None:
    """What it alone had goes, what was committed stays; `stays`: a record of its epoch, too."""

    async def scenario(stage: Stage) -> None:
        await stage.begin(**TABLE)
        cluster, first = stage.cluster, stage.leader()
        await put(stage, [(b"old", b"0")])
        await stage.settle(1)
        former = await succeeded(stage, first)
        await cluster.started(first.id)
        await cluster.until(lambda: isr_of(stage) == list(IDS))
        await put(stage, [(b"kept" if stays else b"busy", b"1"), (b"busy", b"2")])
        await stage.settle(3)
        await asyncio.sleep(10)  # until the high watermark is in the checkpoint

        others = [f"m{each.id}" for each in stage.followers()]
        cluster.network.partition((f"m{former.id}", "client"), others)
        await put(stage, [(b"stale", b"3")], acks=1)
        mark = stage.replicas()[former.id].high_watermark
        source = await succeeded(stage, former)
        cluster.network.heal()
        assert stage.replicas()[source.id].log.end_offset == mark == 3
        await churn(stage, 2 * RETENTION_MS / 1000)
        began = stage.replicas()[source.id].log.epochs.entries

        (copy,) = (each for each in IDS if each not in (former.id, source.id))
        cluster.kill(cluster.brokers[copy])
        del cluster.disks[copy]
        await cluster.started(copy)
        await cluster.until(lambda: isr_of(stage) == sorted((copy, source.id)))
        assert 4 not in [offset for offset, *_ in rows(stage.replicas()[copy])]
        assert [each for each in stage.replicas()[copy].log.epochs.entries if each.epoch] == [
            each for each in began if each.epoch
        ]

        assert (await succeeded(stage, source)).id == copy
        await cluster.started(former.id)
        await cluster.until(lambda: former.id in isr_of(stage))
        back = cluster.brokers[former.id].service.replicas
        assert back._context.metrics.truncated_committed == 0
        assert b"stale" not in [key for _, key, _ in rows(stage.replicas()[former.id])]

    played(scenario, auto_leader_rebalance_enable="false")
