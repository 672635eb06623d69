"""What a follower tells its leader, request by request."""

from __future__ import annotations

import uuid

import pytest
from replication_world import BROKER, CLICKS, TOPIC_ID, VIEWS, World

from kdist.config.replication import ReplicationSettings
from kdist.model import ZERO_UUID, TopicPartition
from kdist.protocol.fetch import FetchRequest
from kdist.replication.follower_session import BACKED_OFF, READY, FollowedPartition, FollowerSession
from kdist.replication.leadership import Following

LEADER = 2
NEWEST = 17


class Stage:
    """Two partitions that are followed."""

    def __init__(self) -> None:
        self.world = World()
        self.session = FollowerSession(BROKER, lambda: 70, ReplicationSettings())
        self.session.begin(NEWEST)
        self.followed: dict[TopicPartition, FollowedPartition] = {}
        for key in (CLICKS, VIEWS):
            self.world.tell(
                key,
                leader=LEADER,
                leader_epoch=4,
                isr=[LEADER],
                replicas=[LEADER, BROKER],
                topic_id=uuid.uuid5(TOPIC_ID, key.topic),
            )
            partition = self.world.replicas.partitions[key]
            role = partition.role
            assert isinstance(role, Following)
            self.followed[key] = FollowedPartition(partition, role, first_round=0)

    def request(self, *dirty: TopicPartition, is_first: bool = True) -> FetchRequest | None:
        return self.session.request(self.followed, dirty, 0, is_first=is_first)

    def named(self, *dirty: TopicPartition) -> list[str]:
        """The topics that a request about these names; those to forget have a minus."""
        request = self.request(*dirty)
        assert request is not None
        names = {uuid.uuid5(TOPIC_ID, key.topic): key.topic for key in (CLICKS, VIEWS)}
        told = [topic.topic or names[topic.topic_id] for topic in request.topics]
        gone = [each.topic or names[each.topic_id] for each in request.forgotten_topics_data]
        return [*told, *(f"-{each}" for each in gone)]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_the_first_request_names_all_and_the_next_only_what_is_new(stage: Stage) -> None:
    assert stage.named() == ["clicks", "views"]
    stage.session.opened(9)
    assert stage.named() == []
    stage.followed[VIEWS].partition.log.start_offset = 0
    stage.followed[VIEWS].partition.log.reserved_offset = 3
    assert stage.named(VIEWS, CLICKS) == ["views"]


def test_epochs_count_up_and_the_id_is_the_leaders(stage: Stage) -> None:
    told = []
    for _ in range(3):
        request = stage.request()
        assert request is not None
        told.append((request.session_id, request.session_epoch))
        stage.session.opened(9)
    assert told == [(0, 0), (9, 1), (9, 2)]


def test_what_is_not_ready_is_forgotten_and_named_again(stage: Stage) -> None:
    stage.named()
    stage.session.opened(9)
    stage.followed[CLICKS].state = BACKED_OFF
    assert stage.named(CLICKS) == ["-clicks"]
    assert stage.named(CLICKS) == []
    stage.followed[CLICKS].state = READY
    assert stage.named(CLICKS) == ["clicks"]
    del stage.followed[CLICKS]
    assert stage.named(CLICKS) == ["-clicks"]


def test_without_a_session_every_request_names_all(stage: Stage) -> None:
    assert stage.named() == ["clicks", "views"]
    stage.session.opened(0)
    assert stage.named() == ["clicks", "views"]


def test_a_fetch_overtakes_another_only_with_something_to_tell(stage: Stage) -> None:
    stage.request()
    stage.session.opened(9)
    assert stage.request(CLICKS, is_first=False) is None
    stage.followed[CLICKS].partition.log.reserved_offset = 3
    assert stage.request(CLICKS, is_first=False) is not None


def test_with_nothing_followed_there_is_nothing_to_fetch(stage: Stage) -> None:
    stage.followed.clear()
    assert stage.request() is None


def test_a_topic_made_anew_is_another_one(stage: Stage) -> None:
    stage.named()
    stage.session.opened(9)
    stage.followed[CLICKS].partition.topic_id = uuid.UUID(int=1)
    request = stage.request(CLICKS)
    assert request is not None
    assert [topic.topic_id for topic in request.topics] == [uuid.UUID(int=1)]
    assert len(request.forgotten_topics_data) == 1


def test_topics_without_ids_go_by_their_names(stage: Stage) -> None:
    stage.followed[CLICKS].partition.topic_id = ZERO_UUID
    request = stage.request()
    assert request is not None
    assert stage.session.version == 12
    assert [topic.topic for topic in request.topics] == ["clicks", "views"]
    assert (request.replica_id, request.replica_state) == (BROKER, None)


def test_the_follower_tells_its_broker_epoch_and_where_its_log_ends(stage: Stage) -> None:
    log = stage.followed[CLICKS].partition.log
    log.epochs.assign(3, 0)
    request = stage.request()
    assert request is not None
    assert request.replica_state is not None
    state = request.replica_state
    assert (request.follower_id, state.replica_epoch) == (BROKER, 70)
    (asked,) = request.topics[0].partitions
    assert (asked.current_leader_epoch, asked.last_fetched_epoch) == (4, 3)


def test_an_old_leader_is_told_no_epoch_of_batches(stage: Stage) -> None:
    stage.session.begin(11)
    stage.followed[CLICKS].partition.log.epochs.assign(3, 0)
    request = stage.request()
    assert request is not None
    assert request.topics[0].partitions[0].last_fetched_epoch == -1
    assert not stage.session.finds_divergence


def test_a_partition_without_an_id_brings_a_session_down_to_names(stage: Stage) -> None:
    stage.named()
    stage.session.opened(9)
    stage.followed[CLICKS].partition.topic_id = ZERO_UUID
    request = stage.request(CLICKS)
    assert request is not None
    assert (stage.session.version, request.session_id, request.session_epoch) == (12, 9, 0)
    assert [topic.topic for topic in request.topics] == ["clicks", "views"]


def test_epochs_begin_again_with_1_after_the_largest(stage: Stage) -> None:
    """0 and -1 would begin another session, or end this one (KIP-227)."""
    stage.request()
    stage.session.opened(9)
    stage.session.epoch = 2**31 - 1
    assert [request.session_epoch for _ in range(3) if (request := stage.request())] == [
        2**31 - 1,
        1,
        2,
    ]


def test_partitions_are_asked_for_by_their_numbers(stage: Stage) -> None:
    request = stage.request()
    assert request is not None
    assert [each.partition for topic in request.topics for each in topic.partitions] == [0, 3]
