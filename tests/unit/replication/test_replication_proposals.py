"""When a leader proposes an ISR: also for followers that have nothing more to tell."""

from __future__ import annotations

import asyncio
import logging
import math

import pytest

from kdist.config.replication import ReplicationSettings
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.replication.alter_partition_manager import CommittedIsr, IsrChange, IsrChanges, Proposal
from kdist.replication.in_sync import FollowerFetch
from kdist.replication.peers import ALONE
from tests.unit.replication.replication_world import BROKER, VIEWS, World, append

SECOND, THIRD = 2, 3
LAG_MS = ReplicationSettings().lag_time_max_ms


class Stage:
    """A leader that is alone in the ISR; both others have all that there is, and fetch once."""

    def __init__(self) -> None:
        self.dead: set[int] = set()
        self.proposed: list[tuple[Proposal, asyncio.Future[CommittedIsr]]] = []
        self.world = World()
        self.partition = partition = self.world.lead(replicas=(BROKER, SECOND, THIRD))
        peers = ALONE._replace(is_alive=lambda each: each not in self.dead, propose=self.propose)
        partition._context = partition._context._replace(peers=peers)
        state = partition.state._replace(leader_epoch=partition.leader_epoch + 1)
        partition.lead_or_follow(state, (BROKER, SECOND, THIRD))

    def propose(self, proposal: Proposal) -> asyncio.Future[CommittedIsr]:
        answer: asyncio.Future[CommittedIsr] = self.world.tasks.loop.create_future()
        self.proposed.append((proposal, answer))
        return answer

    def fetch(self, broker_id: int) -> None:
        end_offset = self.partition.log.end_offset
        self.partition.follower_fetched(FollowerFetch(broker_id, end_offset, 0))

    @property
    def isrs(self) -> list[tuple[int, ...]]:
        return [tuple(proposal.isr) for proposal, _ in self.proposed]


def test_a_follower_that_fetched_during_a_proposal_is_proposed_after_it() -> None:
    stage = Stage()
    stage.fetch(SECOND)
    stage.fetch(THIRD)
    assert stage.isrs == [(BROKER, SECOND)]
    stage.proposed[0][1].set_result(CommittedIsr((BROKER, SECOND), 9))
    stage.world.settle()
    assert stage.isrs[1:] == [(BROKER, SECOND, THIRD)]


@pytest.mark.parametrize(("wait_ms", "proposed"), [(400, []), (600, [(BROKER, THIRD)])])
def test_after_a_refusal_another_follower_is_proposed_in_a_while(
    wait_ms: int, proposed: list[tuple[int, ...]]
) -> None:
    stage = Stage()
    stage.fetch(SECOND)
    stage.fetch(THIRD)
    stage.proposed[0][1].set_exception(ApiError(Error.INELIGIBLE_REPLICA))
    stage.world.settle(wait_ms)
    assert stage.isrs[1:] == proposed


def test_a_follower_that_was_not_known_to_be_alive_is_proposed_when_it_is() -> None:
    stage = Stage()
    stage.dead.add(SECOND)
    stage.fetch(SECOND)
    assert stage.isrs == []
    stage.dead.clear()
    stage.world.replicas.review_isrs()
    assert stage.isrs == [(BROKER, SECOND)]


def test_a_follower_at_the_end_of_an_idle_partition_is_proposed_however_long_ago_it_fetched() -> (
    None
):
    stage = Stage()
    stage.dead.add(SECOND)
    stage.fetch(SECOND)
    stage.world.clock.advance_ms(10 * LAG_MS)
    stage.dead.clear()
    stage.world.replicas.review_isrs()
    assert stage.isrs == [(BROKER, SECOND)]


def test_a_leader_whose_log_is_being_cut_off_commits_nothing_and_counts_nobody() -> None:
    """An earlier leader has told it to, and it is elected before that has ended."""
    stage = Stage()
    partition, world = stage.partition, stage.world
    for value in (b"a", b"b", b"c"):
        append(world, partition, value)
    partition.high_watermark = 0
    world.directory.trimmer.truncate(partition.log, 1, lambda _: None)
    partition.advance_high_watermark()
    stage.fetch(SECOND)
    assert (partition.high_watermark, stage.isrs) == (0, [])
    world.settle()
    assert (partition.log.end_offset, partition.high_watermark) == (1, 1)
    assert partition.in_sync is not None
    assert partition.in_sync.remotes[SECOND].end_offset == -1


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (Error.UNKNOWN_TOPIC_ID, True),
        (Error.INVALID_REQUEST, True),
        (Error.FENCED_LEADER_EPOCH, False),
        (Error.INVALID_UPDATE_VERSION, False),
    ],
)
def test_a_proposal_that_no_newer_state_has_overtaken_is_tried_again(
    error: Error, again: bool
) -> None:
    stage = Stage()
    stage.fetch(SECOND)
    stage.proposed[0][1].set_exception(ApiError(error))
    stage.world.settle(600)
    assert stage.isrs == [(BROKER, SECOND)] * (1 + again)
    assert stage.partition.in_sync is not None
    assert stage.partition.in_sync.proposed == (BROKER, SECOND)  # which it still reckons with


