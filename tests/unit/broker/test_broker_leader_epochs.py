"""OffsetForLeaderEpoch: where an epoch ends, and who may ask."""

from __future__ import annotations

import pytest

from kdist.broker.handlers import offset_for_leader_epoch
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.envelope import encode_response
from kdist.protocol.offset_for_leader_epoch import (
    API,
    UNDEFINED,
    AskedEpoch,
    AskedEpochTopic,
    OffsetForLeaderEpochRequest,
)
from tests.unit.replication.replication_world import CLICKS, VIEWS, World, append


def ask(
    world: World, epoch: int, key: TopicPartition = CLICKS, *, current: int = -1
) -> tuple[int, int, int]:
    """Error, epoch and end offset; the answer can be encoded at every version."""
    asked = AskedEpoch(partition=key.partition, current_leader_epoch=current, leader_epoch=epoch)
    topics = [AskedEpochTopic(topic=key.topic, partitions=[asked])]
    request = OffsetForLeaderEpochRequest(topics=topics)
    answer = offset_for_leader_epoch.answer(request, world.replicas)
    for version in range(API.newest + 1):
        assert encode_response(version, 1, answer)
    (result,) = answer.topics[0].partitions
    assert result.partition == key.partition
    return result.error_code, result.leader_epoch, result.end_offset


@pytest.fixture
def world() -> World:
    """Offsets 0 and 1 of epoch 0, 2 of epoch 3, 3 and 4 of epoch 5."""
    made = World()
    partition = made.lead()
    append(made, partition, b"a", b"b")
    made.tell(leader_epoch=3, partition_epoch=1)
    append(made, partition, b"c")
    made.tell(leader_epoch=5, partition_epoch=2)
    append(made, partition, b"d", b"e")
    return made


@pytest.mark.parametrize(
    ("epoch", "known", "end_offset"),
    [(0, 0, 2), (1, 0, 2), (3, 3, 3), (4, 3, 3), (5, 5, 5), (6, UNDEFINED, UNDEFINED)],
)
def test_an_epoch_ends_where_the_next_one_begins(
    world: World, epoch: int, known: int, end_offset: int
) -> None:
    assert ask(world, epoch) == (Error.NONE, known, end_offset)


def test_a_client_with_another_leader_epoch_gets_an_error(world: World) -> None:
    assert ask(world, 3, current=5) == (Error.NONE, 3, 3)
    assert ask(world, 3, current=4) == (Error.FENCED_LEADER_EPOCH, UNDEFINED, UNDEFINED)
    assert ask(world, 3, current=6) == (Error.UNKNOWN_LEADER_EPOCH, UNDEFINED, UNDEFINED)


def test_only_the_leader_answers(world: World) -> None:
    assert ask(world, 0, VIEWS)[0] == Error.UNKNOWN_TOPIC_OR_PARTITION
    world.known.add(VIEWS)
    assert ask(world, 0, VIEWS)[0] == Error.NOT_LEADER_OR_FOLLOWER
