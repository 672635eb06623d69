"""The metadata cache: what it knows after an UpdateMetadata, and which topics count as deleted."""

from __future__ import annotations

import uuid

import pytest

from kdist.broker.metadata_cache import MetadataCache
from kdist.model import TopicPartition
from kdist.protocol.leader_and_isr import FULL, INCREMENTAL
from kdist.protocol.update_metadata import UpdatedPartition, UpdatedTopic, UpdateMetadataRequest

ID, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


def update(kind: int, *topics: tuple[str, uuid.UUID, dict[int, int]]) -> UpdateMetadataRequest:
    """Topics as (name, id, leader by partition)."""
    return UpdateMetadataRequest(
        controller_id=1,
        type=kind,
        controller_epoch=1,
        topic_states=[
            UpdatedTopic(
                topic_name=name,
                topic_id=topic_id,
                partition_states=[
                    UpdatedPartition(
                        partition_index=index,
                        controller_epoch=1,
                        leader=leader,
                        leader_epoch=0,
                        isr=[leader],
                        zk_version=0,
                        replicas=[leader],
                    )
                    for index, leader in leaders.items()
                ],
            )
            for name, topic_id, leaders in topics
        ],
        live_brokers=[],
    )


def test_a_full_update_replaces_everything_and_reports_no_deletion() -> None:
    cache = MetadataCache()
    cache.update(update(FULL, ("a", ID, {0: 1}), ("b", OTHER, {0: 1})))
    assert cache.update(update(FULL, ("b", OTHER, {0: 1}))) == []
    assert list(cache.topics) == ["b"]
    assert (cache.name_of(ID), cache.name_of(OTHER)) == (None, "b")


@pytest.mark.parametrize("kind", [INCREMENTAL, FULL])
def test_a_topic_that_reappears_with_its_id_is_the_same(kind: int) -> None:
    for topic_id, gone in ((ID, []), (OTHER, [TopicPartition("a", 0), TopicPartition("a", 1)])):
        cache = MetadataCache()
        cache.update(update(FULL, ("a", ID, {0: 1, 1: 1})))
        assert cache.update(update(FULL)) == []
        assert cache.update(update(FULL)) == []
        for expected in (gone, []):
            assert cache.update(update(kind, ("a", topic_id, {0: 1}))) == expected
            assert cache.topics["a"].id == topic_id


def test_a_topic_that_reappears_with_another_id_was_recreated() -> None:
    cache = MetadataCache()
    cache.update(update(FULL, ("a", ID, {0: 1})))
    assert cache.update(update(FULL, ("a", OTHER, {0: 1}))) == [TopicPartition("a", 0)]
    assert (cache.name_of(ID), cache.name_of(OTHER)) == (None, "a")


@pytest.mark.parametrize("kind", [INCREMENTAL, FULL])
def test_a_topic_that_was_missing_may_be_reported_as_deleted(kind: int) -> None:
    cache = MetadataCache()
    cache.update(update(FULL, ("a", ID, {0: 1})))
    cache.update(update(FULL))
    assert cache.update(update(kind, ("a", ID, {0: -2}))) == [TopicPartition("a", 0)]
    assert cache.update(update(INCREMENTAL, ("a", OTHER, {0: 1}))) == []


def test_a_deleted_topic_and_its_successor_may_come_in_one_update() -> None:
    cache = MetadataCache()
    cache.update(update(INCREMENTAL, ("a", ID, {0: 1, 1: 1})))
    gone = cache.update(update(INCREMENTAL, ("a", ID, {0: -2, 1: -2}), ("a", OTHER, {0: 1})))
    assert gone == [TopicPartition("a", 0), TopicPartition("a", 1)]
    assert (cache.topics["a"].id, list(cache.topics["a"].partitions)) == (OTHER, [0])


def test_a_name_collides_with_known_topics_and_not_with_deleted_ones() -> None:
    cache = MetadataCache()
    cache.update(update(INCREMENTAL, ("a.b", ID, {0: 1}), ("c.d", OTHER, {0: 1})))
    assert cache.collides("a_b")
    assert not cache.collides("a-b")
    cache.update(update(INCREMENTAL, ("a.b", ID, {0: -2})))
    assert not cache.collides("a_b")
    cache.update(update(FULL))
    assert not cache.collides("c_d")


def test_a_name_collides_as_long_as_one_such_topic_is_left() -> None:
    cache = MetadataCache()
    cache.update(update(INCREMENTAL, ("a.b", ID, {0: 1}), ("a_b", OTHER, {0: 1})))  # an old tool's
    for name, topic_id, collides in (("a.b", ID, True), ("a_b", OTHER, False)):
        cache.update(update(INCREMENTAL, (name, topic_id, {0: -2})))
        assert cache.collides("a_b") == collides


def test_a_recreated_topic_counts_once_for_collisions() -> None:
    cache = MetadataCache()
    for made in (ID, OTHER):
        cache.update(update(INCREMENTAL, ("a.b", made, {0: 1}), ("c", made, {0: 1})))
    cache.update(update(INCREMENTAL, ("a.b", OTHER, {0: -2})))
    assert not cache.collides("a_b")


def test_a_late_deletion_does_not_touch_a_topic_of_the_same_name() -> None:
    cache = MetadataCache()
    cache.update(update(INCREMENTAL, ("a", OTHER, {0: 1})))
    cache.update(update(INCREMENTAL, ("a", ID, {0: -2})))
    assert cache.has(TopicPartition("a", 0))
