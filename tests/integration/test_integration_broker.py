"""A broker's process, a real ZooKeeper, and clients that nobody here wrote."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import NewPartitions, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from tests.integration.broker_clients import admin, consume, create, delete, kcat, produce
from tests.integration.broker_processes import (
    BRIEF_SESSIONS,
    BrokerProcess,
    broker_processes,
    free_port,
    settled,
)
from tests.integration.zookeeper_server import PATIENT_TICK_MS, ZooKeeperHost, zookeeper_host

_numbers = count(1)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperHost]:
    with zookeeper_host(tmp_path_factory.mktemp("zookeeper"), PATIENT_TICK_MS) as host:
        yield host


@pytest.fixture(scope="module")
def connect(zookeeper: ZooKeeperHost) -> str:
    return zookeeper.settings.address


@pytest.fixture
def own_root(connect: str) -> str:
    """A cluster that no other test has."""
    return f"{connect}/test{next(_numbers)}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, connect: str) -> Iterator[BrokerProcess]:
    """One broker that tests share, each with topics of its own."""
    directory = tmp_path_factory.mktemp("broker")
    http = f"127.0.0.1:{free_port()}"
    with broker_processes(1, directory, f"{connect}/shared", http_address=http) as (only,):
        yield only


# kcat


def test_kcat_lists_the_broker_as_controller(broker: BrokerProcess) -> None:
    assert f"  broker 1 at {broker.address} (controller)" in kcat(broker, "-L")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat_reads_back_what_it_produced_with_each_codec(
    broker: BrokerProcess, codec: str
) -> None:
    topic = f"kcat-{codec}"
    lines = [f"key{n}:value {n} {'x' * 50}" for n in range(20)]
    kcat(broker, "-P", "-t", topic, "-K:", "-z", codec, "-H", "h=1", given="\n".join(lines))
    found = kcat(broker, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k:%s|%h\n")
    assert sorted(found) == sorted(f"{line}|h=1" for line in lines)


def test_kcat_consumes_as_a_group(broker: BrokerProcess) -> None:
    kcat(broker, "-P", "-t", "kcat-group", given="one\ntwo\nthree")
    earliest = ("-X", "auto.offset.reset=earliest")
    found = kcat(broker, "-G", "kcat", *earliest, "-c", "3", "-q", "kcat-group")
    assert sorted(found) == ["one", "three", "two"]


# librdkafka's Python binding, kafka-python


def test_an_idempotent_producer_and_a_group_of_confluent_kafka(broker: BrokerProcess) -> None:
    create(broker, "confluent", 3)
    values = [b"%d" % n for n in range(1000)]
    idempotence = {"enable.idempotence": True}
    produce(broker, "confluent", values, **idempotence)
    assert sorted(consume(broker, "confluent", 1000, "confluent")) == sorted(values)


def test_a_producer_and_a_group_of_kafka_python(broker: BrokerProcess) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.address, acks="all")
    for n in range(200):
        producer.send("kafka-python", b"%d" % n)
    producer.flush(20)
    producer.close()
    consumer = KafkaConsumer(
        "kafka-python",
        bootstrap_servers=broker.address,
        group_id="kafka-python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    found = [message.value for _, message in zip(range(200), consumer, strict=False)]
    consumer.close()
    assert sorted(found) == sorted(b"%d" % n for n in range(200))


def test_partitions_are_added_and_topics_deleted(broker: BrokerProcess) -> None:
    create(broker, "grows", 2)
    client = admin(broker)
    client.create_partitions([NewPartitions("grows", 5)])["grows"].result(20)
    assert len(client.list_topics(timeout=10).topics["grows"].partitions) == 5
    delete(broker, "grows")
    assert "grows" not in client.list_topics(timeout=10).topics


def test_a_recreated_topic_holds_nothing_of_the_old_one(broker: BrokerProcess) -> None:
    create(broker, "again")
    produce(broker, "again", [b"old"] * 10)
    delete(broker, "again")
    create(broker, "again")
    produce(broker, "again", [b"new"])
    assert kcat(broker, "-C", "-t", "again", "-o", "beginning", "-e", "-q") == ["new"]


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (NewTopic("bad name!", 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("two-replicas", 1, 2), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("no-partitions", 0, 1), "INVALID_PARTITIONS"),
        (NewTopic("bad-setting", 1, 1, config={"retention.ms": "soon"}), "INVALID_CONFIG"),
    ],
)
def test_an_invalid_topic_is_refused(broker: BrokerProcess, new: NewTopic, why: str) -> None:
    client = admin(broker)
    with pytest.raises(KafkaException, match=why):
        client.create_topics([new])[new.topic].result(20)
    assert new.topic not in client.list_topics(timeout=10).topics


# HTTP


def page(broker: BrokerProcess, path: str) -> str:
    address = broker.settings["http.address"]
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def test_health_says_that_the_broker_is_ready(broker: BrokerProcess) -> None:
    report = json.loads(page(broker, "/health"))
    assert (report["status"], report["broker"], report["controller"]) == ("ok", 1, True)


def test_metrics_count_the_requests_of_each_api(broker: BrokerProcess) -> None:
    kcat(broker, "-L")
    lines = page(broker, "/metrics").splitlines()
    assert 'kdist_requests_total{api="Metadata"}' in "\n".join(lines)
    counted = [line for line in lines if line.startswith('kdist_requests_total{api="Metadata"}')]
    assert float(counted[0].split()[1]) >= 1


# Stops and starts


def test_a_restart_keeps_records_groups_and_producers(tmp_path: Path, own_root: str) -> None:
    with broker_processes(1, tmp_path, own_root) as (only,):
        producer = Producer({"bootstrap.servers": only.address, "enable.idempotence": True})
        for n in range(100):
            producer.produce("kept", b"%d" % n)
        assert producer.flush(20) == 0
        consume(only, "kept", 100, "readers")
        assert only.stop() == 0
        only.start()
        assert "were scanned" not in only.text
        producer.produce("kept", b"after")  # the same producer id, the next sequence
        assert producer.flush(20) == 0
        assert consume(only, "kept", 1, "readers") == [b"after"]


def test_a_broker_that_was_killed_comes_back_with_all_that_it_acknowledged(
    tmp_path: Path, own_root: str
) -> None:
    with broker_processes(1, tmp_path, own_root, log_flush_before_expose="true") as (only,):
        for round_number in range(3):
            produce(only, "acked", [b"%d" % round_number] * 50, acks="all")
            only.stop(signal.SIGKILL)
            only.start()
        found = kcat(only, "-C", "-t", "acked", "-o", "beginning", "-e", "-q")
        assert sorted(found) == sorted(str(n) for n in range(3) for _ in range(50))


def test_a_stop_does_not_wait_for_waiting_consumers(tmp_path: Path, own_root: str) -> None:
    with broker_processes(1, tmp_path, own_root) as (only,):
        produce(only, "quiet", [b"x"])
        consumer = Consumer(
            {"bootstrap.servers": only.address, "group.id": "g", "fetch.wait.max.ms": 30_000}
        )
        consumer.subscribe(["quiet"])
        consumer.poll(2)
        assert only.stop() == 0
        assert "still wait for answers" not in only.text
        consumer.close()


def test_systemd_is_told_when_the_broker_is_ready_and_when_it_stops(
    tmp_path: Path, own_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        told: list[str] = []

        def listen() -> None:
            while "STATUS=stopped" not in told:
                told.append(manager.recv(4096).decode())

        # All the time, as systemd does: the socket holds some ten messages, and more are dropped.
        listener = threading.Thread(target=listen)
        listener.start()
        with broker_processes(1, tmp_path, own_root) as (only,):
            settled(lambda: told.count("WATCHDOG=1") >= 3)
            assert only.stop() == 0
            listener.join()
        wished = next(n for n, each in enumerate(told) if each.startswith("EXTEND_TIMEOUT_USEC="))
        registering = told.index("STATUS=registering")
        assert wished < registering < told.index("READY=1") < told.index("STOPPING=1")


def test_a_second_signal_ends_it_at_once(tmp_path: Path, own_root: str) -> None:
    with broker_processes(1, tmp_path, own_root) as (only,):
        produce(only, "quiet", [b"x"])
        process = only.process
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            process.send_signal(number)  # it finds both when it goes on
        assert process.wait(20) == 143
        only.start()
        assert kcat(only, "-C", "-t", "quiet", "-o", "beginning", "-e", "-q") == ["x"]


def test_a_signal_during_the_start_undoes_what_was_begun(tmp_path: Path) -> None:
    early = BrokerProcess(1, tmp_path, f"127.0.0.1:{free_port()}")
    process = early.begin()
    settled(lambda: "connecting to ZooKeeper" in early.text)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_a_bug_ends_the_process_with_its_traceback(tmp_path: Path, own_root: str) -> None:
    with broker_processes(1, tmp_path, own_root) as (only,):
        shutil.rmtree(only.directory)  # nothing that a broker expects
        client = admin(only)
        client.create_topics([NewTopic("nowhere", 1, 1)], request_timeout=5)
        assert only.process.wait(20) == 70
        assert "FileNotFoundError" in only.text


def test_brokers_resume_when_zookeeper_comes_back(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        zookeeper_host(tmp_path_factory.mktemp("own"), PATIENT_TICK_MS) as own,
        broker_processes(1, tmp_path, own.settings.address) as (only,),
    ):
        create(only, "goes-on")
        asyncio.run(own.running.kill())
        produce(only, "goes-on", [b"while it is away"])
        asyncio.run(own.start())
        settled(lambda: "is the controller" in only.text.partition("suspended")[2])
        create(only, "after")
        found = kcat(only, "-C", "-t", "goes-on", "-o", "beginning", "-e", "-q")
        assert found == ["while it is away"]


# One sentence for each mistake


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def test_a_setting_that_is_wrong_is_named_with_its_line(tmp_path: Path, own_root: str) -> None:
    wrong = BrokerProcess(1, tmp_path, own_root, num_partitions="many")
    status, text = wrong.run()
    assert status == 1
    assert "kdist: num.partitions is 'many', but must be" in last_line(text)


def test_a_port_that_is_taken_is_named(
    tmp_path: Path, own_root: str, broker: BrokerProcess
) -> None:
    other = BrokerProcess(2, tmp_path, own_root, listeners=broker.settings["listeners"])
    status, text = other.run()
    assert (status, last_line(text)) == (
        1,
        f"kdist: cannot listen on 127.0.0.1, port {broker.port}: another process does already",
    )


def test_a_directory_of_another_broker_is_refused(
    tmp_path: Path, own_root: str, broker: BrokerProcess
) -> None:
    locked = BrokerProcess(2, tmp_path, own_root)
    locked.settings["log.dir"] = str(broker.directory)
    status, text = locked.run()
    assert (status, last_line(text)) == (
        1,
        f"kdist: {broker.directory} is in use by another process",
    )


def test_a_directory_of_another_cluster_is_refused(tmp_path: Path, own_root: str) -> None:
    with broker_processes(1, tmp_path, own_root) as (only,):
        assert only.stop() == 0
        only.settings["zookeeper.connect"] = f"{own_root}-other"
        status, text = only.run()
        assert status == 1
        assert "belongs to cluster" in last_line(text)


def test_a_zookeeper_that_does_not_answer_is_named(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    alone = BrokerProcess(1, tmp_path, nobody)
    alone.settings["zookeeper.connection.timeout.ms"] = "500"
    status, text = alone.run()
    assert (status, last_line(text)) == (
        1,
        f"kdist: ZooKeeper on {nobody}: no ZooKeeper server of {nobody} answered within 500 ms",
    )


def test_an_id_that_is_taken_is_named(tmp_path: Path, connect: str, broker: BrokerProcess) -> None:
    twin = BrokerProcess(1, tmp_path, f"{connect}/shared", **BRIEF_SESSIONS)
    status, text = twin.run()
    assert (status, last_line(text)) == (
        1,
        "kdist: broker.id 1 is taken: another broker is registered as /brokers/ids/1",
    )
