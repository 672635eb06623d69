"""kdist's admin client and command line against servers that nobody here wrote.

Under KRaft a broker learns of a change after the controller has answered: it is waited for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer as TransactionalProducer
from foreign_servers import ADMINISTERED, WAIT_S, Server

from kdist.cli.main import kdist
from kdist.client.admin.clients import Admin
from kdist.client.admin.outcomes import SomeFailed
from kdist.client.admin.records import HIGH_WATERMARK
from kdist.client.admin.resets import ShiftBy, ToEarliest, ToTime
from kdist.client.admin.settings import OF_TOPIC
from kdist.client.admin.topics import NewTopic
from kdist.client.consumer.consumer import Consumer
from kdist.client.producer.sync import Producer
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.protocol.list_offsets import EARLIEST_TIMESTAMP
from kdist.runtime.clock import SystemClock
from tests.integration.consumer_members import until
from tests.refusals import refused

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("foreign-admin")]

NOW_MS = SystemClock().now_ms()


@pytest.fixture(scope="module", params=ADMINISTERED)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with ADMINISTERED[request.param](tmp_path_factory.mktemp("foreign")) as running:
        yield running


@pytest.fixture(scope="module")
def admin(server: Server) -> Iterator[Admin]:
    with Admin(server.address) as client:
        yield client


def filled(admin: Admin, server: Server, topic: str) -> list[TopicPartition]:
    """A topic of two partitions with ten records in each."""
    admin.create_topics([NewTopic(topic, 2, 1)])
    partitions = [TopicPartition(topic, number) for number in range(2)]
    with Producer(bootstrap_servers=server.address) as producer:
        for _, number in partitions:
            for n in range(10):
                producer.send(topic, b"%d" % n, partition=number, timestamp=NOW_MS + n)
    return partitions


def read_by(server: Server, group: str, topic: str) -> Consumer:
    """A member that has read and committed everything; close it."""
    consumer = Consumer(server.address, group_id=group, auto_offset_reset="earliest")
    consumer.subscribe([topic])
    seen = 0
    while seen < 20:
        seen += len(consumer.poll(WAIT_S))
    consumer.commit()
    return consumer


def test_topics_are_created_described_grown_and_deleted(admin: Admin) -> None:
    made = admin.create_topics([NewTopic("made", 2, 1, {"retention.ms": "1000000"})])["made"]
    assert (made.partitions, made.replication_factor) == (2, 1)
    admin.create_partitions({"made": 5})
    until(lambda: len(admin.describe_topics(["made"])["made"].partitions) == 5, "it grew")
    (topic,) = admin.describe_topics(["made"]).values()
    assert (topic.id, topic.replication_factor) == (made.id, 1)
    with pytest.raises(SomeFailed) as caught:
        admin.create_topics([NewTopic("made", 2, 1), NewTopic("other", 2, 1)])
    assert {name: e.error for name, e in caught.value.failed.items()} == {
        "made": Error.TOPIC_ALREADY_EXISTS
    }
    assert list(caught.value.done) == ["other"]
    admin.delete_topics(["made", "other"])
    until(lambda: {"made", "other"}.isdisjoint(topic.name for topic in admin.list_topics()))


def own(admin: Admin, topic: str) -> dict[str, str | None]:
    """A topic's own settings; none while the broker that is asked has not heard of the topic."""
    try:
        settings = admin.describe_topic_configs([topic])[topic].values()
    except SomeFailed:
        return {}
    return {each.name: each.value for each in settings if each.source == OF_TOPIC}


def test_settings_change_one_by_one(admin: Admin) -> None:
    admin.create_topics([NewTopic("set", 1, 1, {"retention.ms": "1000000"})])
    until(lambda: own(admin, "set") == {"retention.ms": "1000000"})
    admin.incremental_alter_topic_configs("set", {"segment.bytes": "2000000"})
    until(lambda: own(admin, "set") == {"retention.ms": "1000000", "segment.bytes": "2000000"})
    admin.incremental_alter_topic_configs("set", unset=["retention.ms"])
    until(lambda: own(admin, "set") == {"segment.bytes": "2000000"})
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION):
        admin.incremental_alter_topic_configs("unset", {"segment.bytes": "2000000"})


def test_brokers_tell_their_settings_and_take_changes(admin: Admin) -> None:
    found = admin.describe_broker_configs()
    assert list(found) == [each.id for each in admin.describe_cluster().brokers]
    broker = min(found)
    admin.incremental_alter_broker_configs(broker, {"log.cleaner.threads": "2"})
    admin.incremental_alter_broker_configs(broker, unset=["log.cleaner.threads"])
    admin.incremental_alter_broker_configs(None, {"log.cleaner.threads": "2"})
    admin.incremental_alter_broker_configs(None, unset=["log.cleaner.threads"])


def test_quotas_are_set_shown_and_unset(admin: Admin, server: Server) -> None:
    own, shared = {"producer_byte_rate": 1024.0, "request_percentage": 12.5}, "consumer_byte_rate"
    everything: dict[str | None, dict[str, float]] = {"etl": own, None: {shared: 2048.0}}
    if server.name == "kfake":  # it lists no defaults
        del everything[None]
    admin.alter_client_quotas("etl", own)
    admin.alter_client_quotas(None, {shared: 2048})
    until(lambda: admin.describe_client_quotas() == everything)
    admin.alter_client_quotas("etl", unset=own)
    admin.alter_client_quotas(None, unset=[shared])
    until(lambda: admin.describe_client_quotas() == {})


