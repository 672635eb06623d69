"""What a follower does with its leader's answers: where it cuts its log, and how fast it copies."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from fetcher_world import LEADER, NEWEST, Leader, Stage
from hypothesis import given
from hypothesis import strategies as st
from replication_world import BROKER, CLICKS, append, batch

from kdist.config.kinds import INT64_MAX
from kdist.config.replication import ReplicationSettings
from kdist.errors import ApiError, Error
from kdist.protocol import list_offsets
from kdist.protocol.api import Api
from kdist.protocol.fetch import (
    DivergingEpoch,
)
from kdist.protocol.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResult,
)
from kdist.protocol.offset_for_leader_epoch import EpochEnd as PartitionEnd
from kdist.protocol.offset_for_leader_epoch import (
    EpochEndTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kdist.replication.follower_session import BACKED_OFF, FENCED, READY, truncation_offset
from kdist.replication.throttles import ReplicationThrottle, ReplicationThrottles, is_listed
from kdist.storage.epochs import EpochEnd, EpochStart, LeaderEpochs
from kdist.testing.virtual_clock import VirtualClock


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.fetcher.close()
    made.world.settle()


END = 100

RECORDS = bytes(batch([b"x" * 1_000]))


def test_a_refusal_of_the_last_epoch_does_not_stop_what_is_followed_in_the_next(
    stage: Stage,
) -> None:
    stage.follow(5)  # the leader has heard of it, too, and now answers the fetch that waited
    assert len(stage.leader.asked) == 2
    stage.leader.answer(error_code=Error.FENCED_LEADER_EPOCH)
    assert stage.asks() == [(5, 0)]
    stage.leader.answer(records=bytes(batch([b"a", b"b"], leader_epoch=5)))
    assert stage.end == 2
    assert stage.asks() == [(5, 2)]


def test_records_that_were_asked_for_in_the_last_epoch_are_asked_for_again(stage: Stage) -> None:
    """The leader may have cut them off since, if another led in between."""
    stage.follow(6)
    stage.leader.answer(records=bytes(batch([b"lost"], leader_epoch=4)))
    assert stage.end == 0
    assert stage.asks() == [(6, 0)]


def test_records_that_come_twice_are_dropped_and_their_offsets_taken(stage: Stage) -> None:
    other = stage.follow_another()  # so a second fetch overtakes the first, with nothing of this
    assert [len(request.topics) for _, request in stage.leader.asked] == [0, 1]
    records = bytes(batch([b"a", b"b"], leader_epoch=4))
    stage.leader.answer(records=records)
    assert stage.asks() == [(4, 0), (4, 2)]  # of the other one, and of this
    stage.leader.answer(records=records, high_watermark=1)
    assert (stage.end, stage.partition.high_watermark) == (2, 1)
    assert stage.world.metrics.failed_replications == 0
    assert stage.fetcher.followed[CLICKS].state is READY
    assert other.log.end_offset == 0


def test_an_answered_fetch_is_not_given_up_when_its_time_is_over(stage: Stage) -> None:
    slot, _ = stage.leader.asked[0]
    assert not slot.done()
    stage.leader.answer(high_watermark=0)
    assert slot.done()


def test_a_lost_connection_is_closed_and_another_made_to_where_the_leader_is(stage: Stage) -> None:
    before = stage.leader
    stage.leader = Leader()
    stage.fetcher.failed(ApiError(Error.NETWORK_EXCEPTION))
    assert before.is_closed
    stage.world.settle(100)
    assert stage.connected == [("m2", 9092)] * 2
    assert stage.asks() == [(4, 0)]


def test_a_partition_that_is_refused_again_and_again_is_asked_for_ever_less_often(
    stage: Stage,
) -> None:
    pauses = []
    for _ in range(8):
        stage.leader.refuse(Error.NOT_LEADER_OR_FOLLOWER)
        refused_ms = stage.world.clock.now_ms()
        assert stage.fetcher.followed[CLICKS].state is BACKED_OFF
        assert stage.world.tasks.run_until(lambda: stage.asks() == [(4, 0)], 5_000)
        pauses.append(round((stage.world.clock.now_ms() - refused_ms) / 20))
    assert pauses == [1, 2, 4, 8, 16, 32, 50, 50]


def test_a_partition_is_asked_for_soon_again_once_it_was_answered(stage: Stage) -> None:
    for _ in range(6):
        stage.leader.refuse(Error.NOT_LEADER_OR_FOLLOWER)
        stage.world.settle(2_000)
    stage.leader.refuse(Error.NONE)
    stage.leader.refuse(Error.NOT_LEADER_OR_FOLLOWER)
    assert stage.asks() == []
    stage.world.settle(30)
    assert stage.asks() == [(4, 0)]


def test_a_follower_whose_epoch_is_fenced_waits_for_the_controller(stage: Stage) -> None:
    stage.leader.answer(error_code=Error.FENCED_LEADER_EPOCH)
    stage.world.settle(5_000)
    assert stage.fetcher.followed[CLICKS].state is FENCED
    assert stage.asks() == []
    stage.follow(5)
    assert stage.asks() == [(5, 0)]


def test_records_that_are_corrupt_are_counted_and_asked_for_again(stage: Stage) -> None:
    records = batch([b"a"], leader_epoch=4)
    records[-1] ^= 1
    stage.leader.answer(records=bytes(records), high_watermark=1)
    assert stage.world.metrics.failed_replications == 1
    assert stage.end == 0
    stage.world.settle()
    assert stage.asks() == [(4, 0)]


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_log_is_cut_off_where_it_diverges_and_no_other_offset_of_that_answer_is_taken(
    stage: Stage, epoch: int
) -> None:
    """Its high watermark is that of a log which this one is not like (KAFKA-14704)."""
    for each in (epoch, 3):
        stage.leader.answer(
            records=bytes(batch([b"a"], base_offset=stage.end, leader_epoch=each)),
            high_watermark=0,
        )
    assert stage.end == 2
    stage.leader.answer(diverging_epoch=DivergingEpoch(epoch=epoch, end_offset=1), high_watermark=2)
    assert stage.partition.high_watermark == 0
    stage.world.settle()
    assert stage.end == 1
    assert stage.asks() == [(4, 1)]


def test_a_log_that_begins_behind_where_it_is_to_be_cut_off_begins_anew_there(
    stage: Stage,
) -> None:
    """At its own start it would lack what the leader has before that, or never fit the leader's."""
    for _ in range(4):
        stage.leader.answer(
            records=bytes(batch([b"a"], base_offset=stage.end, leader_epoch=1)), high_watermark=4
        )
    stage.leader.answer(high_watermark=4, log_start_offset=3)
    stage.world.settle()
    for _ in stage.leader.asked[1:]:
        stage.leader.answer()  # the one that was overtaken
    stage.leader.answer(diverging_epoch=DivergingEpoch(epoch=1, end_offset=2), high_watermark=2)
    stage.world.settle()
    assert (stage.partition.log.start_offset, stage.end) == (2, 2)
    assert stage.asks()[-1] == (4, 2)


