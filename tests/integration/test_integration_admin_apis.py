"""The admin APIs, asked by kafka-python's and librdkafka's admin clients of two real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka import admin as kp
from kafka import errors as kafka_errors
from kafka.protocol.consumer import OffsetForLeaderEpochRequest

from tests.integration.broker_clients import admin, consume, create, leaders, produce
from tests.integration.broker_processes import BrokerProcess, broker_processes, settled
from tests.integration.zookeeper_server import ZooKeeperHost

TIMEOUT_S = 20


@pytest.fixture(scope="module")
def brokers(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperHost
) -> Iterator[list[BrokerProcess]]:
    """Two brokers that tests share, each with topics of its own."""
    directory, connect = tmp_path_factory.mktemp("brokers"), f"{zookeeper.settings.address}/admin"
    with broker_processes(2, directory, connect, log_retention_hours="3") as both:
        yield both


@pytest.fixture
def broker(brokers: list[BrokerProcess]) -> BrokerProcess:
    return brokers[0]


@pytest.fixture
def python(broker: BrokerProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.address)
    yield client
    client.close()


# Settings


def topic_resource(name: str, *entries: ConfigEntry) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, name, incremental_configs=list(entries) or None)


def described(client: AdminClient, resource: ConfigResource) -> dict[str, Any]:
    found: dict[str, Any] = client.describe_configs([resource])[resource].result(TIMEOUT_S)
    return found


def changed(client: AdminClient, resource: ConfigResource) -> None:
    client.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def entry(name: str, operation: AlterConfigOpType, value: str | None = None) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


def test_librdkafka_describes_and_changes_a_topics_settings(broker: BrokerProcess) -> None:
    create(broker, "settings", segment_bytes="50000")
    client, plain = admin(broker), topic_resource("settings")
    found = described(client, plain)
    assert (found["segment.bytes"].value, found["segment.bytes"].source) == ("50000", 1)
    assert (found["retention.ms"].value, found["retention.ms"].source) == ("10800000", 4)
    assert found["cleanup.policy"].is_default
    assert "log.segment.bytes" in found["segment.bytes"].synonyms

    put = entry("retention.ms", AlterConfigOpType.SET, "77000")
    more = entry("cleanup.policy", AlterConfigOpType.APPEND, "compact")
    changed(client, topic_resource("settings", put, more))
    found = described(client, plain)
    assert found["retention.ms"].value == "77000"
    assert found["cleanup.policy"].value == "delete,compact"
    assert found["segment.bytes"].value == "50000"

    back = entry("retention.ms", AlterConfigOpType.DELETE)
    less = entry("cleanup.policy", AlterConfigOpType.SUBTRACT, "compact")
    changed(client, topic_resource("settings", back, less))
    assert described(client, plain)["retention.ms"].value == "10800000"
    assert described(client, plain)["cleanup.policy"].value == "delete"


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_librdkafka_replaces_all_settings_of_a_topic(broker: BrokerProcess) -> None:
    create(broker, "replaced", segment_bytes="50000")
    client = admin(broker)
    wanted = ConfigResource(ResourceType.TOPIC, "replaced", set_config={"retention.ms": "5000"})
    client.alter_configs([wanted])[wanted].result(TIMEOUT_S)
    found = described(client, topic_resource("replaced"))
    own = {name: each.value for name, each in found.items() if each.source == 1}
    assert own == {"retention.ms": "5000"}


def test_what_cannot_be_set_comes_back_with_its_sentence(broker: BrokerProcess) -> None:
    create(broker, "refused")
    client = admin(broker)
    soon = entry("retention.ms", AlterConfigOpType.SET, "soon")
    with pytest.raises(ck.KafkaException, match=r"retention\.ms is 'soon', but must be") as caught:
        changed(client, topic_resource("refused", soon))
    assert caught.value.args[0].code() == ck.KafkaError.INVALID_CONFIG
    with pytest.raises(ck.KafkaException, match="there is no topic nowhere"):
        described(client, topic_resource("nowhere"))


def test_a_change_is_in_force_on_the_leader_whichever_broker_was_asked(
    brokers: list[BrokerProcess],
) -> None:
    create(brokers[0], "forced", 2)
    tiny = entry("max.message.bytes", AlterConfigOpType.SET, "200")
    changed(admin(brokers[1]), topic_resource("forced", tiny))

    def is_refused() -> bool:
        failed: list[Any] = []
        producer = ck.Producer({"bootstrap.servers": brokers[0].address})
        for partition in range(2):
            producer.produce(
                "forced",
                b"x" * 500,
                partition=partition,
                on_delivery=lambda error, _: failed.append(error),
            )
        assert producer.flush(TIMEOUT_S) == 0
        return all(each and each.code() == ck.KafkaError.MSG_SIZE_TOO_LARGE for each in failed)

    settled(is_refused)


def test_kafka_python_describes_brokers_and_topics(python: KafkaAdminClient) -> None:
    python.create_topics({"python-settings": {"configs": {"retention.bytes": "9000"}}})
    topic = kp.ConfigResource(kp.ConfigResourceType.TOPIC, "python-settings")
    found = python.describe_configs([topic], include_synonyms=True)["topic"]["python-settings"]
    assert {name: each["value"] for name, each in found.items()} == {"retention.bytes": "9000"}
    synonyms = [each["name"] for each in found["retention.bytes"]["synonyms"]]
    assert synonyms == ["retention.bytes", "log.retention.bytes"]
    for number in (1, 2):
        one = kp.ConfigResource(kp.ConfigResourceType.BROKER, str(number))
        every = python.describe_configs([one], config_filter="all")["broker"][str(number)]
        assert every["broker.id"]["value"] == str(number)
        assert every["num.partitions"]["config_type"] == "INT"
        fixed = {name: every[name]["read_only"] for name in ("broker.id", "log.retention.ms")}
        assert fixed == {"broker.id": True, "log.retention.ms": False}


def test_kafka_python_changes_settings_and_tries_them_out(python: KafkaAdminClient) -> None:
    python.create_topics(["python-changes"])
    kind = kp.ConfigResourceType.TOPIC

    def alter(value: str, **options: Any) -> None:
        wanted = kp.ConfigResource(kind, "python-changes", {"retention.ms": value})
        python.alter_configs([wanted], **options)

    def value() -> Any:
        asked = kp.ConfigResource(kind, "python-changes")
        found = python.describe_configs([asked], config_filter="all")
        return found["topic"]["python-changes"]["retention.ms"]["value"]

    alter("66000", validate_only=True)
    assert value() == "10800000"
    for incremental, wanted in ((True, "66000"), (False, "67000")):
        alter(wanted, incremental=incremental)
        assert value() == wanted


# Records, directories, epochs


def test_records_are_deleted_up_to_an_offset_and_up_to_the_end(
    brokers: list[BrokerProcess], python: KafkaAdminClient
) -> None:
    create(brokers[0], "trimmed", 2)
    for partition in range(2):
        producer = ck.Producer({"bootstrap.servers": brokers[0].address})
        for number in range(10):
            producer.produce("trimmed", b"%d" % number, partition=partition)
        assert producer.flush(TIMEOUT_S) == 0
    first, second = (TopicPartition("trimmed", index) for index in range(2))
    python.delete_records({first: 4, second: -1})
    consumer = KafkaConsumer(bootstrap_servers=brokers[0].address)
    assert consumer.beginning_offsets([first, second]) == {first: 4, second: 10}
    consumer.close()

    client = admin(brokers[0])
    wanted = ck.TopicPartition("trimmed", 0, 7)
    result = client.delete_records([wanted])[wanted].result(TIMEOUT_S)
    assert result.low_watermark == 7
    assert sorted(consume(brokers[0], "trimmed", 3, "trimmed-group")) == [b"7", b"8", b"9"]
    beyond = ck.TopicPartition("trimmed", 0, 11)
    with pytest.raises(ck.KafkaException) as caught:
        client.delete_records([beyond])[beyond].result(TIMEOUT_S)
    assert caught.value.args[0].code() == ck.KafkaError.OFFSET_OUT_OF_RANGE


def test_deleted_records_stay_deleted_through_a_kill(brokers: list[BrokerProcess]) -> None:
    create(brokers[0], "killed", flush_messages="1")
    produce(brokers[0], "killed", [b"%d" % number for number in range(10)])
    client, wanted = admin(brokers[0]), ck.TopicPartition("killed", 0, 6)
    client.delete_records([wanted])[wanted].result(TIMEOUT_S)
    (leader,) = leaders(brokers[0], "killed")
    brokers[leader - 1].end()
    brokers[leader - 1].start()
    found = consume(brokers[0], "killed", 4, "killed-group")
    assert found == [b"6", b"7", b"8", b"9"]


def test_log_directories_say_what_each_replica_takes(
    brokers: list[BrokerProcess], python: KafkaAdminClient
) -> None:
    create(brokers[0], "measured", 2)
    produce(brokers[0], "measured", [b"x" * 10_000] * 20)
    found = {each["broker"]: each for each in python.describe_log_dirs(["measured"])}
    assert sorted(found) == [1, 2]
    taken = 0
    for broker in brokers:
        (directory,) = found[broker.id]["log_dirs"]
        assert directory["log_dir"] == str(broker.directory)
        (topic,) = directory["topics"]
        for each in topic["partitions"]:
            path = broker.directory / f"measured-{each['partition_index']}" / f"{0:020}.log"
            assert each["offset_lag"] == 0
            taken += each["partition_size"]
            if each["partition_size"]:  # an empty one's files may be made a second later
                assert each["partition_size"] <= path.stat().st_size
    assert taken > 200_000


def test_the_end_of_a_leader_epoch_is_the_logs_end(
    brokers: list[BrokerProcess], python: KafkaAdminClient
) -> None:
    create(brokers[0], "epochs")
    produce(brokers[0], "epochs", [b"1", b"2", b"3"])
    (leader,) = leaders(brokers[0], "epochs")
    asked = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[("epochs", [(0, -1, 0), (7, -1, 0)])]
    )
    answer = python._manager.run(python._manager.send, asked, leader)
    known, unknown = answer.topics[0].partitions
    assert (known.error_code, known.leader_epoch, known.end_offset) == (0, 0, 3)
    assert unknown.error_code == kafka_errors.UnknownTopicOrPartitionError.errno


# Groups


def test_groups_are_deleted_once_they_are_empty(
    broker: BrokerProcess, python: KafkaAdminClient
) -> None:
    create(broker, "grouped")
    produce(broker, "grouped", [b"x"] * 5)
    consume(broker, "grouped", 5, "doomed")
    consume(broker, "grouped", 5, "doomed-too")
    member = ck.Consumer({"bootstrap.servers": broker.address, "group.id": "busy"})
    member.subscribe(["grouped"])
    settled(lambda: member.poll(0.1) or member.assignment())
    client = admin(broker)
    futures = client.delete_consumer_groups(["doomed", "busy", "never-was"])
    assert futures["doomed"].result(TIMEOUT_S) is None
    for name, code in (
        ("busy", ck.KafkaError.NON_EMPTY_GROUP),
        ("never-was", ck.KafkaError.GROUP_ID_NOT_FOUND),
    ):
        with pytest.raises(ck.KafkaException) as caught:
            futures[name].result(TIMEOUT_S)
        assert caught.value.args[0].code() == code
    member.close()
    python.delete_groups(["doomed-too"])
    listed = {each.group_id for each in client.list_consumer_groups().result(TIMEOUT_S).valid}
    assert "busy" in listed
    assert not {"doomed", "doomed-too"} & listed


def test_single_offsets_of_a_group_are_forgotten(
    broker: BrokerProcess, python: KafkaAdminClient
) -> None:
    for topic in ("kept", "forgotten"):
        create(broker, topic)
        produce(broker, topic, [b"x"] * 5)
        consume(broker, topic, 5, "forgetful")
    kept, forgotten = TopicPartition("kept", 0), TopicPartition("forgotten", 0)
    results = python.delete_group_offsets("forgetful", [forgotten])
    assert results == {forgotten: kafka_errors.NoError}
    assert set(python.list_group_offsets("forgetful")["forgetful"]) == {kept}
    with pytest.raises(kafka_errors.GroupIdNotFoundError):
        python.delete_group_offsets("never-was", [kept])


# The cluster


def test_both_clients_describe_the_cluster(
    brokers: list[BrokerProcess], python: KafkaAdminClient
) -> None:
    said = python.describe_cluster()
    assert sorted(each["broker_id"] for each in said["brokers"]) == [1, 2]
    client = admin(brokers[1])
    found = client.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)
    assert sorted(node.port for node in found.nodes) == sorted(each.port for each in brokers)
    assert found.cluster_id == said["cluster_id"]
    assert found.controller.id == said["controller_id"]
    assert ck.admin.AclOperation.ALTER_CONFIGS in found.authorized_operations


def test_a_hundred_topics_are_created_and_deleted_at_once(broker: BrokerProcess) -> None:
    client = admin(broker)
    names = [f"many-{number}" for number in range(100)]
    made = client.create_topics([NewTopic(name, 4, 1) for name in names], operation_timeout=20)
    for name in names:
        made[name].result(TIMEOUT_S)
    known = client.list_topics(timeout=10).topics
    assert all(len(known[name].partitions) == 4 for name in names)
    gone = client.delete_topics(names, operation_timeout=20)
    for name in names:
        gone[name].result(TIMEOUT_S)
    assert not set(names) & set(client.list_topics(timeout=10).topics)
