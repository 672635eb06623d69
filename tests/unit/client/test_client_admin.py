"""The admin client against kdist's brokers: both fronts, every operation, and every refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdist.client.admin.clients import Admin, AsyncAdmin
from kdist.client.admin.groups import DEAD
from kdist.client.admin.outcomes import SomeFailed
from kdist.client.admin.records import HIGH_WATERMARK
from kdist.client.admin.resets import ShiftBy, ToEarliest, ToOffset, ToTime
from kdist.client.admin.topics import NewTopic
from kdist.client.consumer.consumer import Consumer
from kdist.client.producer.sync import Producer
from kdist.errors import ApiError, Error, UserError
from kdist.model import TopicPartition
from kdist.protocol.list_offsets import EARLIEST_TIMESTAMP
from kdist.runtime.clock import SystemClock
from tests.refusals import refused
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster

NOW_MS = SystemClock().now_ms()  # retention deletes what is older than a week


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with cli_cluster(tmp_path_factory.mktemp("cluster")) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def admin(running: CliCluster) -> Iterator[Admin]:
    with Admin(running.address, default_api_timeout_ms=5_000) as client:
        yield client


def filled(admin: Admin, running: CliCluster, topic: str) -> list[TopicPartition]:
    """A topic of two partitions with ten records in each."""
    admin.create_topics([NewTopic(topic, 2)])
    partitions = [TopicPartition(topic, number) for number in range(2)]
    with Producer(bootstrap_servers=running.address) as producer:
        for _, number in partitions:
            for value in range(10):
                producer.send(topic, b"%d" % value, partition=number, timestamp=NOW_MS + value)
    return partitions


# Topics


def test_topics_are_created_as_asked_and_described(admin: Admin) -> None:
    placed = NewTopic("placed", replicas=[[2], [1], [2]])
    made = admin.create_topics(
        [placed, NewTopic("made", 3, 1, {"retention.ms": "1000000"}), "bare"]
    )
    assert [(each.partitions, each.replication_factor) for each in made.values()] == [
        (3, 1),
        (3, 1),
        (1, 1),
    ]
    found = admin.describe_topics(["placed", "made"])
    assert [each.replicas for each in found["placed"].partitions] == [(2,), (1,), (2,)]
    assert found["made"].id == made["made"].id
    assert {"placed", "made", "bare"} <= {topic.name for topic in admin.list_topics()}


def test_leaders_that_are_as_they_should_be_need_no_election(admin: Admin) -> None:
    admin.create_topics([NewTopic("led", 2)])
    partitions = [TopicPartition("led", number) for number in range(2)]
    assert admin.elect_leaders(partitions) == dict.fromkeys(partitions, False)
    assert admin.elect_leaders(partitions[:1], is_unclean=True) == {partitions[0]: False}
    assert admin.elect_leaders() == {}
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION):
        admin.elect_leaders([TopicPartition("led", 2)])


def test_of_many_topics_those_that_can_be_are_created(admin: Admin) -> None:
    admin.create_topic("there")
    with pytest.raises(SomeFailed) as caught:
        admin.create_topics(["there", "new", NewTopic("bad name")])
    failed = {name: each.error for name, each in caught.value.failed.items()}
    assert failed == {
        "there": Error.TOPIC_ALREADY_EXISTS,
        "bad name": Error.INVALID_TOPIC_EXCEPTION,
    }
    assert list(caught.value.done) == ["new"]
    assert "new" in admin.describe_topics(["new"])


def test_a_creation_can_be_validated_only(admin: Admin) -> None:
    admin.create_topics(["never"], validate_only=True)
    with refused(Error.INVALID_CONFIG):
        admin.create_topics([NewTopic("never", settings={"retention": "1"})], validate_only=True)
    with pytest.raises(SomeFailed, match="there is no topic never"):
        admin.describe_topics(["never"])


def test_partitions_are_added_and_topics_deleted(admin: Admin) -> None:
    admin.create_topics(["grows", "goes"])
    admin.create_partitions({"grows": 4})
    assert len(admin.describe_topics(["grows"])["grows"].partitions) == 4
    with refused(Error.INVALID_PARTITIONS):
        admin.create_partitions({"grows": 2})
    admin.delete_topics(["goes"])
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION):
        admin.delete_topics(["goes"])


# Settings


def test_a_name_in_place_of_a_list_is_not_split_into_letters(admin: Admin) -> None:
    for asked in (admin.create_topics, admin.delete_topics, admin.describe_topics):
        with pytest.raises(UserError, match=r"must be a list, each a.* str, not 'abc'"):
            asked("abc")
    with pytest.raises(UserError, match="unset must be a list"):
        admin.incremental_alter_topic_configs("abc", unset="retention.ms")
    with pytest.raises(UserError, match=r"settings\['retention.ms'\] must be a str"):
        admin.create_topic("ages", settings={"retention.ms": 5})  # type: ignore[dict-item]
    assert not {"a", "b", "c", "ages"} & {topic.name for topic in admin.list_topics()}


def test_a_topics_settings_are_changed_one_by_one(admin: Admin) -> None:
    admin.create_topic("set", settings={"retention.ms": "1000000"})
    admin.incremental_alter_topic_configs("set", {"segment.bytes": "2000000"})
    found = admin.describe_topic_configs(["set"])["set"]
    assert (found["retention.ms"].value, found["retention.ms"].source) == ("1000000", "topic")
    assert found["segment.bytes"].value == "2000000"
    assert found["cleanup.policy"].is_default
    admin.incremental_alter_topic_configs("set", unset=["retention.ms"])
    assert admin.describe_topic_configs(["set"])["set"]["retention.ms"].is_default


def test_a_change_can_be_validated_only(admin: Admin) -> None:
    admin.create_topic("tried")
    admin.incremental_alter_topic_configs("tried", {"segment.bytes": "2000000"}, validate_only=True)
    assert admin.describe_topic_configs(["tried"])["tried"]["segment.bytes"].is_default
    with refused(Error.INVALID_CONFIG):
        admin.incremental_alter_topic_configs(
            "tried", {"segment.bytes": "many"}, validate_only=True
        )


def test_settings_of_a_missing_topic_are_an_error(admin: Admin) -> None:
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION):
        admin.describe_topic_configs(["nowhere"])
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION):
        admin.incremental_alter_topic_configs("nowhere", {"segment.bytes": "2000000"})


def test_each_broker_describes_its_own_settings(admin: Admin) -> None:
    found = admin.describe_broker_configs(with_docs=True)
    assert {id_: each["broker.id"].value for id_, each in found.items()} == {1: "1", 2: "2"}
    assert found[1]["log.dir"].source == "file"
    assert all(each.doc for each in found[2].values())
    assert list(admin.describe_broker_configs([2])) == [2]


def test_a_brokers_settings_are_changed_by_that_broker(admin: Admin) -> None:
    admin.incremental_alter_broker_configs(None, {"log.roll.ms": "9000000"})
    for broker in (1, 2):
        admin.incremental_alter_broker_configs(broker, {"log.roll.ms": f"800000{broker}"})
    shared = admin.describe_default_broker_configs(with_docs=True)["log.roll.ms"]
    assert (shared.value, shared.source, shared.doc != "") == ("9000000", "all brokers", True)
    found = admin.describe_broker_configs()
    own = {broker: settings["log.roll.ms"] for broker, settings in found.items()}
    assert {id_: each[1:3] for id_, each in own.items()} == {
        1: ("8000001", "broker"),
        2: ("8000002", "broker"),
    }
    with refused(Error.INVALID_REQUEST):
        admin.incremental_alter_broker_configs(1, {"broker.id": "2"}, ["log.roll.ms"])
    for asked in (1, 2, None):
        admin.incremental_alter_broker_configs(asked, unset=["log.roll.ms"])
    assert admin.describe_default_broker_configs() == {}
    with refused(Error.INVALID_CONFIG):
        admin.incremental_alter_broker_configs(None, {"log.roll.ms": "soon"}, validate_only=True)


def test_a_missing_broker_is_an_error(admin: Admin) -> None:
    with pytest.raises(UserError, match="there is no broker 9: the cluster has 1, 2"):
        admin.describe_broker_configs([9])


# Groups and their offsets


def test_a_group_is_described_with_members_and_lag(admin: Admin, running: CliCluster) -> None:
    first, second = filled(admin, running, "watched")
    with Consumer(running.address, group_id="watchers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["watched"])
        seen = 0
        while seen < 20:
            seen += len(consumer.poll(5))
        consumer.commit({first: 4})
        group = admin.describe_groups(["watchers"])["watchers"]
        (member,) = group.members
        assert (group.state, set(member.partitions)) == ("Stable", {first, second})
        assert [(each.committed, each.end, each.lag) for each in group.progress] == [
            (4, 10, 6),
            (None, 10, None),
        ]
        assert group.lag == 6
        with refused(Error.NON_EMPTY_GROUP):
            admin.delete_groups(["watchers"])
        with refused(Error.UNKNOWN_MEMBER_ID):
            admin.reset_group_offsets("watchers", ToEarliest())
    listed = {each.name: each for each in admin.list_groups()}["watchers"]
    assert (listed.state, listed.coordinator) == ("Empty", group.coordinator)


def test_records_that_were_deleted_are_in_nobodys_lag(admin: Admin, running: CliCluster) -> None:
    first, second = filled(admin, running, "emptied")
    admin.alter_group_offsets("late", {first: 2, second: 8})
    with Consumer(running.address, auto_offset_reset="none") as consumer:
        consumer.assign([first])
        consumer.seek(first, 4)
        assert consumer.poll(5)
        admin.delete_records({first: 7, second: 7})
        group = admin.describe_groups(["late"])["late"]
        assert [(each.start, each.end, each.lag) for each in group.progress] == [
            (7, 10, 3),
            (7, 10, 2),
        ]
        admin.delete_records({first: 10})
        assert admin.describe_groups(["late"])["late"].lag == 2
        consumer.seek(first, 10)
        with Producer(bootstrap_servers=running.address) as producer:
            producer.send(first.topic, b"10", partition=first.partition)
        assert consumer.poll(5)  # with it the broker says where the log starts
        consumer.seek(first, 4)
        assert consumer.lag(first) == 1


def test_a_group_is_reset_as_planned(admin: Admin, running: CliCluster) -> None:
    first, second = filled(admin, running, "moved")
    admin.alter_group_offsets("movers", {first: 5, second: 5})
    plan = admin.plan_group_offsets_reset("movers", ShiftBy(-2))
    assert [(each.before, each.offset, each.lag) for each in plan] == [(5, 3, 7), (5, 3, 7)]
    assert admin.list_group_offsets("movers") == {first: 5, second: 5}
    assert admin.reset_group_offsets("movers", ShiftBy(-2)) == plan
    assert admin.list_group_offsets("movers") == {first: 3, second: 3}
    admin.reset_group_offsets("movers", ToTime(NOW_MS + 8), [second])
    assert admin.list_group_offsets("movers") == {first: 3, second: 8}


def test_an_invalid_offset_is_not_committed(admin: Admin, running: CliCluster) -> None:
    first, second = filled(admin, running, "placeless")
    with pytest.raises(UserError, match="-1 is not an offset for placeless-1"):
        admin.alter_group_offsets("lost", {first: 5, second: -1})
    for number in (2, -1):
        with refused(Error.UNKNOWN_TOPIC_OR_PARTITION, f"partition {number}"):
            admin.alter_group_offsets("lost", {first: 5, TopicPartition("placeless", number): 5})
    with pytest.raises(SomeFailed, match="no topic placeles: did you mean placeless"):
        admin.alter_group_offsets("lost", {TopicPartition("placeles", 0): 5})
    with pytest.raises(UserError, match="-1 is no time"):
        admin.reset_group_offsets("lost", ToTime(-1), [first])
    assert admin.list_group_offsets("lost") == {}


def test_a_group_can_be_given_offsets_before_it_has_read(admin: Admin, running: CliCluster) -> None:
    first, second = filled(admin, running, "fresh")
    admin.reset_group_offsets("beginners", ToOffset(7), [first, second])
    assert admin.list_group_offsets("beginners") == {first: 7, second: 7}
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION):
        admin.reset_group_offsets("beginners", ToOffset(7), [TopicPartition("fresh", 2)])


def test_a_groups_offsets_and_the_group_are_deleted(admin: Admin, running: CliCluster) -> None:
    first, second = filled(admin, running, "left")
    admin.alter_group_offsets("leavers", {first: 5, second: 5})
    admin.delete_group_offsets("leavers", [second])
    assert admin.list_group_offsets("leavers") == {first: 5}
    admin.delete_groups(["leavers"])
    assert admin.list_group_offsets("leavers") == {}
    with pytest.raises(SomeFailed, match="there is no group leavers"):
        admin.delete_groups(["leavers"])


def test_an_unknown_group_among_several_is_named_with_the_nearest(
    admin: Admin, running: CliCluster
) -> None:
    first, _ = filled(admin, running, "near")
    admin.alter_group_offsets("audit", {first: 1})
    with pytest.raises(SomeFailed, match="there is no group adit: did you mean audit") as caught:
        admin.describe_groups(["audit", "adit"])
    assert caught.value.done["audit"].progress[0].lag == 9
    assert DEAD not in {each.state for each in admin.list_groups()}


# Records, disks, the cluster


def test_records_are_deleted_up_to_an_offset(admin: Admin, running: CliCluster) -> None:
    first, second = filled(admin, running, "cut")
    assert admin.delete_records({first: 4, second: HIGH_WATERMARK}) == {first: 4, second: 10}
    assert admin.list_offsets([first, second], EARLIEST_TIMESTAMP) == {first: 4, second: 10}
    assert admin.list_offsets([first]) == {first: 10}
    with refused(Error.OFFSET_OUT_OF_RANGE, "cut-0"):
        admin.delete_records({first: 11})
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION, "partition 2"):
        admin.delete_records({TopicPartition("cut", 2): 1})


def test_log_directories_are_described_with_their_replicas(
    admin: Admin, running: CliCluster
) -> None:
    partitions = filled(admin, running, "stored")
    found = admin.describe_log_dirs()
    replicas = {
        each.partition: each
        for directories in found.values()
        for directory in directories
        for each in directory.replicas
    }
    assert all(replicas[each].size_bytes > 100 for each in partitions)
    ((directory,),) = admin.describe_log_dirs([2]).values()
    assert directory.error is None
    assert directory.path.endswith("d02")
    assert directory.total_bytes is not None
    assert directory.size_bytes == sum(each.size_bytes for each in directory.replicas)


def test_the_cluster_is_described(admin: Admin, running: CliCluster) -> None:
    view = admin.describe_cluster()
    assert [each.id for each in view.brokers] == [1, 2]
    assert view.controller in (1, 2)
    assert view.id
    versions = admin.describe_versions()
    assert versions[1] == versions[2]
    assert not isinstance(versions[1], ApiError)
    assert versions[1]["Metadata"].newest == 12


def test_a_broker_that_times_out_has_its_error_in_its_place(admin: Admin) -> None:
    found = admin.describe_versions(patience_s=0)
    assert [str(each) for each in found.values()] == [
        f"REQUEST_TIMED_OUT: broker {broker} did not answer within 0 s" for broker in (1, 2)
    ]


def test_the_new_controller_is_asked_once_the_old_one_is_gone(tmp_path: Path) -> None:
    with cli_cluster(tmp_path) as running:
        both = ",".join(f"127.0.0.1:{broker.port}" for broker in running.brokers)
        with Admin(both) as admin:
            first = admin.describe_cluster().controller
            assert first is not None
            running.stop_broker(first)
            assert admin.create_topic("afterwards").partitions == 1
            assert admin.describe_cluster().controller == 3 - first


# The fronts


def test_both_fronts_offer_the_same() -> None:
    plumbing = {"start", "cluster", "run", "close"}
    blocking, awaiting = (
        {name for name in vars(front) if not name.startswith("_")} for front in (Admin, AsyncAdmin)
    )
    assert blocking - plumbing == awaiting - plumbing
    assert Admin.delete_records.__doc__ == AsyncAdmin.delete_records.__doc__


def test_the_asyncio_front_does_the_same(running: CliCluster) -> None:
    async def work() -> list[str]:
        async with AsyncAdmin([running.address]) as admin:
            await asyncio.gather(*(admin.create_topic(f"awaited-{n}") for n in range(3)))
            return [topic.name for topic in await admin.list_topics()]

    assert {"awaited-0", "awaited-1", "awaited-2"} <= set(asyncio.run(work()))


def test_a_closed_client_refuses_calls(running: CliCluster) -> None:
    admin = Admin(running.address)
    admin.close()
    admin.close()
    with pytest.raises(UserError, match="closed"):
        admin.list_topics()
    with pytest.raises(UserError, match="not open"):
        _ = AsyncAdmin(running.address).cluster


def test_a_wrong_address_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="'nowhere' is not a broker's address"):
        Admin("nowhere")
    with pytest.raises(UserError, match="say where the brokers are"):
        Admin()
    with Admin("127.0.0.1:1") as admin, pytest.raises(UserError, match="no broker answers at"):
        admin.describe_cluster()
