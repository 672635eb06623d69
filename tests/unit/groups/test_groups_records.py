"""Records of `__consumer_offsets`: Apache Kafka's bytes, written, read, and loaded into groups."""

from __future__ import annotations

from collections import deque

import pytest
from groups_world import replay
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import CorruptRecords, ProtocolError
from kdist.groups.context import LogRecord
from kdist.groups.group import EMPTY, STABLE, CommittedOffset, Group, Member
from kdist.groups.records import (
    Loading,
    commit_records,
    generation_record,
    read_commit,
    read_group,
    tombstones,
)
from kdist.model import TopicPartition
from kdist.protocol.compiler import put_versioned
from kdist.protocol.group_records import (
    VALUE_VERSION,
    GroupMember,
    GroupMetadataValue,
)
from kdist.records.build import build_batch
from kdist.records.control import ControlType, EndTransactionMarker
from tests.written_records import write_marker

# Written by Apache Kafka 3.9.1 for librdkafka 2.x members.
MEMBER_ID = "rdkafka-0156d257-9df7-462e-bab3-88de913b6973"
SUBSCRIPTION = (
    "000300000002000a636f6465632d6e6f6e65000a6964656d706f74656e740000000000000000ffffffff0000"
)
ASSIGNMENT = (
    "000000000002000a636f6465632d6e6f6e650000000100000000000a6964656d706f74656e740000000200000000"
    "0000000100000000"
)
GROUP_KEY = "0002000772656164657273"
STABLE_VALUE = (
    "00030008636f6e73756d657200000001000572616e6765002c72646b61666b612d30313536643235372d39646637"
    "2d343632652d626162332d383864653931336236393733000001a1f8c268cc00000001002c72646b61666b612d30"
    "313536643235372d396466372d343632652d626162332d383864653931336236393733ffff000772646b61666b61"
    "000a2f3132372e302e302e31000493e00000afc80000002c" + SUBSCRIPTION + "00000036" + ASSIGNMENT
)
EMPTY_VALUE = "00030008636f6e73756d657200000002ffffffff000001a1f8c2697800000000"
COMMIT_KEY = "0001000772656164657273000a636f6465632d6e6f6e6500000000"
COMMIT_VALUE = "0003000000000000000affffffff0006617420313000000001a1f8c26961"
COMMIT_WITH_EPOCH_KEY = "0001000772656164657273000a6964656d706f74656e7400000001"
COMMIT_WITH_EPOCH_VALUE = "00030000000000000001000000000000000001a1f8c26974"

# The first two batches of that partition, as they stand in the log.
BATCHES = (
    "00000000000000000000014d00000000022c8ecf4a000000000000000001a1f8c268d6000001a1f8c268d6ffffff"
    "ffffffffffffffffffffff00000001b404000000160002000772656164657273900400030008636f6e73756d6572"
    "00000001000572616e6765002c72646b61666b612d30313536643235372d396466372d343632652d626162332d38"
    "3864653931336236393733000001a1f8c268cc00000001002c72646b61666b612d30313536643235372d39646637"
    "2d343632652d626162332d383864653931336236393733ffff000772646b61666b61000a2f3132372e302e302e31"
    "000493e00000afc80000002c000300000002000a636f6465632d6e6f6e65000a6964656d706f74656e7400000000"
    "00000000ffffffff000000000036000000000002000a636f6465632d6e6f6e650000000100000000000a6964656d"
    "706f74656e7400000002000000000000000100000000000000000000000001000000710000000002197e3b940000"
    "00000000000001a1f8c26962000001a1f8c26962ffffffffffffffffffff00000000000000017e00000036000100"
    "0772656164657273000a636f6465632d6e6f6e65000000003c0003000000000000000affffffff00066174203130"
    "00000001a1f8c2696100"
)

WHERE = TopicPartition("t", 0)


def stable_group() -> Group:
    group = Group("readers", 1795174852812)
    group.generation, group.protocol_name = 1, "range"
    member = Member(
        member_id=MEMBER_ID,
        instance_id=None,
        client_id="rdkafka",
        client_host="/127.0.0.1",
        protocols=(("roundrobin", b"not this"), ("range", bytes.fromhex(SUBSCRIPTION))),
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
    )
    group.add(member, "consumer")
    return group


def test_a_stable_generation_is_written_as_kafka_writes_it() -> None:
    key, value = generation_record(stable_group(), {MEMBER_ID: bytes.fromhex(ASSIGNMENT)})
    assert (key.hex(), value.hex() if value else None) == (GROUP_KEY, STABLE_VALUE)


def test_an_empty_generation_is_written_as_kafka_writes_it() -> None:
    group = Group("readers", 1795174852984)
    group.generation, group.protocol_type = 2, "consumer"
    key, value = generation_record(group, {})
    assert (key.hex(), value.hex() if value else None) == (GROUP_KEY, EMPTY_VALUE)


