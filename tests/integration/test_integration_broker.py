"""Brokers' processes, a real ZooKeeper, and clients that nobody here wrote."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from tests.integration.broker_clients import (
    admin,
    consume,
    controller_of,
    create,
    delete,
    kcat,
    leaders,
    produce,
)
from tests.integration.broker_processes import (
    BRIEF_SESSIONS,
    BrokerProcess,
    broker_processes,
    free_port,
    settled,
)
from tests.integration.zookeeper_server import PATIENT_TICK_MS, ZooKeeperHost, zookeeper_host


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperHost
) -> Iterator[BrokerProcess]:
    """One broker that tests share, each with topics of its own."""
    directory = tmp_path_factory.mktemp("broker")
    http = f"127.0.0.1:{free_port()}"
    with broker_processes(
        1, directory, f"{zookeeper.settings.address}/shared", http_address=http
    ) as (only,):
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


def test_a_restart_keeps_records_groups_and_producers(tmp_path: Path, connect: str) -> None:
    with broker_processes(1, tmp_path, connect) as (only,):
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
    tmp_path: Path, connect: str
) -> None:
    with broker_processes(1, tmp_path, connect, log_flush_before_expose="true") as (only,):
        for round_number in range(3):
            produce(only, "acked", [b"%d" % round_number] * 50, acks="all")
            only.stop(signal.SIGKILL)
            only.start()
        found = kcat(only, "-C", "-t", "acked", "-o", "beginning", "-e", "-q")
        assert sorted(found) == sorted(str(n) for n in range(3) for _ in range(50))


def test_a_stop_does_not_wait_for_waiting_consumers(tmp_path: Path, connect: str) -> None:
    with broker_processes(1, tmp_path, connect) as (only,):
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
    tmp_path: Path, connect: str, monkeypatch: pytest.MonkeyPatch
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
        with broker_processes(1, tmp_path, connect) as (only,):
            settled(lambda: told.count("WATCHDOG=1") >= 3)
            assert only.stop() == 0
            listener.join()
        wished = next(n for n, each in enumerate(told) if each.startswith("EXTEND_TIMEOUT_USEC="))
        registering = told.index("STATUS=registering")
        assert wished < registering < told.index("READY=1") < told.index("STOPPING=1")


def test_a_second_signal_ends_it_at_once(tmp_path: Path, connect: str) -> None:
    with broker_processes(1, tmp_path, connect) as (only,):
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


def test_a_bug_ends_the_process_with_its_traceback(tmp_path: Path, connect: str) -> None:
    with broker_processes(1, tmp_path, connect) as (only,):
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


def test_a_setting_that_is_wrong_is_named_with_its_line(tmp_path: Path, connect: str) -> None:
    wrong = BrokerProcess(1, tmp_path, connect, num_partitions="many")
    status, text = wrong.run()
    assert status == 1
    assert "kdist: num.partitions is 'many', but must be" in last_line(text)


def test_a_port_that_is_taken_is_named(tmp_path: Path, connect: str, broker: BrokerProcess) -> None:
    other = BrokerProcess(2, tmp_path, connect, listeners=broker.settings["listeners"])
    status, text = other.run()
    assert (status, last_line(text)) == (
        1,
        f"kdist: cannot listen on 127.0.0.1, port {broker.port}: another process does already",
    )


def test_a_directory_of_another_broker_is_refused(
    tmp_path: Path, connect: str, broker: BrokerProcess
) -> None:
    locked = BrokerProcess(2, tmp_path, connect)
    locked.settings["log.dir"] = str(broker.directory)
    status, text = locked.run()
    assert (status, last_line(text)) == (
        1,
        f"kdist: {broker.directory} is in use by another process",
    )


def test_a_directory_of_another_cluster_is_refused(tmp_path: Path, connect: str) -> None:
    with broker_processes(1, tmp_path, connect) as (only,):
        assert only.stop() == 0
        only.settings["zookeeper.connect"] = f"{connect}-other"
        status, text = only.run()
        assert status == 1
        assert "belongs to cluster" in last_line(text)


def test_a_zookeeper_that_does_not_answer_is_named_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd is told what it waits for, and not to give it up."""
    nobody = f"127.0.0.1:{free_port()}"
    alone = BrokerProcess(1, tmp_path, nobody, http_address=f"127.0.0.1:{free_port()}")
    alone.settings["zookeeper.connection.timeout.ms"] = "200"
    said = f"waiting for ZooKeeper: no ZooKeeper server of {nobody} answered within 200 ms"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        try:
            alone.begin()
            told = [manager.recv(4096).decode()]
            while f"STATUS={said}" not in told:
                told.append(manager.recv(4096).decode())
            assert [each for each in told if each.startswith("EXTEND_TIMEOUT_USEC=")]
            settled(lambda: alone.text.count(said) > 1)
            with pytest.raises(urllib.error.HTTPError) as health:
                urllib.request.urlopen(
                    f"http://{alone.settings['http.address']}/health", timeout=10
                )
            assert (health.value.code, json.load(health.value)["state"]) == (503, "starting")
            assert alone.stop() == 0
        finally:
            alone.end()


