"""The table of znodes: Kafka's bytes, old layouts, damage, and the page that shows them."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.config.addresses import Listener
from kdist.model import LeaderAndIsr
from kdist.security.acls import Acl, Operation, Pattern, PatternType, Permission, ResourceType
from kdist.zk import znodes
from kdist.zk.acl_values import AclChange, ExtendedAclChange, StoredAclEntries
from kdist.zk.errors import CorruptZnode
from kdist.zk.registration import FLUSHED_BYTES_MAX, BrokerRegistration, Endpoint
from kdist.zk.values import (
    ClusterId,
    ConsumerRegistration,
    ControllerInfo,
    EntitySettings,
    LockHolder,
    PartitionState,
    ProducerIdBlock,
    SettingsChange,
    TopicAssignment,
)

PAGE = Path(__file__).parents[3] / "docs/formats/znodes.md"
TOPIC_ID = uuid.UUID("49d85fc5-b6d2-4ac8-bd17-ac2d056e5b9c")
PLAIN = Endpoint(Listener("PLAINTEXT", "host1", 9092), "PLAINTEXT")
SECURE = Endpoint(Listener("CLIENT", "fe80::1", 9093), "SSL")

LITERAL = PatternType.LITERAL
ALICE_READS = Acl("User:alice", "*", Operation.READ, Permission.ALLOW)

# What Kafka's own encoders give for these values (3.9, and older where a version says so).
KAFKA_BYTES = [
    (znodes.CONTROLLER, ControllerInfo(3, 1620000000000),
     b'{"version":2,"brokerid":3,"timestamp":"1620000000000","kraftControllerEpoch":-1}'),
    (znodes.CONTROLLER_EPOCH, 17, b"17"),
    (znodes.CLUSTER_ID, ClusterId("SRhZxbLaSrKu6FxwtBZnbg"),
     b'{"version":"1","id":"SRhZxbLaSrKu6FxwtBZnbg"}'),
    (znodes.BROKER, BrokerRegistration((PLAIN,), 1620000000000),
     b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
     b'"endpoints":["PLAINTEXT://host1:9092"],"jmx_port":-1,"port":9092,"host":"host1",'
     b'"version":5,"timestamp":"1620000000000"}'),
    (znodes.TOPIC, TopicAssignment({0: (1, 2), 1: (2, 1)}, TOPIC_ID),
     b'{"removing_replicas":{},"partitions":{"0":[1,2],"1":[2,1]},'
     b'"topic_id":"SdhfxbbSSsi9F6wtBW5bnA","adding_replicas":{},"version":3}'),
    (znodes.PARTITION_STATE, PartitionState(1, 5, (1, 2), 17),
     b'{"controller_epoch":17,"leader":1,"version":1,"leader_epoch":5,"isr":[1,2]}'),
    (znodes.TOPIC_SETTINGS, EntitySettings({"retention.ms": "1000"}),
     b'{"version":1,"config":{"retention.ms":"1000"}}'),
    (znodes.SETTINGS_CHANGE, SettingsChange("topics/clicks"),
     b'{"version":2,"entity_path":"topics/clicks"}'),
    (znodes.ACLS, StoredAclEntries(frozenset((ALICE_READS,))),
     b'{"acls":[{"principal":"User:alice","permissionType":"Allow","host":"*",'
     b'"operation":"Read"}],"version":1}'),
    (znodes.ACL_CHANGE, AclChange(Pattern(ResourceType.TRANSACTIONAL_ID, "a:b", LITERAL)),
     b"TRANSACTIONAL_ID:a:b"),
    (znodes.EXTENDED_ACL_CHANGE,
     ExtendedAclChange(Pattern(ResourceType.TOPIC, "clicks", PatternType.PREFIXED)),
     b'{"version":1,"resourceType":"TOPIC","name":"clicks","patternType":"PREFIXED"}'),
    (znodes.PRODUCER_ID_BLOCK, ProducerIdBlock(3, 1000, 1999),
     b'{"version":1,"broker":3,"block_start":"1000","block_end":"1999"}'),
    (znodes.CONSUMER_ID, ConsumerRegistration({"clicks": 2}, "static", 1620000000000),
     b'{"version":1,"subscription":{"clicks":2},"pattern":"static","timestamp":"1620000000000"}'),
    (znodes.CONSUMER_ID,
     ConsumerRegistration({"clicks|views.*": 2}, "white_list", 1620000000000, goes_by_broker=True),
     b'{"version":1,"subscription":{"clicks|views.*":2},"pattern":"white_list",'
     b'"timestamp":"1620000000000","kdist_by_broker":1}'),
    (znodes.CONSUMER_OWNER, "group_host-1-0", b"group_host-1-0"),
    (znodes.CONSUMER_OFFSET, 4711, b"4711"),
    (znodes.TOPIC_DELETION, None, b""),
    (znodes.LOCK, LockHolder("host1", 7), b'{"version":1,"holder":"host1","timestamp":"7"}'),
    (znodes.LOCK, LockHolder("anna", 7, "r1", 9),
     b'{"version":1,"holder":"anna","timestamp":"7","run":"r1","until":"9"}'),
]  # fmt: skip


STATE_FORM = (
    '{"version":1,"leader":%s,"leader_epoch":%s,"controller_epoch":%s,"isr":[1],"kdist_lossy":%s}'
)
MOVE_FORM = '{"version":1,"partitions":[{"topic":"t","partition":%s,"replicas":[%s]}]}'


@pytest.mark.parametrize(
    ("row", "value", "data"), KAFKA_BYTES, ids=[row[0].template for row in KAFKA_BYTES]
)
def test_a_value_has_kafkas_bytes_and_is_read_from_them(
    row: znodes.ZnodeRow[Any], value: object, data: bytes
) -> None:
    assert row.encode(value) == data
    assert row.decode("/path", data) == value


@pytest.mark.parametrize(
    ("row", "data"),
    [(row, data) for row, _, data in KAFKA_BYTES if data.startswith(b"{")],
)
def test_keys_that_nobody_asks_for_are_ignored(row: znodes.ZnodeRow[Any], data: bytes) -> None:
    with_more = json.dumps(json.loads(data) | {"unheard_of": [{}]}).encode()
    assert row.decode("/path", with_more) == row.decode("/path", data)


def fault(row: znodes.ZnodeRow[Any], data: bytes) -> CorruptZnode | None:
    """What decoding finds wrong; any other exception fails the test."""
    try:
        row.decode("/the/path", data)
    except CorruptZnode as error:
        return error
    return None


@pytest.mark.parametrize(
    ("row", "data"),
    [(row, data) for row, value, data in KAFKA_BYTES if value is not None],
)
def test_damage_is_a_corrupt_znode_or_a_value_but_nothing_else(
    row: znodes.ZnodeRow[Any], data: bytes
) -> None:
    wrong: list[object] = [None, True, -1, 2.5, "x", [], [None], {}, {"x": None}, [1, "2"]]
    wrong.append({"9" * 5_000: [1]})  # more digits than Python reads
    damaged = [data[:end] for end in range(len(data))] + [b"[" * 100_000, b"\xff", b"null"]
    if data.startswith(b"{"):
        fields = json.loads(data)
        damaged += [json.dumps(fields | {key: bad}).encode() for key in fields for bad in wrong]
    faults = [found for each in damaged if (found := fault(row, each))]
    assert all(str(found) == f"/the/path: {found.reason}" for found in faults)
    assert all(found.reason for found in faults)
    assert len(faults) > (
        0 if row in (znodes.CONSUMER_OWNER, znodes.ACL_CHANGE) else len(damaged) // 4
    )


def test_a_port_of_an_old_registration_is_one() -> None:
    assert fault(znodes.BROKER, b'{"version":1,"host":"h","port":65536,"timestamp":"7"}')
    assert not fault(znodes.BROKER, b'{"version":1,"host":"h","port":65535,"timestamp":"7"}')


INT32, INT64 = 2**31, 2**63  # the first numbers that are too large


@pytest.mark.parametrize(
    ("row", "form", "bound"),
    [
        (znodes.TOPIC, '{"version":1,"partitions":{"0":[%d]}}', INT32),
        (znodes.TOPIC, '{"version":1,"partitions":{"%d":[1]}}', INT32),
        (znodes.PARTITION_STATE, STATE_FORM % ("%d", "1", "1", "[1]"), INT32),
        (znodes.PARTITION_STATE, STATE_FORM % ("1", "%d", "1", "[1]"), INT32),
        (znodes.PARTITION_STATE, STATE_FORM % ("1", "1", "%d", "[1]"), INT32),
        (znodes.PARTITION_STATE, STATE_FORM % ("1", "1", "1", "[%d]"), INT32),
        (znodes.CONTROLLER, '{"version":1,"brokerid":%d,"timestamp":"1"}', INT32),
        (znodes.CONTROLLER, '{"version":1,"brokerid":1,"timestamp":"%d"}', INT64),
        (znodes.CONTROLLER_EPOCH, "%d", INT32),
        (znodes.CONSUMER_OFFSET, "%d", INT64),
        (
            znodes.PRODUCER_ID_BLOCK,
            '{"version":1,"broker":1,"block_start":"0","block_end":"%d"}',
            INT64,
        ),
        (znodes.REASSIGNMENT, MOVE_FORM % ("%d", "1"), INT32),
        (znodes.REASSIGNMENT, MOVE_FORM % ("1", "%d"), INT32),
        (znodes.PREFERRED_ELECTION, MOVE_FORM % ("%d", "1"), INT32),
    ],
)
def test_a_number_that_no_request_could_carry_is_corrupt(
    row: znodes.ZnodeRow[Any], form: str, bound: int
) -> None:
    assert fault(row, (form % bound).encode())
    assert fault(row, (form % (-bound - 1)).encode())
    assert not fault(row, (form % (bound - 1)).encode())


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_corrupt(data: bytes) -> None:
    for row in znodes.ROWS:
        found = fault(row, data)
        assert found is None or found.path == "/the/path"


def test_a_registration_keeps_rack_machine_disk_and_listeners() -> None:
    disk, content = "SRhZxbLaSrKu6FxwtBZnbg", "rV2zlrlP79OCujTKmCtNqA"
    full = BrokerRegistration((SECURE, PLAIN), 7, "rack-1", "host1", disk, content)
    data = znodes.BROKER.encode(full)
    assert znodes.BROKER.decode("/brokers/ids/1", data) == full
    fields = json.loads(data)
    assert fields["endpoints"] == ["CLIENT://[fe80::1]:9093", "PLAINTEXT://host1:9092"]
    assert (fields["host"], fields["port"], fields["rack"]) == ("host1", 9092, "rack-1")
    assert (fields["kdist_host"], fields["kdist_disk"]) == ("host1", disk)
    assert fields["kdist_content"] == content
    assert full.endpoint("CLIENT") == SECURE
    assert full.endpoint("OTHER") is None


def test_a_registration_names_the_partitions_that_lost_nothing_unless_there_are_too_many() -> None:
    plain = BrokerRegistration((PLAIN,), 7, "rack-1", "host1", "disk", "content")
    some = plain._replace(flushed={"clicks": {2, 0}, "views": {7}})
    assert json.loads(znodes.BROKER.encode(some))["kdist_flushed"] == {
        "clicks": [0, 2],
        "views": [7],
    }
    assert znodes.BROKER.decode("/brokers/ids/1", znodes.BROKER.encode(some)) == some
    many = plain._replace(flushed={"clicks": {*range(FLUSHED_BYTES_MAX // 5)}})
    assert znodes.BROKER.encode(many) == znodes.BROKER.encode(plain)
    assert dict(znodes.BROKER.decode("/brokers/ids/1", znodes.BROKER.encode(plain)).flushed) == {}


@pytest.mark.parametrize("disk", [{}, {"kdist_disk": None}])
def test_a_registration_of_an_older_broker_names_no_disk(disk: dict[str, None]) -> None:
    fields = json.loads(znodes.BROKER.encode(BrokerRegistration((PLAIN,), 7, host="host1")))
    found = znodes.BROKER.decode("/brokers/ids/1", json.dumps(fields | disk).encode())
    assert (found.host, found.disk, found.content) == ("host1", None, None)


def test_a_registration_without_plaintext_has_no_address_for_old_clients() -> None:
    fields = json.loads(znodes.BROKER.encode(BrokerRegistration((SECURE,), 7)))
    assert (fields["host"], fields["port"]) == (None, -1)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"jmx_port":-1,"timestamp":"7","host":"host1","version":1,"port":9092}', (PLAIN,)),
        (b'{"version":2,"host":"host1","port":9092,"endpoints":["PLAINTEXT://host1:9092"],'
         b'"timestamp":"7"}', (PLAIN,)),
        (b'{"version":4,"timestamp":7,"endpoints":["CLIENT://[fe80::1]:9093"],"host":null,'
         b'"port":-1,"listener_security_protocol_map":{"CLIENT":"SSL"}}', (SECURE,)),
        (b'{"version":9,"timestamp":"7","endpoints":["PLAINTEXT://host1:9092"]}', (PLAIN,)),
    ],
)  # fmt: skip
def test_registrations_of_other_versions_are_read(
    data: bytes, expected: tuple[Endpoint, ...]
) -> None:
    assert znodes.BROKER.decode("/brokers/ids/1", data) == BrokerRegistration(expected, 7)


def test_a_topic_of_kafka_0_8_has_no_id_and_no_reassignment() -> None:
    data = b'{"version":1,"partitions":{"10":[3],"2":[1,2]}}'
    assignment = znodes.TOPIC.decode("/brokers/topics/t", data)
    assert assignment == TopicAssignment({2: (1, 2), 10: (3,)}, None)
    assert list(assignment.partitions) == [2, 10]


def test_a_partition_state_becomes_a_leader_and_isr_with_its_version() -> None:
    state = PartitionState(1, 5, (1, 2), 17, is_recovering=True, eligible=(3,), lossy=(4,))
    found = state.with_version(9)
    assert found == LeaderAndIsr(1, 5, (1, 2), 17, 9, (3,), is_recovering=True, lossy=(4,))
    assert PartitionState.of(found) == state
    data = znodes.PARTITION_STATE.encode(state)
    fields = json.loads(data)
    assert (fields["leader_recovery_state"], fields["kdist_eligible"]) == (1, [3])
    assert fields["kdist_lossy"] == [4]
    assert znodes.PARTITION_STATE.decode("/path", data) == state


def test_a_partition_state_of_kafka_has_no_field_of_kdists() -> None:
    state = PartitionState(1, 5, (1, 2), 17)
    data = b'{"controller_epoch":17,"leader":1,"version":1,"leader_epoch":5,"isr":[1,2]}'
    assert znodes.PARTITION_STATE.encode(state) == data
    assert znodes.PARTITION_STATE.decode("/path", data) == state


def test_the_old_form_of_a_settings_change_is_read() -> None:
    old = b'{"version":1,"entity_type":"topics","entity_name":"clicks"}'
    assert znodes.SETTINGS_CHANGE.decode("/path", old) == SettingsChange("topics/clicks")


def acl_entries(**words: object) -> bytes:
    entry = {"principal": "User:a", "permissionType": "Allow", "operation": "Read", "host": "*"}
    return json.dumps({"version": 1, "acls": [entry | words]}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b'{"version":2,"acls":[]}',
        b'{"acls":[]}',
        b'{"version":1,"acls":["User:a"]}',
        acl_entries(principal="alice"),
        acl_entries(host=None),
        acl_entries(operation=3),
    ],
)
def test_acls_that_may_mean_something_else_are_corrupt(data: bytes) -> None:
    assert fault(znodes.ACLS, data)


def test_a_word_of_a_newer_acl_is_unknown_and_a_known_one_may_have_any_case() -> None:
    """KAFKA-7216."""
    newer = acl_entries(operation="TwoPhaseCommit", permissionType="ALLOW")
    expected = Acl("User:a", "*", Operation.UNKNOWN, Permission.ALLOW)
    assert znodes.ACLS.decode("/path", newer).acls == {expected}
    assert znodes.ACLS.decode("/path", b"").acls == frozenset()


def test_both_spellings_of_a_type_in_a_notification_are_read() -> None:
    for word in ("TRANSACTIONAL_ID", "TransactionalId"):
        change = znodes.ACL_CHANGE.decode("/path", f"{word}:x".encode())
        assert change.pattern.type is ResourceType.TRANSACTIONAL_ID


def test_an_empty_settings_znode_has_no_settings() -> None:
    assert znodes.TOPIC_SETTINGS.decode("/path", b"") == EntitySettings({})


def test_text_outside_ascii_is_utf_8() -> None:
    settings = EntitySettings({"k": "\u00e4\u4e2d"})
    assert "\u00e4\u4e2d".encode() in znodes.USER_SETTINGS.encode(settings)


@pytest.mark.parametrize(
    ("row", "names", "path"),
    [
        (znodes.BROKER, (7,), "/brokers/ids/7"),
        (znodes.PARTITION_STATE, ("clicks", 0), "/brokers/topics/clicks/partitions/0/state"),
        (znodes.CONTROLLER, (), "/controller"),
        (znodes.BROKER_SETTINGS, ("<default>",), "/config/brokers/<default>"),
        (znodes.USER_CLIENT_SETTINGS, ("CN=a/b c*", "<default>"),
         "/config/users/CN%3Da%2Fb%20c%2A/clients/<default>"),
    ],
)  # fmt: skip
def test_a_path_is_made_from_names_and_gives_them_back(
    row: znodes.ZnodeRow[Any], names: tuple[str | int, ...], path: str
) -> None:
    assert row.path(*names) == path
    assert row.names(path) == tuple(str(name) for name in names)
    assert row.names(path + "/more") is None


def test_a_sequential_path_is_a_prefix_and_gives_its_digits_back() -> None:
    path = "/config/changes/config_change_"
    assert znodes.SETTINGS_CHANGE.path() == path
    assert znodes.SETTINGS_CHANGE.names(path + "0000000042") == ("0000000042",)
    assert znodes.SETTINGS_CHANGE.names(path) is None


def test_a_quoted_name_that_no_path_is_made_of_is_none() -> None:
    assert znodes.TOPIC_SETTINGS.names("/config/topics/%2E%2E") is None
    assert znodes.TOPIC_SETTINGS.names("/config/topics/..a") == ("..a",)


@pytest.mark.parametrize("name", ["", "a/b", ".", ".."])
def test_a_name_that_would_lead_elsewhere_is_a_bug(name: str) -> None:
    with pytest.raises(AssertionError):
        znodes.TOPIC.path(name)


def test_no_path_belongs_to_two_rows() -> None:
    templates = [row.template for row in znodes.ROWS]
    assert len(set(templates)) == len(templates)


def test_the_page_shows_every_row_and_no_other() -> None:
    lines = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `/")]
    shown = {(cells[1].strip(" `"), cells[2].strip()) for cells in lines}
    assert shown == {(row.template, row.kind.value) for row in znodes.ROWS}


def test_the_page_shows_kafkas_bytes() -> None:
    page = PAGE.read_text()
    for row, _, data in KAFKA_BYTES:
        if data.startswith(b"{"):
            assert f"\n{data.decode()}\n" in page, row.template