def test_groups_are_described_moved_and_deleted(admin: Admin, server: Server) -> None:
    first, second = filled(admin, server, "watched")
    with read_by(server, "watchers", "watched"):
        group = admin.describe_groups(["watchers"])["watchers"]
        assert (group.state, group.type, group.lag) == ("Stable", "consumer", 0)
        assert set(group.members[0].partitions) == {first, second}
        for ask in (
            lambda: admin.delete_groups(["watchers"]),
            lambda: admin.reset_group_offsets("watchers", ToEarliest()),
            lambda: admin.delete_group_offsets("watchers", [first]),
        ):
            with pytest.raises(ApiError):
                ask()
    moves = admin.reset_group_offsets("watchers", ShiftBy(-4))
    assert [(each.before, each.offset) for each in moves] == [(10, 6), (10, 6)]
    admin.reset_group_offsets("watchers", ToTime(NOW_MS + 8), [second])
    assert admin.list_group_offsets("watchers") == {first: 6, second: 8}
    assert admin.describe_groups(["watchers"])["watchers"].lag == 6
    admin.delete_group_offsets("watchers", [second])
    assert admin.list_group_offsets("watchers") == {first: 6}
    assert "watchers" in {each.name for each in admin.list_groups()}
    admin.delete_groups(["watchers"])
    assert "watchers" not in {each.name for each in admin.list_groups()}
    with refused(Error.GROUP_ID_NOT_FOUND):
        admin.describe_groups(["watchers"])


def test_records_are_deleted_up_to_an_offset(admin: Admin, server: Server) -> None:
    first, second = filled(admin, server, "cut")
    assert admin.delete_records({first: 4, second: HIGH_WATERMARK}) == {first: 4, second: 10}
    starts = admin.list_offsets([first, second], EARLIEST_TIMESTAMP)
    assert starts == {first: 4, second: 10}
    with pytest.raises(ApiError, match="it has no offset 11"):
        admin.delete_records({first: 11})


def test_disks_and_the_cluster_are_described(admin: Admin, server: Server) -> None:
    partitions = set(filled(admin, server, "stored"))
    found = admin.describe_log_dirs()
    stored = {
        each.partition for disks in found.values() for disk in disks for each in disk.replicas
    }
    assert partitions <= stored
    view = admin.describe_cluster()
    assert (bool(view.id), view.controller in found) == (True, True)
    versions = admin.describe_versions()
    assert all(not isinstance(each, ApiError) and "Fetch" in each for each in versions.values())


@pytest.mark.parametrize("server", ["kafka-3.9", "kafka-4.1"], indirect=True)
def test_what_was_aborted_is_shown_only_if_it_is_asked_for(admin: Admin, server: Server) -> None:
    admin.create_topics([NewTopic("decided", 1, 1)])
    producer = TransactionalProducer(
        {"bootstrap.servers": server.address, "transactional.id": "t", "log_level": 0}
    )
    producer.init_transactions(WAIT_S)
    for value, end in (
        (b"kept", producer.commit_transaction),
        (b"not", producer.abort_transaction),
    ):
        producer.begin_transaction()
        producer.produce("decided", value, partition=0)
        producer.flush(WAIT_S)
        end(WAIT_S)

    def shown(*words: str) -> str:
        environment = {"KDIST_BROKER": server.address}
        words = ("consume", "decided", "--from-beginning", "--until-end", *words)
        return CliRunner().invoke(kdist, words, env=environment).stdout

    assert shown() == "kept\nnot\n"
    assert shown("--isolation", "read_committed") == "kept\n"
    shown("--isolation", "read_committed", "--group", "deciders")
    assert admin.describe_groups(["deciders"])["deciders"].lag == 0  # markers have offsets, too


def test_the_command_line_serves_there_too(admin: Admin, server: Server) -> None:
    def done(*words: str, text: str = "") -> str:
        environment = {"KDIST_BROKER": server.address}
        result = CliRunner().invoke(kdist, words, input=text, env=environment)
        assert result.exit_code == 0, result.output
        return result.stdout

    admin.create_topics([NewTopic("typed", 2, 1)])
    done("produce", "typed", text="a\nb\nc\n")
    assert sorted(done("consume", "typed", "--from-beginning", "--until-end").split()) == list(
        "abc"
    )
    described = json.loads(done("topics", "describe", "typed", "--json"))
    assert sum(each["end_offset"] for each in described["partitions"]) == 3
    read_by_lines = done("bench", "produce", "typed", "--records", "500", "--json")
    assert json.loads(read_by_lines)["records"] == 500
    assert json.loads(done("bench", "consume", "typed", "--json"))["records"] == 503
    assert json.loads(done("cluster", "describe", "--json"))["brokers"]
    assert json.loads(done("cluster", "health", "--json"))["is_well"]
    assert "typed" in done("cluster", "disks", "--replicas")
    assert "retention.ms" in done("configs", "describe", "topic", "typed")
