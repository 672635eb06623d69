"""`kdist mirror` between two clusters: kills, cuts, loops, losses; the same batches after all."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.broker_processes import BrokerProcess, settled
from tests.integration.mirror_processes import (
    PARTITIONS,
    QUIET,
    MirrorProcess,
    Writing,
    assert_same,
    await_ends,
    await_more,
    create,
    end_of,
    ended,
    flow,
    kdist,
    page_of,
    producer,
    proxied,
    two_clusters,
)
from tests.integration.zookeeper_server import free_port

FAULTS = 8
CUTS = 5

Clusters = tuple[BrokerProcess, BrokerProcess]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    with two_clusters(tmp_path_factory.mktemp("clusters")) as both:
        yield both


def test_mirrors_killed_and_frozen_under_load_copy_every_batch_once(
    clusters: Clusters, tmp_path: Path
) -> None:
    source, target = clusters
    for broker in clusters:
        create(broker.address, "killed", PARTITIONS)
    rng = random.Random(6)
    given = flow(source.address, target.address, topics="kil.*")
    mirrors = [MirrorProcess(tmp_path, name, given) for name in ("one", "two")]
    with ended(*mirrors):
        for mirror in mirrors:
            mirror.start()
        writing = Writing(source.address, "killed")
        try:
            for fault in range(FAULTS):
                await_more(target.address, "killed", rng.randrange(1, 1_500))
                doomed = mirrors[fault % 2]
                if fault % 4 == 3:  # the other takes over, and then both believe it is theirs
                    doomed.running.send_signal(signal.SIGSTOP)
                    await_more(target.address, "killed", 5_000)
                    doomed.running.send_signal(signal.SIGCONT)
                else:
                    doomed.kill()
                    doomed.start()
        finally:
            count = writing.stop()
        ends = [end_of(source.address, "killed", each) for each in range(PARTITIONS)]
        await_ends(target.address, "killed", ends)
        assert [mirror.stop() for mirror in mirrors] == [0, 0]
    assert sum(ends) == count
    assert_same(source.address, target.address, "killed")


def test_a_link_that_is_cut_again_and_again_loses_and_doubles_nothing(
    clusters: Clusters, tmp_path: Path
) -> None:
    source, target = clusters
    for broker in clusters:
        create(broker.address, "cut", PARTITIONS)
    with proxied(target) as (link, address):
        mirror = MirrorProcess(tmp_path, "cut", flow(source.address, address, "cut", topics="cut"))
        with ended(mirror):
            mirror.start()
            writing = Writing(source.address, "cut")
            try:
                await_more(target.address, "cut", 1_000)
                link.bytes_between_cuts = 100_000
                settled(lambda: link.cuts > CUTS)
                link.bytes_between_cuts = 0
                await_more(target.address, "cut", 1_000)
            finally:
                writing.stop()
            ends = [end_of(source.address, "cut", each) for each in range(PARTITIONS)]
            await_ends(target.address, "cut", ends)
            assert mirror.stop() == 0
    assert 0 < mirror.text.count("retrying") <= 4 * link.cuts
    assert_same(source.address, target.address, "cut")


def test_added_partitions_and_settings_are_mirrored(clusters: Clusters, tmp_path: Path) -> None:
    source, target = clusters
    create(source.address, "grown", 1, retention_ms="123456789")
    given = flow(source.address, target.address, "grown", topics="grown", prefix="dc1.")
    mirror = MirrorProcess(tmp_path, "grown", given)
    with ended(mirror):
        mirror.start()
        produce_one(source, "grown", 0)
        await_ends(target.address, "dc1.grown", [1])
        done = kdist("topics", "alter", "grown", "--partitions", "3", "--broker", source.address)
        assert done.returncode == 0, done.stderr
        produce_one(source, "grown", 2)
        await_ends(target.address, "dc1.grown", [1, 0, 1])
        row = settled(lambda: mirror.status_of(2))
        assert row["target_topic"] == "dc1.grown"
    described = kdist("topics", "describe", "dc1.grown", "--broker", target.address)
    assert "123456789" in described.stdout


def test_a_flow_without_topics_says_so_and_mirrors_one_that_comes(
    clusters: Clusters, tmp_path: Path
) -> None:
    source, target = clusters
    given = flow(source.address, target.address, "early", topics="early")
    mirror = MirrorProcess(tmp_path, "early", given)
    with ended(mirror):
        mirror.start()
        settled(lambda: "flow early: there is no topic to mirror in the source" in mirror.text)
        create(source.address, "early", 1)
        produce_one(source, "early", 0)
        await_ends(target.address, "early", [1])
        assert "flow early: topics to mirror: 1" in mirror.text
        assert mirror.stop() == 0


def produce_one(broker: BrokerProcess, topic: str, partition: int) -> None:
    to = producer(broker.address)
    to.produce(topic, b"one", partition=partition)
    assert to.flush(10) == 0


def test_a_topic_is_not_sent_back_to_where_it_came_from(clusters: Clusters, tmp_path: Path) -> None:
    source, target = clusters
    for broker, topic in ((source, "around-a"), (target, "around-b")):
        create(broker.address, topic, 1)
        produce_one(broker, topic, 0)
    there = MirrorProcess(
        tmp_path, "there", flow(source.address, target.address, "there", topics="around.*")
    )
    back = MirrorProcess(
        tmp_path, "back", flow(target.address, source.address, "back", topics="around.*")
    )
    with ended(there, back):
        there.start()
        back.start()
        await_ends(target.address, "around-a", [1])
        await_ends(source.address, "around-b", [1])
        settled(lambda: "not mirrored back" in there.text and "not mirrored back" in back.text)
        produce_one(source, "around-a", 0)
        await_ends(target.address, "around-a", [2])
        assert end_of(source.address, "around-a", 0) == 2
        found = json.loads(kdist("mirror", "status", "--config", str(back.file), "--json").stdout)
    assert found["held_topics"] == {
        "around-a": "it was mirrored from this flow's target, and is not mirrored back"
    }


def test_a_partition_that_lost_records_to_retention_stops_until_a_seek(
    clusters: Clusters, tmp_path: Path
) -> None:
    source, target = clusters
    create(source.address, "lost", 1)
    port = free_port()
    given = flow(source.address, target.address, "lost", topics="lost")
    given["mirror.http.address"] = f"127.0.0.1:{port}"
    mirror = MirrorProcess(tmp_path, "lost", given)
    with ended(mirror):
        mirror.start()
        produce_one(source, "lost", 0)
        await_ends(target.address, "lost", [1])
        settled(lambda: page_of(port, "/health")[0] == 200)
        mirror.kill()
        for _ in range(5):
            produce_one(source, "lost", 0)
        delete_before(source, "lost", 4)
        mirror.start()
        settled(lambda: "offsets 1 to 4 were not mirrored" in mirror.text)
        assert page_of(port, "/health")[0] == 503
        stopped = 'kdist_mirror_stopped{flow="lost",partition="0",topic="lost"} 1'
        settled(lambda: stopped in page_of(port, "/metrics")[1])
        assert end_of(target.address, "lost", 0) == 1
        assert mirror.stop() == 0
        words = ("--flow", "lost", "--topic", "lost", "--to", "earliest")
        sought = kdist("mirror", "seek", "--config", str(mirror.file), *words)
        assert sought.stdout == "lost-0 goes on from offset 4.\n", sought.stderr
        mirror.start()
        await_ends(target.address, "lost", [3])


def delete_before(broker: BrokerProcess, topic: str, offset: int) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": broker.address})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(20)


def test_a_mirror_that_is_to_stop_at_a_loss_ends_with_one_sentence(
    clusters: Clusters, tmp_path: Path
) -> None:
    source, target = clusters
    create(source.address, "halted", 1)
    given = flow(source.address, target.address, "halted", topics="halted")
    mirror = MirrorProcess(tmp_path, "halted", given | {"mirror.on.loss": "stop-mirror"})
    with ended(mirror):
        mirror.start()
        produce_one(source, "halted", 0)
        await_ends(target.address, "halted", [1])
        mirror.kill()
        for _ in range(5):
            produce_one(source, "halted", 0)
        delete_before(source, "halted", 3)
        mirror.start()
        assert mirror.running.wait(30) == 1
    assert mirror.text.splitlines()[-1].startswith("kdist: the source's log begins at 3")


def test_unreachable_clusters_are_waited_for_with_one_log_line(tmp_path: Path) -> None:
    nowhere, port = f"127.0.0.1:{free_port()}", free_port()
    given = flow(nowhere, f"127.0.0.1:{free_port()}") | {"mirror.http.address": f"127.0.0.1:{port}"}
    mirror = MirrorProcess(tmp_path, "waiting", given)
    with ended(mirror):
        mirror.start()
        settled(lambda: f"no broker answers at {nowhere}" in mirror.text)
        settled(lambda: page_of(port, "/health")[0] == 200)
        assert mirror.stop() == 0
    assert len(mirror.text.splitlines()) == 1


def test_source_and_target_of_one_cluster_are_refused(clusters: Clusters, tmp_path: Path) -> None:
    source, _ = clusters
    given = flow(source.address, f"localhost:{source.port}", topics="x")
    mirror = MirrorProcess(tmp_path, "same", given)
    with ended(mirror):
        mirror.start()
        assert mirror.running.wait(30) == 1
    assert "source and target are the same cluster" in mirror.text