def test_records_that_the_leader_deleted_are_deleted_and_the_leader_is_told(stage: Stage) -> None:
    for _ in range(2):
        stage.leader.answer(
            records=bytes(batch([b"a"], base_offset=stage.end, leader_epoch=4)),
            high_watermark=stage.end,
        )
    stage.leader.answer(high_watermark=2, log_start_offset=1)
    stage.world.settle()
    assert stage.partition.log.start_offset == 1
    _, request = stage.leader.asked[-1]
    assert [part.log_start_offset for part in request.topics[0].partitions] == [1]
    assert stage.world.failures == []


@pytest.mark.parametrize("is_retention", [False, True])
def test_a_follower_whose_log_begins_later_by_its_own_doing_tells_its_leader(
    is_retention: bool,
) -> None:
    """While a fetch waits at the leader: there may be no record to come, ever."""
    stage = Stage(segment_bytes=100, retention_bytes=0)
    for _ in range(3):
        records = bytes(batch([b"a"], base_offset=stage.end, leader_epoch=4))
        stage.leader.answer(records=records, high_watermark=stage.end)
    log, directory = stage.partition.log, stage.world.directory
    if is_retention:
        assert directory.trimmer.retain(stage.world.replicas.committed_end) == 2
    else:
        directory.trimmer.delete_records(log, 2, lambda _: None)
    stage.world.settle()
    assert log.start_offset == 2
    _, request = stage.leader.asked[-1]
    assert [part.log_start_offset for part in request.topics[0].partitions] == [2]