def test_nothing_is_committed_while_others_than_the_isr_may_be_elected() -> None:
    """As after `min.insync.replicas` was lowered: the leader hears of it before the controller."""
    stage = Stage()
    world, partition = stage.world, stage.partition
    told = {"isr": [BROKER], "replicas": [BROKER, SECOND, THIRD], "leader_epoch": 9}
    world.tell(**told, partition_epoch=1, eligible_replicas=[SECOND])
    append(world, partition, b"a")
    assert (partition.log.settings.min_insync_replicas, partition.high_watermark) == (1, 0)
    world.tell(**told, partition_epoch=2)
    assert partition.high_watermark == 1


def test_nothing_is_committed_once_the_answer_says_that_somebody_is_eligible() -> None:
    """As after `min.insync.replicas` was raised: the controller hears of it before the leader."""
    stage = Stage()
    partition = stage.partition
    stage.fetch(SECOND)
    stage.proposed[0][1].set_result(CommittedIsr((BROKER, SECOND), 9))
    stage.world.settle()
    stage.dead.add(SECOND)
    partition._propose((BROKER,))
    append(stage.world, partition, b"a")
    stage.proposed[-1][1].set_result(CommittedIsr((BROKER,), 10, eligible=(SECOND,)))
    stage.world.settle()
    assert (partition.state.isr, partition.high_watermark) == ((BROKER,), 0)


