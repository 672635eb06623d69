"""ListOffsets by time, the ends, the newest record, by segments; and where leader epochs end."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.broker.handlers import offset_lookups
from kdist.errors import DiskFailed, Error
from kdist.model import TopicPartition
from kdist.protocol.frame import encode_response
from kdist.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kdist.protocol.offset_for_leader_epoch import (
    API,
    UNDEFINED,
    AskedEpoch,
    AskedEpochTopic,
    OffsetForLeaderEpochRequest,
)
from kdist.runtime.steps import run_steps
from tests.examples import examples
from tests.unit.replication.replication_world import (
    CLICKS,
    START_MS,
    VIEWS,
    World,
    append,
    append_open,
)

LATEST, EARLIEST, NEWEST, LOCAL, TIERED = -1, -2, -3, -4, -5


@pytest.fixture
def world() -> World:
    return World()


def ask(
    world: World,
    timestamp: int,
    version: int = 7,
    *,
    key: TopicPartition = CLICKS,
    times: int = 1,
    replica_id: int = -1,
    isolation_level: int = 0,
    **partition: Any,
) -> ListOffsetsPartitionResult:
    """The answer for one partition; it can be encoded at `version`."""
    asked = ListOffsetsPartition(partition_index=key.partition, timestamp=timestamp, **partition)
    request = ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=key.topic, partitions=[asked] * times)],
    )
    answer = run_steps(offset_lookups.answering(request, version, world.replicas))
    assert encode_response(version, 1, answer)
    return answer.topics[0].partitions[0]


def facts(result: ListOffsetsPartitionResult) -> tuple[int, int, int, int]:
    return result.error_code, result.offset, result.timestamp, result.leader_epoch


def fill(world: World) -> None:
    """Offsets 0 and 1 at +0, 2 at +100, 3 at +50, 4 at +200 ms; epoch 0, from offset 3 on 2."""
    partition = world.lead()
    append(world, partition, b"a", b"b", timestamp=START_MS)
    append(world, partition, b"c", timestamp=START_MS + 100)
    world.tell(leader_epoch=2, partition_epoch=1)
    append(world, partition, b"d", timestamp=START_MS + 50)
    append(world, partition, b"e", timestamp=START_MS + 200)


def ask_epoch_end(
    world_of_epochs: World, epoch: int, key: TopicPartition = CLICKS, *, current: int = -1
) -> tuple[int, int, int]:
    """Error, epoch and end offset; the answer can be encoded at every version."""
    asked = AskedEpoch(partition=key.partition, current_leader_epoch=current, leader_epoch=epoch)
    topics = [AskedEpochTopic(topic=key.topic, partitions=[asked])]
    request = OffsetForLeaderEpochRequest(topics=topics)
    answer = offset_lookups.answer_epochs(request, world_of_epochs.replicas)
    for version in range(API.newest + 1):
        assert encode_response(version, 1, answer)
    (result,) = answer.topics[0].partitions
    assert result.partition == key.partition
    return result.error_code, result.leader_epoch, result.end_offset


@pytest.fixture
def world_of_epochs() -> World:
    """Offsets 0 and 1 of epoch 0, 2 of epoch 3, 3 and 4 of epoch 5."""
    made = World()
    partition = made.lead()
    append(made, partition, b"a", b"b")
    made.tell(leader_epoch=3, partition_epoch=1)
    append(made, partition, b"c")
    made.tell(leader_epoch=5, partition_epoch=2)
    append(made, partition, b"d", b"e")
    return made


@pytest.mark.parametrize("version", range(1, 10))
def test_every_version_finds_ends_and_times(world: World, version: int) -> None:
    fill(world)
    epochs = (0, 2) if version >= 4 else (-1, -1)
    assert facts(ask(world, EARLIEST, version)) == (0, 0, -1, epochs[0])
    assert facts(ask(world, LATEST, version)) == (0, 5, -1, epochs[1])
    assert facts(ask(world, START_MS + 20, version)) == (0, 2, START_MS + 100, epochs[0])
    assert facts(ask(world, START_MS + 101, version)) == (0, 4, START_MS + 200, epochs[1])
    assert facts(ask(world, START_MS + 201, version)) == (0, -1, -1, -1)


def test_the_max_timestamp_query_needs_version_7(world: World) -> None:
    fill(world)
    assert facts(ask(world, NEWEST)) == (0, 4, START_MS + 200, 2)
    assert ask(world, NEWEST, 6).error_code == Error.UNSUPPORTED_VERSION


def test_tiered_storage_is_asked_after_and_has_nothing(world: World) -> None:
    fill(world)
    world.replicas.partitions[CLICKS].log.start_offset = 2
    assert facts(ask(world, LOCAL, 8)) == (0, 2, -1, 0)
    assert facts(ask(world, TIERED, 9)) == (0, -1, -1, -1)
    for timestamp, version in ((LOCAL, 7), (TIERED, 8), (-6, 9)):
        assert ask(world, timestamp, version).error_code == Error.UNSUPPORTED_VERSION


def test_an_empty_partition_has_a_start_and_an_end_and_no_timestamps(world: World) -> None:
    world.lead()
    assert facts(ask(world, LATEST))[:2] == (0, 0)
    assert facts(ask(world, EARLIEST))[:2] == (0, 0)
    assert facts(ask(world, NEWEST)) == (0, -1, -1, -1)
    assert facts(ask(world, 0)) == (0, -1, -1, -1)
    assert ask(world, LATEST, 0, max_num_offsets=5).old_style_offsets == [0]


def test_read_committed_gets_the_last_stable_offset(world: World) -> None:
    partition = world.lead()
    append(world, partition, b"a")
    append_open(world, partition, b"open", timestamp=START_MS + 9)
    assert ask(world, LATEST, isolation_level=1).offset == 1
    assert ask(world, LATEST, isolation_level=0).offset == 2
    assert facts(ask(world, START_MS + 5, isolation_level=1)) == (0, -1, -1, -1)
    assert ask(world, START_MS + 5, isolation_level=0).offset == 1


def test_unflushed_records_are_not_found_by_clients(world: World) -> None:
    append(world, world.lead(flush_before_expose=True), b"a")
    assert ask(world, LATEST).offset == 0
    assert ask(world, START_MS).offset == -1
    assert ask(world, LATEST, replica_id=2).offset == 1


@pytest.mark.parametrize(
    ("epoch", "error"), [(2, 0), (1, Error.FENCED_LEADER_EPOCH), (3, Error.UNKNOWN_LEADER_EPOCH)]
)
def test_the_clients_leader_epoch_is_checked(world: World, epoch: int, error: int) -> None:
    fill(world)
    assert ask(world, LATEST, current_leader_epoch=epoch).error_code == error


@pytest.mark.parametrize("version", range(8))
def test_an_unknown_partition_has_its_own_error(world: World, version: int) -> None:
    result = ask(world, LATEST, version, key=TopicPartition("nothing", 1))
    assert result.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION
    world.known.add(TopicPartition("elsewhere", 0))
    result = ask(world, LATEST, version, key=TopicPartition("elsewhere", 0))
    assert result.error_code == Error.NOT_LEADER_OR_FOLLOWER


def test_a_partition_named_twice_is_refused_except_in_version_0(world: World) -> None:
    world.lead()
    assert ask(world, LATEST, 1, times=2).error_code == Error.INVALID_REQUEST
    assert ask(world, LATEST, 0, times=2).error_code == Error.NONE


# --- version 0 ------------------------------------------------------------------------------------


def segments(world: World) -> None:
    """Segments from offsets 0, 1 and 2, last written at +0, +1000 and +2000 ms; the end is 3."""
    partition = world.lead(segment_bytes=120)
    for _ in range(3):
        append(world, partition, bytes(40))
        world.tasks.run_for_ms(1000)


@pytest.mark.parametrize(
    ("timestamp", "count", "offsets"),
    [
        (LATEST, 10, [3, 2, 1, 0]),
        (LATEST, 2, [3, 2]),
        (LATEST, 0, []),
        (EARLIEST, 10, [0]),
        (START_MS + 1500, 10, [1, 0]),
        (START_MS + 1500, 1, [1]),
        (START_MS - 1, 10, []),
        (START_MS + 10**9, 10, [3, 2, 1, 0]),
    ],
)
def test_version_0_lists_where_segments_begin(
    world: World, timestamp: int, count: int, offsets: list[int]
) -> None:
    segments(world)
    result = ask(world, timestamp, 0, max_num_offsets=count)
    assert (result.error_code, result.old_style_offsets) == (0, offsets)


def test_version_0_shows_the_high_watermark_for_what_is_above_it(world: World) -> None:
    partition = world.lead(flush_before_expose=True, segment_bytes=120)
    append(world, partition, bytes(40))
    partition.request_flush()
    world.settle()
    append(world, partition, bytes(40))
    append(world, partition, bytes(40))
    high_watermark = partition.high_watermark
    found = ask(world, LATEST, 0, max_num_offsets=10).old_style_offsets
    assert found == [high_watermark, *range(high_watermark, -1, -1)]


@examples(30)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 3)), max_size=12), st.integers(-5, 310)
)
def test_a_timestamp_finds_the_first_record_that_is_not_older(
    batches: list[tuple[int, int]], after_ms: int
) -> None:
    world = World()
    partition = world.lead(segment_bytes=200)
    stamps: list[int] = []
    for at_ms, count in batches:
        append(world, partition, *[b"x"] * count, timestamp=START_MS + at_ms)
        stamps += [START_MS + at_ms] * count
    expected = next(((n, at) for n, at in enumerate(stamps) if at >= START_MS + after_ms), (-1, -1))
    assert facts(ask(world, START_MS + after_ms))[1:3] == expected


# A client that debugs

DEBUGS = -2  # its replica id


def test_a_client_that_debugs_is_told_of_a_follower_too(world: World) -> None:
    fill(world)
    world.tell(leader=2, leader_epoch=3, partition_epoch=2)
    assert ask(world, LATEST).error_code == Error.NOT_LEADER_OR_FOLLOWER
    assert facts(ask(world, LATEST, replica_id=DEBUGS)) == (0, 5, -1, 2)
    assert facts(ask(world, EARLIEST, replica_id=DEBUGS))[:2] == (0, 0)
    assert ask(world, LATEST, 0, replica_id=DEBUGS).old_style_offsets == [5]


def test_a_client_that_debugs_is_told_of_uncommitted_records_too(world: World) -> None:
    fill(world)
    append_open(world, world.replicas.get(CLICKS), b"open", timestamp=START_MS + 300)
    end_offset = world.replicas.get(CLICKS).log.end_offset
    assert ask(world, LATEST, isolation_level=1).offset < end_offset
    assert ask(world, LATEST, isolation_level=1, replica_id=DEBUGS).offset == end_offset


# --- in steps -------------------------------------------------------------------------------------


class Call:
    """A request of version 7."""

    version = 7

    def __init__(self) -> None:
        self.answers: list[ListOffsetsResponse] = []
        self.errors: list[BaseException] = []
        self.answer = self.answers.append
        self.crash = self.errors.append

    @property
    def found(self) -> list[tuple[int, int]]:
        [answer] = self.answers
        return [(p.error_code, p.offset) for topic in answer.topics for p in topic.partitions]


def ask_for(world: World, timestamp: int, *keys: TopicPartition, times: int = 1) -> Call:
    call, names = Call(), {key.topic for key in keys}
    topics = [
        ListOffsetsTopic(
            name=name,
            partitions=[
                ListOffsetsPartition(partition_index=key.partition, timestamp=timestamp)
                for key in keys
                if key.topic == name
            ],
        )
        for name in sorted(names)
    ]
    request = ListOffsetsRequest(replica_id=-1, topics=topics * times)
    offset_lookups.handle(request, call, world.replicas)
    return call


def make_cold(world: World, *keys: TopicPartition) -> None:
    for key in keys:
        for segment in world.replicas.partitions[key].log.segments:
            segment.file._content.cold.update(range(1000))  # type: ignore[attr-defined]


def test_a_cold_look_up_reads_nothing_on_the_loop_and_holds_up_no_other_request(
    world: World,
) -> None:
    fill(world)
    append(world, world.lead(VIEWS), b"x", timestamp=START_MS)
    make_cold(world, CLICKS, VIEWS)
    reads = world.disk.calls["read"]
    slow = ask_for(world, START_MS + 20, CLICKS, VIEWS)
    more = [ask_for(world, START_MS + 20, VIEWS) for _ in range(3)]
    assert ask_for(world, LATEST, CLICKS, VIEWS).found == [(0, 5), (0, 1)]
    assert world.disk.calls["read"] == reads
    assert slow.answers == []
    world.settle(500)
    assert slow.found == [(0, 2), (0, -1)]
    assert [each.found for each in more] == [[(0, -1)]] * 3
    assert world.disk.calls["read"] > reads


@pytest.mark.parametrize("timestamp", [START_MS + 200, NEWEST])
@pytest.mark.parametrize("what", ["resigned", "deleted", "re-created", "more appended", "disk"])
def test_what_happens_during_a_look_up_is_heeded(world: World, what: str, timestamp: int) -> None:
    fill(world)
    make_cold(world, CLICKS)
    call = ask_for(world, timestamp, CLICKS)
    partition = world.replicas.partitions[CLICKS]
    if what == "resigned":
        partition.resign()
    elif what in ("deleted", "re-created"):
        world.stop(leader_epoch=9)
        if what == "re-created":
            world.tell(topic_id=uuid.UUID(int=99))
            append(world, world.replicas.partitions[CLICKS], b"x", timestamp=START_MS + 900)
    elif what == "disk":
        world.disk.fail(when=lambda call: call.name == "read")
    else:
        append(world, partition, b"f", timestamp=START_MS + 300)
    world.settle(500)
    if what == "disk":
        assert (call.answers, [type(each) for each in call.errors]) == ([], [DiskFailed])
    else:
        is_led = what == "more appended"
        assert call.found == [(0, 4) if is_led else (Error.NOT_LEADER_OR_FOLLOWER, -1)]


def test_a_request_for_many_partitions_is_answered_in_steps(world: World) -> None:
    fill(world)
    assert ask_for(world, START_MS + 20, CLICKS).found == [(0, 2)]
    call = ask_for(world, LATEST, CLICKS, times=2000)
    assert call.answers == []
    world.settle()
    assert call.found == [(Error.INVALID_REQUEST, -1)] * 2000


@pytest.mark.parametrize(
    ("epoch", "known", "end_offset"),
    [(0, 0, 2), (1, 0, 2), (3, 3, 3), (4, 3, 3), (5, 5, 5), (6, UNDEFINED, UNDEFINED)],
)
def test_an_epoch_ends_where_the_next_one_begins(
    world_of_epochs: World, epoch: int, known: int, end_offset: int
) -> None:
    assert ask_epoch_end(world_of_epochs, epoch) == (Error.NONE, known, end_offset)


def test_a_client_with_another_leader_epoch_gets_an_error(world_of_epochs: World) -> None:
    assert ask_epoch_end(world_of_epochs, 3, current=5) == (Error.NONE, 3, 3)
    assert ask_epoch_end(world_of_epochs, 3, current=4) == (
        Error.FENCED_LEADER_EPOCH,
        UNDEFINED,
        UNDEFINED,
    )
    assert ask_epoch_end(world_of_epochs, 3, current=6) == (
        Error.UNKNOWN_LEADER_EPOCH,
        UNDEFINED,
        UNDEFINED,
    )


def test_only_the_leader_answers(world_of_epochs: World) -> None:
    assert ask_epoch_end(world_of_epochs, 0, VIEWS)[0] == Error.UNKNOWN_TOPIC_OR_PARTITION
    world_of_epochs.known.add(VIEWS)
    assert ask_epoch_end(world_of_epochs, 0, VIEWS)[0] == Error.NOT_LEADER_OR_FOLLOWER