class OldLeader(Leader):
    """One of before Fetch 12: it does not look where logs diverge, but answers if asked for it."""

    def __init__(self, *ends: EpochEnd | Error) -> None:
        super().__init__()
        self.ends = list(ends)
        self.epochs: list[int] = []  # that it was asked for

    def version_of(self, _api: Api) -> int:
        return 11

    async def send(self, request: OffsetForLeaderEpochRequest, _version: int) -> Any:
        self.epochs.append(request.topics[0].partitions[0].leader_epoch)
        end = self.ends.pop(0)
        if isinstance(end, Error):
            raise ApiError(end)
        found = PartitionEnd(
            error_code=0, partition=0, leader_epoch=end.epoch, end_offset=end.end_offset
        )
        return OffsetForLeaderEpochResponse(topics=[EpochEndTopic(topic="", partitions=[found])])


def test_an_old_leader_is_asked_until_the_logs_do_not_diverge() -> None:
    stage = Stage()
    for epoch in (1, 3, 4):
        stage.leader.answer(records=bytes(batch([b"a"], base_offset=stage.end, leader_epoch=epoch)))
    assert (stage.end, stage.partition.log.epochs.latest) == (3, 4)
    stage.fetcher.failed(ApiError(Error.NETWORK_EXCEPTION))
    stage.leader = old = OldLeader(Error.NOT_LEADER_OR_FOLLOWER, EpochEnd(2, 2), EpochEnd(1, 1))
    stage.follow(5)
    stage.world.settle(2_000)
    assert old.epochs == [4, 4, 1]
    assert stage.end == 1
    assert stage.fetcher.followed[CLICKS].state is READY
    assert [part.fetch_offset for part in old.asked[-1][1].topics[0].partitions] == [1]


class Bounds(Leader):
    """One that refuses an offset and tells where its log begins and ends, in this version."""

    def __init__(self, start: int, end: int, version: int = 7) -> None:
        super().__init__()
        self.offsets = {EARLIEST_TIMESTAMP: start, LATEST_TIMESTAMP: end}
        self.version = version
        self.error = Error.NONE
        self.bounds_asked = 0

    def version_of(self, api: Api) -> int:
        return self.version if api is list_offsets.API else NEWEST

    async def send(self, request: ListOffsetsRequest, version: int) -> Any:
        assert (request.replica_id, version) == (BROKER, self.version)
        (topic,) = request.topics
        (part,) = topic.partitions
        assert (topic.name, part.partition_index, part.current_leader_epoch) == (*CLICKS, 4)
        self.bounds_asked += 1
        offset = self.offsets[part.timestamp]
        told = {"old_style_offsets": [offset]} if version == 0 else {"offset": offset}
        result = ListOffsetsPartitionResult(partition_index=0, error_code=self.error, **told)
        return ListOffsetsResponse(
            topics=[ListOffsetsTopicResult(name=topic.name, partitions=[result])]
        )


def out_of_range(bounds: Bounds) -> Stage:
    """A follower of three records whose next offset this leader has just refused."""
    stage = Stage()
    for offset in range(3):
        records = batch([b"a"], base_offset=offset, leader_epoch=4)
        stage.leader.answer(records=bytes(records), high_watermark=1)
    stage.leader = bounds
    stage.fetcher.failed(ApiError(Error.NETWORK_EXCEPTION))
    stage.world.settle(100)
    assert stage.asks() == [(4, 3)]
    refuse = partial(bounds.answer, error_code=Error.OFFSET_OUT_OF_RANGE)
    stage.world.tasks.call_soon(refuse)
    stage.world.settle(15)
    return stage


@pytest.mark.parametrize("version", [0, 1, 7])
def test_a_log_that_ends_beyond_its_leaders_is_cut_off_there(version: int) -> None:
    stage = out_of_range(Bounds(0, 2, version))
    stage.world.settle()
    assert (stage.end, stage.asks()) == (2, [(4, 2)])


@pytest.mark.parametrize("version", [0, 1, 7])
def test_a_log_that_ends_before_its_leaders_start_begins_anew_there(version: int) -> None:
    stage = out_of_range(Bounds(70, 80, version))
    stage.world.settle()
    assert (stage.partition.log.start_offset, stage.end) == (70, 70)
    assert stage.asks() == [(4, 70)]


def test_a_log_all_of_which_its_leader_has_deleted_begins_anew_amid_a_batch() -> None:
    stage = Stage()
    for offset in range(3):
        records = batch([b"a"], base_offset=offset, leader_epoch=2)
        stage.leader.answer(records=bytes(records), high_watermark=1)
    whole = bytes(batch([b"b"] * 4, base_offset=1, leader_epoch=4))  # it has another past
    stage.leader.answer(records=whole, high_watermark=5, log_start_offset=3)
    stage.world.settle()
    assert (stage.partition.log.start_offset, stage.end) == (3, 3)
    for _ in stage.leader.asked[1:]:
        stage.leader.answer()  # the one that was overtaken
    stage.leader.answer(records=whole, high_watermark=5, log_start_offset=3)
    stage.world.settle()
    assert (stage.partition.log.start_offset, stage.end) == (3, 5)