@pytest.mark.parametrize(("partitions", "lines"), [(3, 3), (4, 1)])
def test_isrs_that_change_together_are_told_in_a_line_when_they_are_many(
    partitions: int, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    changes = IsrChanges(world.tasks, world.metrics)
    caplog.set_level(logging.INFO)
    for number in range(partitions):
        changes.note(IsrChange(TopicPartition("clicks", number), (1, 2), (1,)))
    changes.note(IsrChange(TopicPartition("views", 0), (1,), (1, 2)))
    changes.note(IsrChange(TopicPartition("views", 1), (1, 2), (1, 2)))
    world.settle()
    smaller, *larger = [each.getMessage() for each in caplog.records]
    assert smaller == "views-0: the ISR is [1], was [1, 2]"
    assert len(larger) == lines
    if lines == 1:
        assert larger[0].startswith("4 ISRs are larger now: clicks-0 [1, 2], ")
    assert (world.metrics.isr_expands, world.metrics.isr_shrinks) == (partitions, 1)


def test_an_isr_that_changes_alone_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    changes = IsrChanges(world.tasks, world.metrics)
    changes.note(IsrChange(TopicPartition("views", 0), (1,), (1, 2)))
    world.settle()
    assert [each.levelno for each in caplog.records] == [logging.WARNING]


def test_replicas_that_a_move_adds_are_missed_by_nobody() -> None:
    stage = Stage()
    world, partition = stage.world, stage.partition
    told = {"isr": [BROKER], "replicas": [BROKER, SECOND, THIRD], "leader_epoch": 9}
    world.lead(min_insync_replicas=2)
    world.tell(**told, partition_epoch=1)
    partition.configure(world.topic)
    assert (partition.is_under_min_isr, partition.is_under_replicated) == (True, True)
    world.tell(**told, partition_epoch=2, adding_replicas=[SECOND, THIRD])
    assert (partition.is_under_min_isr, partition.is_under_replicated) == (False, False)
    assert not partition.is_at_min_isr
    append(world, partition, b"a")
    assert partition.high_watermark == 1
    assert world.metrics.reassigning() == 1


def in_sync_of_three(stage: Stage) -> None:
    """Both followers join the ISR."""
    for number, broker_id in enumerate((SECOND, THIRD)):
        stage.fetch(broker_id)
        proposal, answer = stage.proposed.pop()
        answer.set_result(CommittedIsr(tuple(proposal.isr), 9 + number))
        stage.world.settle()
    assert stage.partition.state.isr == (BROKER, SECOND, THIRD)


def test_a_follower_that_stops_fetching_is_to_leave_the_isr_once_it_lags_for_too_long() -> None:
    stage = Stage()
    in_sync_of_three(stage)
    append(stage.world, stage.partition, b"a")
    stage.world.clock.advance_ms(LAG_MS)
    stage.fetch(SECOND)
    stage.world.replicas.review_isrs()
    assert stage.isrs == []
    stage.world.clock.advance_ms(1)
    stage.world.replicas.review_isrs()
    assert stage.isrs == [(BROKER, SECOND)]


def test_a_follower_at_the_end_of_an_idle_partition_lags_from_the_next_record_on() -> None:
    stage = Stage()
    in_sync_of_three(stage)
    stage.world.clock.advance_ms(10 * LAG_MS)
    append(stage.world, stage.partition, b"a")
    stage.world.clock.advance_ms(LAG_MS)
    stage.world.replicas.review_isrs()
    assert stage.isrs == []
    stage.world.clock.advance_ms(1)
    stage.world.replicas.review_isrs()
    assert stage.isrs == [(BROKER,)]


def test_a_proposal_builds_on_the_state_that_was_written_last() -> None:
    stage = Stage()
    in_sync_of_three(stage)
    assert stage.partition.state.zk_version == 10
    append(stage.world, stage.partition, b"a")
    stage.world.clock.advance_ms(LAG_MS + 1)
    stage.world.replicas.review_isrs()
    ((proposal, _),) = stage.proposed
    assert proposal.partition_epoch == 10


def test_a_leader_whose_proposal_was_refused_is_told_of_the_next_epochs_like_any_other() -> None:
    stage = Stage()
    stage.fetch(SECOND)
    stage.proposed[0][1].set_exception(ApiError(Error.INELIGIBLE_REPLICA))
    stage.world.settle()
    for _ in range(2):
        state = stage.partition.state
        newer = state._replace(leader_epoch=state.leader_epoch + 1)
        stage.partition.lead_or_follow(newer, stage.partition.replicas)
    stage.world.settle(600)
    stage.fetch(SECOND)
    assert stage.proposed[-1][0].leader_epoch == stage.partition.leader_epoch


def test_an_answer_to_a_proposal_of_an_earlier_epoch_is_not_waited_for() -> None:
    stage = Stage()
    stage.fetch(SECOND)
    for _ in range(2):
        state = stage.partition.state
        newer = state._replace(leader_epoch=state.leader_epoch + 1)
        stage.partition.lead_or_follow(newer, stage.partition.replicas)
    assert stage.proposed[0][1].cancelled()
    assert stage.partition.state.isr == (BROKER,)


def test_a_leader_without_other_replicas_says_that_it_has_recovered() -> None:
    stage = Stage()
    partition = stage.world.lead(VIEWS)
    partition._context = stage.partition._context._replace(
        peers=stage.partition._context.peers._replace(broker_epoch=lambda: 33)
    )
    state = partition.state._replace(leader_epoch=1, is_recovering=True)
    partition.lead_or_follow(state, (BROKER,))
    ((proposal, answer),) = stage.proposed
    assert proposal.isr == {BROKER: 33}
    answer.set_result(CommittedIsr((BROKER,), 5))
    stage.world.settle()
    assert not partition.state.is_recovering


@pytest.mark.parametrize("replicas", [(BROKER,), (BROKER, SECOND)])
def test_a_leader_that_has_recovered_says_so_again_after_it_was_refused(
    replicas: tuple[int, ...],
) -> None:
    stage = Stage()
    partition = stage.world.lead(VIEWS)
    peers = stage.partition._context.peers._replace(broker_epoch=lambda: 33)
    partition._context = stage.partition._context._replace(peers=peers)
    state = partition.state._replace(leader_epoch=1, is_recovering=True)
    partition.lead_or_follow(state, replicas)
    stage.proposed.pop()[1].set_exception(ApiError(Error.INELIGIBLE_REPLICA))
    stage.world.settle(600)
    ((proposal, answer),) = stage.proposed
    assert proposal.isr == {BROKER: 33}
    answer.set_result(CommittedIsr((BROKER,), 5))
    stage.world.settle(600)
    assert not partition.state.is_recovering
    assert len(stage.proposed) == 1


def test_what_a_thread_has_written_is_committed_by_a_leader_alone_in_the_isr() -> None:
    stage = Stage()
    writers = stage.partition._context.writers
    writers.thread_until_ns = stage.world.clock.monotonic_ns() + 10**9
    assert append(stage.world, stage.partition, b"a") == -1  # a thread is to write it
    stage.world.settle()
    assert (stage.partition.log.end_offset, stage.partition.high_watermark) == (1, 1)


def test_a_follower_lacks_at_most_the_records_that_there_are() -> None:
    stage = Stage()
    lag_max = stage.world.metrics.replica_lag_max
    append(stage.world, stage.partition, *[b"x"] * 100)
    assert math.isnan(lag_max())  # nobody has fetched in this epoch
    stage.fetch(SECOND)
    assert lag_max() == 0  # and of the third it is not known
    append(stage.world, stage.partition, *[b"x"] * 50)
    assert lag_max() == 50
    stage.partition.follower_fetched(FollowerFetch(THIRD, 20, 0))
    assert lag_max() == 130
    stage.partition.log.start_offset = 140  # as by retention
    assert lag_max() == 10


def test_a_leader_without_followers_has_none_that_lacks_records() -> None:
    world = World()
    append(world, world.lead(), b"x")
    assert world.metrics.replica_lag_max() == 0
