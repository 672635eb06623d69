"""docs/reference/classes.md: `Admin`, values, errors; and that every sentence is tried."""

from __future__ import annotations

import ast
import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kdist
from kdist import (
    Admin,
    ApiError,
    Consumer,
    ConsumerClosed,
    Error,
    NewTopic,
    NoOffset,
    OffsetAndTimestamp,
    OffsetRange,
    Producer,
    QuotaOwner,
    SomeFailed,
    UserError,
    WakenUp,
)
from kdist.client.admin.records import HIGH_WATERMARK
from kdist.client.cluster import Cluster
from kdist.errors import DETAIL_CHARS_MAX
from kdist.protocol.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tests.refusals import refused
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster
from tests.unit.client.classes_page import (
    ELSEWHERE,
    ROOT,
    SENTENCES,
    place,
    says,
    taken,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    path = tmp_path_factory.mktemp("classes")
    with cli_cluster(path, settings={"scram.alter.over.clear.enable": "true"}) as running:
        yield running


@pytest.fixture
def admin(cluster: CliCluster) -> Iterator[Admin]:
    with Admin(cluster.address) as client:
        yield client


def test_topics_are_administered(cluster: CliCluster, admin: Admin) -> None:
    says("Inspects and changes a cluster.", "Any thread may call it; each call blocks until it")
    says("It runs an event loop in a background thread", "Close all connections and end the t")
    other = Admin(cluster.address)
    other.close()
    other.close()
    with pytest.raises(UserError):
        other.list_topics()
    with pytest.raises(UserError):
        Admin(cluster.address, retry_ms=5)  # type: ignore[call-arg]
    says("Create topics; a plain name takes all defaults.", "`validate_only` checks without cre")
    says("A topic to create; None means the broker's default.", "`replicas` places the partiti")
    admin.create_topics(["checked"], validate_only=True)
    placed = NewTopic("placed", replicas=((2,), (1,)))
    made = admin.create_topics(["plain", placed])
    assert (made["plain"].partitions, made["placed"].partitions) == (1, 2)
    says("Create one topic.", "Every topic, internal ones included, sorted by name.")
    admin.create_topic("configured", 2, settings={"retention.ms": "1000"})
    names = [topic.name for topic in admin.list_topics()]
    assert names == sorted(names)
    assert {"plain", "placed", "configured"} <= {*names}
    assert "checked" not in names
    says("Topics by name; UNKNOWN_TOPIC_OR_PARTITION, with the nearest name")
    topic = admin.describe_topics(["placed"])["placed"]
    assert [each.replicas for each in topic.partitions] == [(2,), (1,)]
    with pytest.raises(ApiError, match="did you mean placed"):
        admin.describe_topics(["plaecd"])
    says("Add partitions up to the given total", "`validate_only` checks without adding.")
    says("Existing records stay where they are")
    with Producer(cluster.address) as producer:
        producer.send("plain", b"stays")
    admin.create_partitions({"plain": 3}, validate_only=True)
    assert len(admin.describe_topics(["plain"])["plain"].partitions) == 1
    admin.create_partitions({"plain": 3})
    assert len(admin.describe_topics(["plain"])["plain"].partitions) == 3
    assert admin.list_offsets([place("plain")]) == {place("plain"): 1}
    says("Delete topics with all their records.")
    admin.delete_topics(["placed"])
    assert "placed" not in [each.name for each in admin.list_topics()]


def test_a_missing_topic_is_not_named_to_a_broker(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    metadata = Cluster.metadata

    async def watched(cluster: Cluster, topics: Any = ()) -> Any:
        asked.append(topics)
        return await metadata(cluster, topics)

    monkeypatch.setattr(Cluster, "metadata", watched)
    says("Requests the metadata of all topics")
    with pytest.raises(ApiError):
        admin.describe_topics(["never"])
    assert asked == [None]


def test_settings_are_administered(cluster: CliCluster, admin: Admin) -> None:
    admin.create_topic("set", settings={"retention.ms": "1000"})
    says("All settings in force for each topic", "Set some of a topic's settings, and unset othe")
    says("An unset one falls back to the brokers' value.", "`validate_only` checks without chang")

    def retention() -> str | None:
        return admin.describe_topic_configs(["set"])["set"]["retention.ms"].value

    assert retention() == "1000"
    admin.incremental_alter_topic_configs("set", {"retention.ms": "5"}, validate_only=True)
    with pytest.raises(ApiError):
        admin.incremental_alter_topic_configs("set", {"retention.ms": "5", "segment.bytes": "x"})
    assert retention() == "1000"
    admin.incremental_alter_topic_configs("set", {"segment.bytes": "999999"}, ["retention.ms"])
    assert retention() != "1000"
    says("All settings in force on each broker", "The dynamic settings shared by all brokers")
    says("They are in force on each broker that has no", "Change dynamic settings of a running")
    says("All or none of the changes are made.")
    assert admin.describe_broker_configs().keys() == {1, 2}
    admin.incremental_alter_broker_configs(None, {"max.connections": "1234"})
    assert admin.describe_default_broker_configs()["max.connections"].value == "1234"
    admin.incremental_alter_broker_configs(2, {"max.connections": "4321"})
    found = admin.describe_broker_configs([1, 2])
    assert [found[each]["max.connections"].value for each in (1, 2)] == ["1234", "4321"]
    wrong = {"max.connections": "x", "log.retention.ms": "5000"}
    with pytest.raises(ApiError):
        admin.incremental_alter_broker_configs(2, wrong)
    assert (
        found[2]["log.retention.ms"] == (admin.describe_broker_configs([2])[2]["log.retention.ms"])
    )
    says("INVALID_REQUEST for a setting that only takes effect")
    with refused(Error.INVALID_REQUEST):
        admin.incremental_alter_broker_configs(2, {"log.dir": "/elsewhere"})
    for broker in (None, 2):
        admin.incremental_alter_broker_configs(broker, unset=["max.connections"])


def test_quotas_of_clients(admin: Admin) -> None:
    says("The quotas of client ids alone, by client id and name; the default's under None.")
    says("As `alter_quotas`, of a client id alone, or with None of all without their own.")
    says("Either all of them are changed, at once, or none.")
    admin.alter_client_quotas("etl", {"producer_byte_rate": 1000, "request_percentage": 12.5})
    admin.alter_client_quotas(None, {"consumer_byte_rate": 2000})
    admin.alter_client_quotas("etl", {"consumer_byte_rate": 5}, validate_only=True)
    with pytest.raises(ApiError, match="must be above 0"):
        admin.alter_client_quotas("etl", {"consumer_byte_rate": 0, "producer_byte_rate": 5})
    own = {"producer_byte_rate": 1000.0, "request_percentage": 12.5}
    assert admin.describe_client_quotas() == {"etl": own, None: {"consumer_byte_rate": 2000.0}}
    admin.alter_client_quotas("etl", unset=own)
    admin.alter_client_quotas(None, unset=["consumer_byte_rate"])
    assert admin.describe_client_quotas() == {}


def test_quotas_of_users(admin: Admin) -> None:
    says("All quotas that are set, by owner and name.", "Set some quotas, and unset others.")
    says("Whose quotas: a user's, a client id's, or those of a user's clients with that id.")
    says("None is no part of it.", '"<default>" stands for each that has none of its own.')
    alice, all_of_alice = QuotaOwner("alice"), QuotaOwner("alice", "<default>")
    admin.alter_quotas(alice, {"producer_byte_rate": 1000})
    admin.alter_quotas(all_of_alice, {"request_percentage": 12.5})
    assert admin.describe_client_quotas() == {}
    assert admin.describe_quotas() == {
        alice: {"producer_byte_rate": 1000.0},
        all_of_alice: {"request_percentage": 12.5},
    }
    admin.alter_quotas(alice, unset=["producer_byte_rate"])
    admin.alter_quotas(all_of_alice, unset=["request_percentage"])
    assert admin.describe_quotas() == {}


def test_scram_credentials_of_users(admin: Admin) -> None:
    says("Set users' passwords for a mechanism; users succeed and fail one by one.")
    sha_256 = "SCRAM-SHA-256"
    admin.upsert_user_scram_credentials({"ann": "secret", "ben": "secret"}, sha_256, 5000)
    with pytest.raises(UserError, match="4095 iterations are not allowed: 4096 to 16384 are"):
        admin.upsert_user_scram_credentials({"ann": "secret"}, iterations=4095)
    with pytest.raises(UserError, match="not a SCRAM mechanism"):
        admin.upsert_user_scram_credentials({"ann": "secret"}, "PLAIN")
    with pytest.raises(UserError, match="the password of user ann is empty"):
        admin.upsert_user_scram_credentials({"ann": ""})
    says("The iterations of each credential, by user and mechanism; without `names` of all users.")
    ann, ben = {"ann": {sha_256: 5000}}, {"ben": {sha_256: 5000}}
    assert admin.describe_user_scram_credentials() == ann | ben
    assert admin.describe_user_scram_credentials(["ben"]) == ben
    says("RESOURCE_NOT_FOUND for a name that has no credential.")
    with refused(Error.RESOURCE_NOT_FOUND, "nobody"):
        admin.describe_user_scram_credentials(["ben", "nobody"])
    says("Delete users' credentials for a mechanism; users succeed and fail one by one.")
    says("Brokers of kdist close the connections that were opened with them.")  # its gate's test
    with refused(Error.RESOURCE_NOT_FOUND, "nobody"):
        admin.delete_user_scram_credentials(["ann", "nobody"], sha_256)
    assert admin.describe_user_scram_credentials() == ben
    admin.delete_user_scram_credentials(["ben"], sha_256)
    assert admin.describe_user_scram_credentials() == {}


def test_partitions_move_to_other_brokers(cluster: CliCluster, admin: Admin) -> None:
    says("Begin to move partitions to these brokers, the preferred leader first; None cancels")
    says("It returns once the moves have begun.", "`SomeFailed` with those that could not: INVAL")
    says("The moves under way, of these partitions or of all.")
    admin.create_topic("moved", 1)
    only = place("moved")
    (before,) = admin.describe_topics(["moved"])["moved"].partitions[0].replicas
    for target, error in (
        ({only: [9]}, "INVALID_REPLICA_ASSIGNMENT"),
        ({place("moved", 7): [before]}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({only: None}, "NO_REASSIGNMENT_IN_PROGRESS"),
    ):
        with pytest.raises(SomeFailed, match=error):
            admin.alter_partition_reassignments(target)
    admin.alter_partition_reassignments({only: [3 - before]})
    cluster.until(lambda: not admin.list_partition_reassignments([only]))
    assert admin.describe_topics(["moved"])["moved"].partitions[0].replicas == (3 - before,)


def test_groups_are_administered(cluster: CliCluster, admin: Admin) -> None:
    one, two = place("ruled"), place("ruled", 1)
    admin.create_topic("ruled", 2, settings={"retention.ms": "-1"})
    with Producer(cluster.address) as producer:
        for number in range(4):
            producer.send("ruled", b"v", partition=0, timestamp=100 + number)
    says("Set the committed offsets of a group without members", "A group's committed offsets by")
    says("If a partition does not exist, raises UNKNOWN")
    assert admin.list_group_offsets("ruler") == {}
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION):
        admin.alter_group_offsets("ruler", {one: 1, place("ruled", 7): 1})
    assert admin.list_group_offsets("ruler") == {}
    admin.alter_group_offsets("ruler", {one: 1}, metadata="by hand")
    assert admin.list_group_offsets("ruler") == {one: 1}
    says("How a reset would move a group's offsets", "Changes nothing.", "`partitions` may incl")
    says("The first offset of each partition.", "The end of each partition: only records that")
    says("The same offset in each partition.", "So many offsets forward; backward if negative.")
    says("The first record at or after a time, in ms since the epoch")
    says("Move a group's offsets as `plan_group_offsets_reset` says")
    for target, offset in (
        (kdist.ToEarliest(), 0),
        (kdist.ToLatest(), 4),
        (kdist.ToOffset(2), 2),
        (kdist.ShiftBy(1), 2),
        (kdist.ShiftBy(-1), 0),
        (kdist.ToTime(103), 3),
        (kdist.ToTime(1_000), 4),
    ):
        (move,) = admin.plan_group_offsets_reset("ruler", target)
        assert (move.partition, move.offset) == (one, offset)
    assert admin.list_group_offsets("ruler") == {one: 1}
    planned = admin.plan_group_offsets_reset("ruler", kdist.ToEarliest(), [one, two])
    assert {move.partition for move in planned} == {one, two}
    assert admin.reset_group_offsets("ruler", kdist.ToEarliest(), [one, two]) == planned
    assert admin.list_group_offsets("ruler") == {one: 0, two: 0}
    says("Delete a group's committed offsets for these partitions.")
    admin.delete_group_offsets("ruler", [two])
    assert admin.list_group_offsets("ruler") == {one: 0}
    says("Every group, sorted by name", "Errors: GROUP_ID_NOT_FOUND, which suggests the nearest")
    names = [group.name for group in admin.list_groups()]
    assert names == sorted(names)
    assert "ruler" in names
    with pytest.raises(ApiError, match="did you mean ruler"):
        admin.describe_groups(["rulr"])
    admin.delete_groups(["ruler"])
    assert "ruler" not in [group.name for group in admin.list_groups()]


def test_records_are_administered(cluster: CliCluster, admin: Admin) -> None:
    one = place("trimmed")
    admin.create_topic("trimmed", settings={"retention.ms": "-1"})
    with Producer(cluster.address) as producer:
        for number in range(4):
            producer.send("trimmed", b"v", timestamp=100 + number)
    says("The first offset at or after a time (ms), by default", "`EARLIEST_TIMESTAMP` and `LAT")
    assert admin.list_offsets([one], 102) == {one: 2}
    assert admin.list_offsets([one], 900) == {one: -1}
    assert admin.list_offsets([one], LATEST_TIMESTAMP) == admin.list_offsets([one]) == {one: 4}
    says("Delete the records before these offsets", "`HIGH_WATERMARK` as an offset deletes all")
    assert admin.delete_records({one: 1}) == {one: 1}
    assert admin.list_offsets([one], EARLIEST_TIMESTAMP) == {one: 1}
    says("Records that were deleted from before the log's start do not count.")
    with Consumer(cluster.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([one])
        assert (taken(consumer, 3)[0].offset, consumer.lag(one)) == (1, 0)
    assert admin.delete_records({one: HIGH_WATERMARK}) == {one: 4}
    says("The log directories of each broker", "The cluster's id, controller and brokers.")
    says("The API versions that each broker supports")
    assert admin.describe_log_dirs().keys() == admin.describe_versions().keys() == {1, 2}
    described = admin.describe_cluster()
    assert {broker.id for broker in described.brokers} == {1, 2}


def test_values_and_errors_are_as_described() -> None:
    says("One partition of one topic; sorts by topic, then number.")
    pairs = [place("b"), place("a", 2), place("a", 1)]
    assert sorted(pairs) == [place("a", 1), place("a", 2), place("b")]
    says("Offsets from `start` up to, not including, `end`.", "A record found by its time: its")
    assert OffsetRange(2, 5).end - OffsetRange(2, 5).start == 3
    assert OffsetAndTimestamp(1)[1:] == (-1, -1)
    says("A row of the error table", "`detail` is the text without the row's name")
    refused = ApiError(Error.INVALID_REQUEST, "why")
    assert (refused.error, refused.detail) == (Error.INVALID_REQUEST, "why")
    assert str(refused) == "INVALID_REQUEST: why"
    says("Some items failed: `failed` has their errors", "`error` is that of the first in `fai")
    some = SomeFailed(
        {"a": refused, "b": ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION, "x")}, {"c": 1}
    )
    assert (some.error, some.failed["a"], some.done) == (Error.INVALID_REQUEST, refused, {"c": 1})
    assert "why" in str(some)
    assert "b" in str(some)
    says("It is cut to `DETAIL_CHARS_MAX`", "`Error` is the [table of the protocol's errors]")
    assert len(ApiError(Error.INVALID_REQUEST, "x" * 100_000).detail) == DETAIL_CHARS_MAX
    table = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    assert all(row.name in table for row in Error)
    says("The base of every exception that kdist raises", "Its text is one sentence", "It can be p")
    for name in kdist.__all__:
        cls = getattr(kdist, name)
        if isinstance(cls, type) and issubclass(cls, Exception):
            assert issubclass(cls, kdist.KdistError)
    for error in (
        ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION, "t-0: why"),
        NoOffset(place("t")),
        SomeFailed({"a": ApiError(Error.INVALID_REQUEST, "why")}, {"b": 1}),
        WakenUp("woken"),
        ConsumerClosed(),
    ):
        for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert (type(other), str(other)) == (type(error), str(error))


def test_every_sentence_is_tried() -> None:
    calls = [
        node
        for page in Path(__file__).parent.glob("test_client_classes_page*.py")
        for node in ast.walk(ast.parse(page.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "says"
    ]
    said = [ast.literal_eval(each) for node in calls for each in node.args]
    tried = (*said, *ELSEWHERE)
    assert [each for each in SENTENCES if not each.startswith(tuple(tried))] == []
    unknown = [each for each in ELSEWHERE if not any(s.startswith(each) for s in SENTENCES)]
    assert unknown == []
    for path, word in ELSEWHERE.values():
        assert word in (ROOT / "tests" / path).read_text(encoding="utf-8"), (path, word)