@pytest.mark.parametrize(("start", "end"), [(0, 3), (3, 3), (3, 9)])
def test_a_log_within_its_leaders_stays_and_is_asked_for_again(start: int, end: int) -> None:
    stage = out_of_range(Bounds(start, end))
    assert stage.fetcher.followed[CLICKS].state is BACKED_OFF
    stage.world.settle()
    assert (stage.partition.log.start_offset, stage.end) == (0, 3)
    assert stage.asks() == [(4, 3)]


def test_a_leader_that_does_not_tell_its_bounds_is_asked_again() -> None:
    bounds = Bounds(0, 2)
    bounds.error = Error.NOT_LEADER_OR_FOLLOWER
    stage = out_of_range(bounds)
    assert (bounds.bounds_asked, stage.end) == (1, 3)
    assert stage.fetcher.followed[CLICKS].state is BACKED_OFF
    stage.world.settle()
    assert stage.asks() == [(4, 3)]


class Empty(Bounds):
    """One that tells nothing of the partition, or no offset of it."""

    async def send(self, request: ListOffsetsRequest, version: int) -> Any:
        answer = await super().send(request, version)
        if version:
            answer.topics = []
        else:
            answer.topics[0].partitions[0].old_style_offsets = []
        return answer


@pytest.mark.parametrize("version", [0, 7])
def test_a_leader_whose_answer_is_empty_is_asked_again(version: int) -> None:
    """It is the leader's mistake, and the follower's broker goes on."""
    stage = out_of_range(Empty(0, 2, version))
    assert stage.fetcher.followed[CLICKS].state is BACKED_OFF
    stage.world.settle()
    assert (stage.end, stage.asks()) == (3, [(4, 3)])


# Followers that begin to lead


def diverged() -> Stage:
    """A follower with four records of epoch 3, of which its leader has two."""
    stage = Stage()
    records = batch([b"a", b"b"], leader_epoch=3) + batch(
        [b"c", b"d"], base_offset=2, leader_epoch=3
    )
    stage.leader.answer(records=bytes(records), high_watermark=2)
    return stage


def cut(stage: Stage) -> None:
    stage.leader.answer(diverging_epoch=DivergingEpoch(epoch=3, end_offset=2))


def lead(stage: Stage) -> None:
    """Have the controller tell of an epoch in which this broker leads."""
    both = [LEADER, BROKER]
    stage.world.send(leader_epoch=6, isr=[BROKER], replicas=both, partition_epoch=6)


@pytest.mark.parametrize("told", [(cut, lead), (lead, cut)])
def test_a_follower_told_to_cut_and_to_lead_in_one_tick_has_its_epoch_behind_all_its_records(
    told: tuple[Callable[[Stage], None], ...],
) -> None:
    stage = diverged()
    for each in told:
        each(stage)
    stage.world.settle()
    assert stage.partition.is_leader
    check_leads(stage, 4)
    assert append(stage.world, stage.partition, b"e") == 4


def check_leads(stage: Stage, end: int) -> None:
    log = stage.partition.log
    assert log.end_offset == end
    assert log.epochs.entries == [(3, 0), (6, end)]
    assert stage.partition.epoch_end(5) == (3, end)
    assert stage.partition.in_sync is not None
    assert stage.partition.in_sync.epoch_start() == end  # up to where a follower must have all
    assert not log.is_truncating


def test_a_follower_told_to_lead_at_any_moment_of_a_cut_has_its_epoch_where_its_log_ends() -> None:
    ends = set()
    for moment_ms in range(40):
        stage = diverged()
        cut(stage)
        stage.world.settle(moment_ms)
        lead(stage)
        stage.world.settle()
        ends.add(stage.end)
        check_leads(stage, stage.end)
    assert ends == {2, 4}


def test_a_leader_whose_appends_as_a_follower_fail_asks_no_follower_for_more_than_it_has() -> None:
    """Else no follower of an idle partition could join the ISR again."""
    stage = diverged()
    stage.partition._context.writers.thread_until_ns = 1 << 62
    stage.world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write")
    records = batch([b"e"], base_offset=4, leader_epoch=3)
    stage.leader.answer(records=bytes(records + batch([b"f"], base_offset=5, leader_epoch=4)))
    assert stage.partition.log.is_appending
    lead(stage)
    assert stage.partition.log.epochs.entries == [(3, 0), (4, 5), (6, 6)]
    stage.world.settle()
    check_leads(stage, 4)


