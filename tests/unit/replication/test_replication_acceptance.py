"""The rules for a topic's records; which later batches refused ones hold up, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from kdist.config.topic import TopicSettings
from kdist.errors import ApiError, Error
from kdist.records.batch import Batch, TimestampType, read_header
from kdist.records.compression import Codec
from kdist.replication.acceptance import RefusedBatches, rules_of
from kdist.storage.producers import SEQUENCE_MAX
from tests.refusals import refused
from tests.unit.replication.replication_world import CLICKS, VIEWS, World, append, batch

NOBODY_KNOWN = World().lead().log.producers


def sent(sequence: int, producer_id: int = 7, epoch: int = 1) -> Batch:
    data = batch([b"x"], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return Batch(read_header(data), memoryview(data))


def noting(sequence: int = 10) -> RefusedBatches:
    refused = RefusedBatches()
    refused.note(CLICKS, sent(sequence).data)
    return refused


def is_taken(refused: RefusedBatches, each: Batch, key: tuple[str, int] = CLICKS) -> bool:
    try:
        return refused.acceptable(key, [each], NOBODY_KNOWN) == [each]
    except ApiError as refusal:
        return refusal.error is not Error.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(
    ("each", "taken"),
    [
        (sent(10), True),  # itself, sent again
        (sent(11), False),
        (sent(SEQUENCE_MAX // 2), False),
        (sent(9), True),  # from before it
        (sent(11, epoch=2), True),
        (sent(11, producer_id=8), True),
    ],
)
def test_only_what_a_producer_sent_after_a_refused_batch_is_held_up(
    each: Batch, taken: bool
) -> None:
    refused = noting()
    assert is_taken(refused, sent(11), VIEWS)
    assert is_taken(refused, each) is taken


def test_a_batch_refused_for_good_is_forgotten_after_as_many_as_may_be_in_flight_then() -> None:
    """Once the producer knows of that one, five others may be in flight; all must be refused, or
    else the last is taken, and those before it are written after it."""
    refused = noting()
    assert [is_taken(refused, sent(11 + n)) for n in range(6)] == [False] * 5 + [True]
    assert not refused.noted


@pytest.mark.parametrize(("sequences", "held"), [((10, 12), 11), ((12, 10), 11)])
def test_the_earliest_of_the_batches_refused_counts(sequences: tuple[int, int], held: int) -> None:
    refused = noting(sequences[0])
    refused.note(CLICKS, sent(sequences[1]).data)
    assert not is_taken(refused, sent(held))


def test_of_many_batches_those_before_the_one_held_up_are_taken() -> None:
    others = [sent(0, producer_id=8), sent(0, producer_id=9)]
    assert noting().acceptable(CLICKS, [*others, sent(11)], NOBODY_KNOWN) == others


@pytest.mark.parametrize("data", [None, b"", b"no batch", batch([b"x"])])
def test_what_is_no_batch_of_an_idempotent_producer_is_not_noted(data: bytes | None) -> None:
    refused = RefusedBatches()
    refused.note(CLICKS, data)
    assert not refused.noted


def test_a_producer_that_the_log_knows_is_not_held_up() -> None:
    world = World()
    partition = world.lead()
    partition.refused.note(CLICKS, sent(10).data)
    append(world, partition, b"x", producer_id=7, producer_epoch=1, base_sequence=10)
    partition.refused.note(CLICKS, sent(11).data)
    append(world, partition, b"y", producer_id=7, producer_epoch=1, base_sequence=11)
    assert partition.log.end_offset == 2


def test_a_partition_takes_nothing_behind_a_refused_batch_alone_or_with_others() -> None:
    world = World()
    partition = world.lead()
    partition.refused.note(CLICKS, sent(10).data)
    with refused(Error.OUT_OF_ORDER_SEQUENCE_NUMBER):
        partition.append([sent(11)], world.clock.now_ms())
    with refused(Error.OUT_OF_ORDER_SEQUENCE_NUMBER):
        partition.append_coalesced([sent(12), sent(0, producer_id=8)], world.clock.now_ms())
    partition.append_coalesced([sent(0, producer_id=8), sent(12)], world.clock.now_ms())
    assert partition.log.end_offset == 1


def test_a_producer_with_the_id_0_is_one_like_any_other() -> None:
    refused = RefusedBatches()
    refused.note(CLICKS, sent(10, producer_id=0).data)
    assert not is_taken(refused, sent(11, producer_id=0))


@pytest.mark.parametrize(
    ("changes", "attribute", "value"),
    [
        ({}, "codec", None),
        ({"compression_type": "uncompressed"}, "codec", Codec.NONE),
        ({"compression_type": "zstd"}, "codec", Codec.ZSTD),
        ({"cleanup_policy": ("compact",)}, "is_compacted", True),
        ({"max_message_bytes": 77}, "message_bytes_max", 77),
        (
            {"message_timestamp_type": "LogAppendTime"},
            "timestamp_type",
            TimestampType.LOG_APPEND_TIME,
        ),
        ({"message_compressed_validation_enable": True}, "validates_compressed", True),
        ({"message_compressed_validation_enable": False}, "validates_compressed", False),
        ({"message_timestamp_after_max_ms": 5}, "timestamp_after_max_ms", 5),
        ({"message_timestamp_before_max_ms": 6}, "timestamp_before_max_ms", 6),
    ],
)
def test_rules_follow_from_the_topics_settings(
    changes: dict[str, Any], attribute: str, value: Any
) -> None:
    assert getattr(rules_of(TopicSettings(**changes)), attribute) == value