def test_commits_are_written_as_kafka_writes_them() -> None:
    commits = {
        TopicPartition("codec-none", 0): CommittedOffset(10, -1, "at 10\0", 1795174852961),
        TopicPartition("idempotent", 1): CommittedOffset(1, 0, "", 1795174852980),
    }
    written = [
        (key.hex(), (value or b"").hex()) for key, value in commit_records("readers", commits)
    ]
    assert written == [
        (COMMIT_KEY, COMMIT_VALUE),
        (COMMIT_WITH_EPOCH_KEY, COMMIT_WITH_EPOCH_VALUE),
    ]


def test_kafkas_group_is_read() -> None:
    group = read_group("readers", bytes.fromhex(STABLE_VALUE))
    member = group.members[MEMBER_ID]
    assert (group.state, group.generation, group.protocol_name) == (STABLE, 1, "range")
    assert (group.protocol_type, group.leader_id) == ("consumer", MEMBER_ID)
    assert group.subscribed_topics == {"codec-none", "idempotent"}
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (45_000, 300_000)
    assert member.assignment.hex() == ASSIGNMENT
    assert group.state_since_ms == 1795174852812


def test_kafkas_empty_group_is_read() -> None:
    group = read_group("readers", bytes.fromhex(EMPTY_VALUE))
    assert (group.state, group.generation, group.protocol_type) == (EMPTY, 2, "consumer")
    assert group.subscribed_topics == frozenset()


def test_an_offset_with_an_expiry_time_is_written_in_the_version_that_has_one() -> None:
    committed = CommittedOffset(5, 7, "m", 1000, 2000)
    ((_key, value),) = commit_records("g", {WHERE: committed})
    assert value is not None
    assert value[:2] == b"\0\1"
    assert read_commit(value) == committed._replace(leader_epoch=-1)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_groups_of_every_version_are_read(version: int) -> None:
    has_rebalance_timeout = version >= 1
    member = GroupMember(
        member_id="m",
        group_instance_id="one" if version >= 3 else None,
        client_id="c",
        client_host="/h",
        rebalance_timeout=9000 if has_rebalance_timeout else -1,
        session_timeout=6000,
        subscription=b"s",
        assignment=b"a",
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="m",
        current_state_timestamp=77 if version >= 2 else -1,
        members=[member],
    )
    group = read_group("g", put_versioned(value, version))
    read = group.members["m"]
    assert read.rebalance_timeout_ms == (9000 if has_rebalance_timeout else 6000)
    assert group.state_since_ms == (77 if version >= 2 else -1)
    assert group.static_ids == ({"one": "m"} if version >= 3 else {})
    assert group.subscribed_topics is None  # "s" is no subscription


def test_a_leader_that_is_no_member_is_not_believed() -> None:
    group = stable_group()
    group.leader_id = "somebody else"
    _key, value = generation_record(group, {MEMBER_ID: b""})
    assert value is not None
    assert read_group("readers", value).leader_id == MEMBER_ID


def test_the_leader_need_not_be_the_first_member() -> None:
    group = stable_group()
    second = Member("second", None, "c", "/h", (("range", b""),), 6000, 6000)
    group.add(second, "consumer")
    group.leader_id = "second"
    _key, value = generation_record(group, {MEMBER_ID: b"", "second": b""})
    assert value is not None
    assert read_group("readers", value).leader_id == "second"


def test_values_of_unknown_versions_are_refused() -> None:
    with pytest.raises(ProtocolError):
        read_commit(b"\0\5" + bytes(30))
    with pytest.raises(ProtocolError):
        read_group("g", b"\0\5" + bytes(30))


positions = st.builds(
    CommittedOffset,
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.integers(0, 2**60),
    st.just(-1),
)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), positions)
def test_a_commit_is_read_back_as_it_was_written(group_id: str, committed: CommittedOffset) -> None:
    ((key, value),) = commit_records(group_id, {WHERE: committed})
    (group,) = load([(key, value)])
    assert group.group_id == group_id
    assert group.offsets.get(WHERE) == committed


def load(*batches: list[LogRecord]) -> list[Group]:
    loading = Loading(0)
    offset = 0
    for records in batches:
        replay(loading, batch(records, offset))
        offset += len(records)
    return groups_of(loading)


def groups_of(loading: Loading) -> list[Group]:
    deque(loading.decode(now_ms=5), 0)
    return list(loading.home.groups.values())


def batch(records: list[LogRecord], offset: int = 0, **fields: int) -> bytearray:
    keys, values = [key for key, _ in records], [value for _, value in records]
    return build_batch(values, keys, timestamp_ms=1, base_offset=offset, **fields)  # type: ignore[arg-type]


def test_the_last_record_of_a_key_wins() -> None:
    first = commit_records("g", {WHERE: CommittedOffset(1)})
    second = commit_records("g", {WHERE: CommittedOffset(2)})
    (group,) = load(first, second)
    assert group.offsets.get(WHERE).offset == 2
    assert (group.state, group.protocol_type, group.state_since_ms) == (EMPTY, None, 5)