@pytest.mark.parametrize(
    ("own", "leader", "offset"),
    [
        ([(1, 0), (3, 60)], (3, 80), 80),  # the leader's part of that epoch is shorter
        ([(1, 0), (3, 60)], (3, 100), 100),
        ([(1, 0), (3, 60)], (3, 140), 100),  # longer: nothing is to be cut off
        ([(1, 0)], (1, 0), 0),  # the leader has none of it
        ([(1, 0), (3, 60)], (1, 40), 40),  # the leader never had epoch 3
        ([(1, 0), (3, 60)], (1, 90), 60),
        ([(1, 0), (3, 60)], (2, 70), 60),  # KIP-279: it has an epoch that this log never had
        ([(5, 20)], (2, 70), 20),  # all that is left here is of later epochs
        ([], (2, 70), 70),
        ([(1, 0)], (-1, 70), 70),  # an old leader, which does not tell the epoch
        ([(1, 0)], (-1, -1), 42),  # one that has no epoch so old
    ],
)
def test_a_log_is_cut_off_where_its_epochs_leave_the_leaders(
    own: list[tuple[int, int]], leader: tuple[int, int], offset: int
) -> None:
    epochs = LeaderEpochs(EpochStart(*each) for each in own)
    assert truncation_offset(epochs, END, 42, EpochEnd(*leader)) == offset


@pytest.mark.parametrize(
    ("replicas", "listed"),
    [((), False), (("*",), True), (("3:1",), True), (("3:2", "1:1"), False), (("31:1",), False)],
)
def test_replicas_are_listed_by_partition_and_broker(
    replicas: tuple[str, ...], listed: bool
) -> None:
    assert is_listed(replicas, 3, 1) is listed


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 3_000)), max_size=30))
def test_no_more_passes_over_time_than_the_rate_and_what_came_last(
    turns: list[tuple[int, int]],
) -> None:
    clock = VirtualClock(0)
    throttle = ReplicationThrottle(clock)
    throttle.limit(1_000)
    passed = last = elapsed_ms = 0
    for wait_ms, size in turns:
        clock.advance_ms(wait_ms)
        elapsed_ms += wait_ms
        if not throttle.is_exceeded:
            throttle.record(size)
            passed, last = passed + size, size
        assert passed - last <= elapsed_ms + 1


def test_what_was_too_much_at_once_is_waited_for() -> None:
    clock = VirtualClock(0)
    throttle = ReplicationThrottle(clock)
    assert not throttle.is_exceeded
    throttle.limit(1_000)
    assert throttle.is_exceeded
    clock.advance_ms(10)
    assert not throttle.is_exceeded
    throttle.record(510)
    assert throttle.is_exceeded
    assert 500 <= throttle.pause_ms <= 502
    clock.advance_ms(throttle.pause_ms)
    assert not throttle.is_exceeded


def test_a_rate_of_nothing_lets_nothing_pass_until_it_is_another() -> None:
    clock = VirtualClock(0)
    throttles = ReplicationThrottles(clock)
    throttles.configure(ReplicationSettings(leader_throttled_rate=0))
    clock.advance_ms(100_000)
    assert throttles.leader.is_exceeded
    assert throttles.leader.pause_ms > 0
    assert not throttles.follower.is_exceeded
    throttles.configure(ReplicationSettings())
    assert throttles.leader.rate == INT64_MAX
    assert not throttles.leader.is_exceeded


@pytest.mark.parametrize(
    ("listed", "high_watermark", "is_paused"),
    [
        (f"0:{BROKER}", 5, True),
        ("*", 5, True),
        ("0:7", 5, False),
        # It has all that is committed, as who is in the ISR.
        ("*", 1, False),
    ],
)
def test_a_follower_leaves_a_throttled_partition_out_while_it_is_behind(
    listed: str, high_watermark: int, is_paused: bool
) -> None:
    stage = Stage(follower_replication_throttled_replicas=(listed,))
    stage.fetcher._context.throttle.limit(2_000)
    stage.leader.answer(records=RECORDS, high_watermark=high_watermark)
    assert stage.asks() == ([] if is_paused else [(4, 1)])
    stage.world.settle(100)
    assert stage.asks() == ([] if is_paused else [(4, 1)])
    stage.world.settle(600)
    assert stage.asks() == [(4, 1)]
