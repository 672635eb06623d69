"""A broker starts on its own disk or not at all; who has lost records leads only as it may."""

from __future__ import annotations

import json
from typing import cast

import pytest

from kdist.broker.process import WrongDisk, check_marker
from kdist.config.broker import DiskSettings
from kdist.config.load import broker_from
from kdist.model import TopicPartition
from kdist.network.client import Client
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic, ReplicaAssignment
from kdist.runtime.disk import Disk
from kdist.runtime.files import Files
from kdist.zk import znodes
from kdist.zk.values import PartitionState
from tests.simulator.cluster import Cluster, produce

CLICKS = TopicPartition("clicks", 0)


def state_of(cluster: Cluster) -> PartitionState:
    path = znodes.PARTITION_STATE.path(*CLICKS)
    return znodes.PARTITION_STATE.decode(path, cluster.ensemble.tree.get(path).data)


async def three(cluster: Cluster, *replicas: int) -> None:
    """Three brokers, of which the first is the controller, and the topic on some of them."""
    for broker_id in (1, 2, 3):
        await cluster.started(broker_id)
    new = NewTopic(
        name="clicks",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[ReplicaAssignment(partition_index=0, broker_ids=list(replicas))],
        configs=[],
    )
    client = await cluster.client(1)
    answer = await client.send(CreateTopicsRequest(topics=[new], timeout_ms=10_000), 7)
    assert answer.topics[0].error_code == 0


async def leader_of(cluster: Cluster) -> Client:
    """A client of the leader, once that knows that it leads."""
    leader = state_of(cluster).leader
    partitions = cluster.brokers[leader].service.replicas.partitions
    await cluster.until(lambda: CLICKS in partitions and partitions[CLICKS].is_leader)
    return await cluster.client(leader)


def end_offset(cluster: Cluster, broker_id: int) -> int:
    partition = cluster.brokers[broker_id].service.replicas.partitions.get(CLICKS)
    return -1 if partition is None else partition.log.end_offset


MARKER = {"cluster": "lab-dc1", "broker": 201, "disk": "d01"}


def check(tmp_path: object, marker: object, **given: str) -> None:
    path = f"{tmp_path}/disk.json"
    content = marker if isinstance(marker, str) else json.dumps(marker)
    if marker is not None:
        with open(path, "w") as file:
            file.write(content)
    settings = {
        "broker.id": "201",
        "log.dir": f"{tmp_path}/kdist",
        "zookeeper.connect": "zk:2181",
        "disk.marker": path,
        "disk.cluster": "lab-dc1",
        "disk.id": "d01",
    }
    config = broker_from(settings | {name.replace("_", "."): v for name, v in given.items()})
    check_marker(config.disk, config.broker.id, Disk())


async def test_a_leader_on_a_new_disk_truncates_nobody_and_is_filled_by_who_was_in_sync(
    cluster: Cluster,
) -> None:
    await three(cluster, 2, 3)
    assert (await produce(await leader_of(cluster), "clicks", b"a", b"b")).error_code == 0
    cluster.kill(cluster.brokers[2])
    del cluster.disks[2]
    await cluster.started(2)
    await cluster.until(lambda: set(state_of(cluster).isr) == {2, 3})
    assert state_of(cluster).leader == 3
    assert end_offset(cluster, 2) == end_offset(cluster, 3) == 2
    assert cluster.brokers[1].measures.controller.unclean_elections == 0


async def test_an_only_replica_whose_host_went_down_leads_on_and_has_recovered_once_it_says_so(
    cluster: Cluster,
) -> None:
    await three(cluster, 2)
    assert (await produce(await leader_of(cluster), "clicks", b"a")).error_code == 0
    cluster.kill(cluster.brokers[2], is_power_lost=True)
    await cluster.started(2)
    metrics = cluster.brokers[1].measures.controller
    await cluster.until(lambda: state_of(cluster).leader == 2)
    await cluster.until(lambda: metrics.recovering_partitions() == 0)
    assert metrics.unclean_elections == 1
    assert (await produce(await leader_of(cluster), "clicks", b"b")).error_code == 0


async def test_a_killed_process_has_lost_nothing_and_its_only_replica_leads_on_cleanly(
    cluster: Cluster,
) -> None:
    await three(cluster, 2)
    assert (await produce(await leader_of(cluster), "clicks", b"a")).error_code == 0
    cluster.kill(cluster.brokers[2])
    await cluster.started(2)
    await cluster.until(lambda: state_of(cluster).leader == 2)
    assert cluster.brokers[1].measures.controller.unclean_elections == 0
    assert end_offset(cluster, 2) == 1


async def test_who_lost_its_page_cache_waits_for_the_other_member_of_the_isr_though_that_is_down(
    cluster: Cluster,
) -> None:
    await three(cluster, 2, 3)
    assert (await produce(await leader_of(cluster), "clicks", b"a", b"b")).error_code == 0
    # Both at once, so that both are in the ISR; one of them with its host.
    cluster.kill(cluster.brokers[2], is_power_lost=True)
    cluster.kill(cluster.brokers[3])
    await cluster.until(lambda: state_of(cluster).leader == -1)
    await cluster.started(2)
    await cluster.until(lambda: state_of(cluster).isr == (3,))
    assert state_of(cluster).leader == -1
    await cluster.started(3)
    await cluster.until(lambda: set(state_of(cluster).isr) == {2, 3})
    assert state_of(cluster).leader == 3
    assert end_offset(cluster, 2) == end_offset(cluster, 3) == 2


def test_its_own_disk_is_accepted(tmp_path: object) -> None:
    check(tmp_path, MARKER)
    check(tmp_path, MARKER | {"made": "2026-11-20"})


@pytest.mark.parametrize(
    ("marker", "sentence"),
    [
        (None, "disk.json is not there: is the disk mounted?"),
        ("{", "is not JSON"),
        ([1], "is not a JSON object"),
        ({}, "names cluster None, but this is cluster 'lab-dc1'"),
        (MARKER | {"cluster": "production-dc1"}, "names cluster 'production-dc1'"),
        (MARKER | {"broker": 202}, "names broker 202, but this is broker 201"),
        (MARKER | {"broker": "201"}, "names broker '201'"),
        (MARKER | {"disk": "d02"}, "names disk 'd02', but this is disk 'd01'"),
    ],
)
def test_another_disk_is_refused(tmp_path: object, marker: object, sentence: str) -> None:
    with pytest.raises(WrongDisk) as refused:
        check(tmp_path, marker)
    assert sentence in str(refused.value)
    assert refused.value.EXIT_STATUS == 78


def test_without_a_marker_in_the_settings_nothing_is_checked(tmp_path: object) -> None:
    config = broker_from(
        {"broker.id": "1", "log.dir": f"{tmp_path}/kdist", "zookeeper.connect": "zk:2181"}
    )
    check_marker(config.disk, 1, Disk())


class _Guarded:
    """The directory below a mount that is not there: nobody may look into it."""

    def read(self, path: str) -> bytes:
        raise PermissionError(path)


def test_a_marker_that_cannot_be_read_counts_as_missing() -> None:
    settings = DiskSettings(marker="/data/d01/disk.json")
    with pytest.raises(WrongDisk, match="is the disk mounted"):
        check_marker(settings, 201, cast(Files, _Guarded()))
