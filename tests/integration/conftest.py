"""What the integration tests share, made once a session: servers, and logs that Kafka wrote.

    filled -- SIGKILL, damage --> damaged -- Kafka recovers and stops --> recovered
    recovered -- kdist opens, appends, closes --> handed back -- Kafka starts, reads, stops --> kept

Nobody changes these: a test that writes takes a copy. Of the servers, each test has a root or
topics of its own, and lets go on what it has paused.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import TopicPartition
from peer.kafka_broker import KafkaBroker
from peer.kafka_damage import DAMAGES
from peer.kafka_queries import Answers, Read, ask, read_all
from peer.kafka_workload import fill
from peer.kdist_directory import append_records, opened, write_and_abandon

from kdist.model import TopicPartition as KdistPartition
from tests.integration.standalone_process import Standalone, standalone
from tests.integration.zookeeper_server import PATIENT_TICK_MS, ZooKeeperHost, zookeeper_host

_roots = count(1)

HANDED_BACK = ("kdist-written-0", "codec-mixed-0", "idempotent-0")


class KafkaHistory(NamedTuple):
    """One broker's log directory before and after its recovery, and what it then answered."""

    damaged: Path
    recovered: Path
    answers: Answers


class HandedBack(NamedTuple):
    """A log directory as kdist closed it, what Kafka made of it, and what it said and served."""

    directory: Path
    kept: Path
    diagnostics: str
    appended: dict[str, list[Read]]
    served: dict[str, list[Read]]


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperHost]:
    """A server that allows for brief sessions, and for those that no busy machine lets expire."""
    with zookeeper_host(tmp_path_factory.mktemp("zookeeper"), PATIENT_TICK_MS) as host:
        yield host


@pytest.fixture
def connect(zookeeper: ZooKeeperHost) -> str:
    """The root of a cluster that no other test has."""
    return f"{zookeeper.settings.address}/cluster{next(_roots)}"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """One broker, and the ZooKeeper that it has started."""
    with standalone(tmp_path_factory.mktemp("cluster")) as run:
        yield run


@pytest.fixture(scope="session")
def kafka_history(tmp_path_factory: pytest.TempPathFactory) -> KafkaHistory:
    """A broker that was filled, killed, damaged, and that then mended itself."""
    root = tmp_path_factory.mktemp("kafka")
    broker = KafkaBroker(root / "broker")
    broker.start()
    try:
        fill(broker)
    finally:
        broker.kill()
    torn = KdistPartition("kdist-torn", 0)
    write_and_abandon(root / "kdist", torn, seed=5)
    install(root / "kdist" / str(torn), broker.data / str(torn))
    for partition, damage in DAMAGES.items():
        damage(broker.data / partition)
    damaged = copy_directory(broker.data, root / "damaged")
    # Without its cleaner: what it keeps of the damaged logs shall be what recovery kept.
    with KafkaBroker(broker.directory, log_cleaner_enable="false") as mended:
        answers = ask(mended)
    return KafkaHistory(damaged, copy_directory(broker.data, root / "recovered"), answers)


@pytest.fixture(scope="session")
def handed_back(
    kafka_history: KafkaHistory, tmp_path_factory: pytest.TempPathFactory
) -> HandedBack:
    """kdist takes over a broker's clean directory, appends, stops; Kafka takes it back."""
    root = tmp_path_factory.mktemp("handed-back")
    broker = KafkaBroker(root / "broker", log_cleaner_enable="false")
    copy_directory(kafka_history.recovered, broker.data)
    with opened(broker.data) as directory:
        appended = {
            name: append_records(directory.logs[_partition(name)], seed)
            for seed, name in enumerate(HANDED_BACK)
        }
    closed = copy_directory(broker.data, root / "closed")
    with broker:
        served = {name: read_all(broker, TopicPartition(*_partition(name))) for name in HANDED_BACK}
        diagnostics = broker.diagnostics()
    return HandedBack(closed, broker.data, diagnostics, appended, served)


def _partition(name: str) -> KdistPartition:
    topic, _, number = name.rpartition("-")
    return KdistPartition(topic, int(number))


def install(source: Path, target: Path) -> None:
    """Replace a partition's files, but for the topic id that its cluster knows it by."""
    for path in target.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in source.iterdir():
        if path.name != "partition.metadata":
            shutil.copy2(path, target)


def copy_directory(source: Path, target: Path) -> Path:
    """A copy without lock file, its preallocated indexes as sparse as they were."""
    target.mkdir(parents=True)
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir()
        elif path.name != ".lock":
            _copy_sparse(path, copy)
    return target


def _copy_sparse(source: Path, target: Path) -> None:
    content = source.read_bytes()
    used = content.rstrip(b"\0") if len(content) > 1 << 20 else content
    with open(target, "wb") as file:
        file.write(used)
        file.truncate(len(content))
    shutil.copystat(source, target)