def test_an_id_that_is_taken_is_named(tmp_path: Path, broker: BrokerProcess) -> None:
    twin = BrokerProcess(1, tmp_path, broker.settings["zookeeper.connect"], **BRIEF_SESSIONS)
    status, text = twin.run()
    assert (status, last_line(text)) == (
        1,
        "kdist: broker.id 1 is taken: another broker is registered as /brokers/ids/1",
    )


def test_three_brokers_share_the_partitions_of_a_topic(tmp_path: Path, connect: str) -> None:
    with broker_processes(3, tmp_path, connect) as brokers:
        create(brokers[2], "spread", 6)
        assert sorted(leaders(brokers[1], "spread")) == [1, 1, 2, 2, 3, 3]
        produce(brokers[0], "spread", [b"%d" % n for n in range(600)])
        assert len(consume(brokers[2], "spread", 600, "spread")) == 600


def test_a_topic_is_created_on_demand_by_a_broker_that_is_not_the_controller(
    tmp_path: Path, connect: str
) -> None:
    with broker_processes(2, tmp_path, connect) as brokers:
        other = next(each for each in brokers if each.id != controller_of(brokers[0]))
        kcat(other, "-P", "-t", "on-demand", given="x")
        assert kcat(other, "-C", "-t", "on-demand", "-o", "beginning", "-e", "-q") == ["x"]


def test_a_broker_that_restarts_leads_its_partitions_again(tmp_path: Path, connect: str) -> None:
    with broker_processes(2, tmp_path, connect) as brokers:
        create(brokers[0], "comes-back", 4)
        before = leaders(brokers[0], "comes-back")
        produce(brokers[0], "comes-back", [b"%d" % n for n in range(100)])
        assert brokers[1].stop() == 0
        settled(lambda: -1 in leaders(brokers[0], "comes-back"))
        brokers[1].start()
        settled(lambda: leaders(brokers[0], "comes-back") == before)
        assert len(consume(brokers[1], "comes-back", 100, "g")) == 100


def test_a_broker_that_was_frozen_for_too_long_registers_again(
    tmp_path: Path, connect: str
) -> None:
    with broker_processes(2, tmp_path, connect, **BRIEF_SESSIONS) as brokers:
        create(brokers[0], "stands-still", 4)
        before = leaders(brokers[0], "stands-still")
        first = controller_of(brokers[0])
        paused, other = brokers[first - 1], brokers[2 - first]
        paused.process.send_signal(signal.SIGSTOP)
        settled(lambda: controller_of(other) == other.id)
        settled(lambda: -1 in leaders(other, "stands-still"))
        paused.process.send_signal(signal.SIGCONT)
        settled(lambda: leaders(paused, "stands-still") == before)
        settled(lambda: controller_of(paused) == other.id)
        produce(paused, "stands-still", [b"%d" % n for n in range(50)])
        assert paused.stop() == 0


def test_another_broker_takes_over_when_the_controller_is_killed(
    tmp_path: Path, connect: str
) -> None:
    with broker_processes(3, tmp_path, connect, **BRIEF_SESSIONS) as brokers:
        first = controller_of(brokers[0])
        killed = brokers[first - 1]
        left = [each for each in brokers if each is not killed]
        create(left[0], "before", 3)
        killed.stop(signal.SIGKILL)
        settled(lambda: controller_of(left[0]) not in (first, -1))
        create(left[0], "after", 4)
        assert set(leaders(left[1], "after")) == {each.id for each in left}
        killed.start()
        settled(lambda: -1 not in leaders(left[0], "before"))
        settled(lambda: leaders(killed, "before") == leaders(left[0], "before"))


def test_a_committed_offset_is_where_it_was_after_its_coordinator_restarted(
    tmp_path: Path, connect: str
) -> None:
    with broker_processes(2, tmp_path, connect) as brokers:
        create(brokers[0], "positions", 1)
        produce(brokers[0], "positions", [b"x"] * 10)
        groups = [f"group-{n}" for n in range(6)]
        for group in groups:
            consume(brokers[0], "positions", 10, group)
        for broker in brokers:
            assert broker.stop() == 0
            broker.start()
        asked = [TopicPartition("positions", 0)]
        for group in groups:
            consumer = Consumer({"bootstrap.servers": brokers[1].address, "group.id": group})
            assert consumer.committed(asked, timeout=20)[0].offset == 10
            consumer.close()