def test_tombstoned_records_are_not_loaded() -> None:
    commits = commit_records("g", {WHERE: CommittedOffset(1)})
    generation = generation_record(stable_group(), {MEMBER_ID: b"a"})
    assert load(commits, tombstones("g", [WHERE], is_group_gone=False)) == []
    assert load([generation], tombstones("readers", [], is_group_gone=True)) == []


def test_offsets_outlive_the_group_that_committed_them() -> None:
    generation = generation_record(stable_group(), {MEMBER_ID: b"a"})
    commits = commit_records("readers", {WHERE: CommittedOffset(1)})
    (group,) = load([generation], commits, tombstones("readers", [], is_group_gone=True))
    assert (group.state, group.generation, len(group.offsets)) == (EMPTY, 0, 1)


def transaction(*, commits: bool, later: CommittedOffset | None = None) -> list[Group]:
    """Offset 10 in a transaction, then perhaps `later` outside of it, then the transaction ends."""
    loading = Loading(0)
    carried = commit_records("g", {WHERE: CommittedOffset(10)})
    fields = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    replay(loading, batch(carried, 0, **fields))
    if later is not None:
        replay(loading, batch(commit_records("g", {WHERE: later}), 1))
    kind = ControlType.COMMIT if commits else ControlType.ABORT
    marker = write_marker(EndTransactionMarker(kind, 0))
    replay(loading, batch([marker], 2, **fields, is_control=True))
    return groups_of(loading)


def test_offsets_of_a_transaction_count_when_it_commits() -> None:
    (group,) = transaction(commits=True)
    assert group.offsets.get(WHERE).offset == 10


def test_offsets_of_an_aborted_transaction_do_not_count() -> None:
    assert transaction(commits=False) == []


def test_a_commit_after_the_transactions_own_wins() -> None:
    (group,) = transaction(commits=True, later=CommittedOffset(20))
    assert group.offsets.get(WHERE).offset == 20


def test_kafkas_own_log_is_loaded() -> None:
    loading = Loading(0)
    replay(loading, bytes.fromhex(BATCHES))
    (group,) = groups_of(loading)
    assert (group.group_id, group.state, group.generation) == ("readers", STABLE, 1)
    assert list(group.members) == [MEMBER_ID]
    assert group.offsets.get(TopicPartition("codec-none", 0)) == read_commit(
        bytes.fromhex(COMMIT_VALUE)
    )


def test_both_versions_of_a_key_name_the_same_offset() -> None:
    ((key, first),) = commit_records("g", {WHERE: CommittedOffset(1)})
    ((_key, second),) = commit_records("g", {WHERE: CommittedOffset(2)})
    old_key = b"\0\0" + key[2:]
    (group,) = load([(key, first)], [(old_key, second)])
    assert group.offsets.get(WHERE).offset == 2
    assert load([(old_key, first)], [(key, None)]) == []


def test_a_value_of_a_later_version_stops_the_load() -> None:
    ((key, value),) = commit_records("g", {WHERE: CommittedOffset(1)})
    assert value is not None
    with pytest.raises(ProtocolError):
        load([(key, b"\0\5" + value[2:])])


def test_keys_of_a_later_kind_are_passed_over() -> None:
    assert load([(b"\0\3\0\1g", b"what only newer brokers know")]) == []


def test_a_record_without_a_key_is_corrupt() -> None:
    with pytest.raises(CorruptRecords):
        replay(Loading(0), build_batch([b"value"], timestamp_ms=1))


def test_a_flipped_bit_stops_the_load() -> None:
    damaged = batch(commit_records("g", {WHERE: CommittedOffset(1)}))
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecords):
        replay(Loading(0), damaged)


def row(member_id: str, instance_id: str | None = None) -> GroupMember:
    return GroupMember(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id="c",
        client_host="/h",
        session_timeout=6_000,
        subscription=b"",
        assignment=b"",
    )


@pytest.mark.parametrize(
    ("members", "protocol"),
    [
        ([row("a"), row("b"), row("a")], "range"),
        ([row("a", "one"), row("b", "one")], "range"),
        ([row("a")], None),
    ],
)
def test_members_that_make_no_group_are_corrupt(
    members: list[GroupMember], protocol: str | None
) -> None:
    key, _ = generation_record(stable_group(), {MEMBER_ID: b""})
    value = GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol=protocol, leader="a", members=members
    )
    with pytest.raises(CorruptRecords):
        load([(key, put_versioned(value, VALUE_VERSION))])


@given(st.data())
def test_a_damaged_generation_is_refused_or_a_group_that_can_be_used(data: st.DataObject) -> None:
    value = bytearray(bytes.fromhex(STABLE_VALUE))
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    try:
        (group,) = load([(bytes.fromhex(GROUP_KEY), bytes(value))])
    except (CorruptRecords, ProtocolError):
        return
    if group.members:
        assert group.leader_id in group.members
        assert len(group.described_members()) == len(group.members)
        assert group.choose_protocol() == group.protocol_name
