"""Who is in sync, what counts for the high watermark, and what is proposed for the ISR."""

from __future__ import annotations

import pytest

from kdist.model import LeaderAndIsr
from kdist.replication.in_sync import FollowerFetch, InSyncReplicas

LAG_MS = 10_000
LEADER, SECOND, THIRD = 1, 2, 3


class Stage:
    """A leader whose log ended at 10 when its epoch began, at the time 0."""

    def __init__(self, *isr: int) -> None:
        self.dead: set[int] = set()
        self.in_sync = InSyncReplicas(
            LEADER, lambda: 10, LAG_MS, lambda each: each not in self.dead
        )
        self.take(*isr)

    def take(self, *isr: int, now_ms: int = 0) -> None:
        state = LeaderAndIsr(LEADER, 5, isr, 1, 7)
        self.in_sync.take(state, (LEADER, SECOND, THIRD), now_ms)

    def fetch(self, broker_id: int, offset: int, end: int, now_ms: int = 0) -> None:
        fetch = FollowerFetch(broker_id, offset, 0)
        self.in_sync.remotes[broker_id].note(fetch, end, now_ms)

    def committed(self, end: int, now_ms: int = 0) -> int:
        return self.in_sync.committed_end(end, now_ms)


def test_nothing_is_committed_before_every_member_has_fetched_in_the_epoch() -> None:
    stage = Stage(LEADER, SECOND, THIRD)
    stage.fetch(SECOND, 12, 15)
    assert stage.committed(15) == -1
    stage.fetch(THIRD, 14, 15)
    assert stage.committed(15) == 12


def test_what_a_proposed_member_lacks_is_not_committed() -> None:
    stage = Stage(LEADER, SECOND)
    stage.fetch(SECOND, 15, 15)
    stage.fetch(THIRD, 12, 15, -LAG_MS * 2)
    assert stage.committed(15) == 15
    stage.in_sync.propose((LEADER, SECOND, THIRD))
    assert stage.committed(15) == 12
    stage.in_sync.withdraw()
    assert stage.committed(15) == 15


def test_what_a_member_lacks_is_not_committed_until_its_removal_is_confirmed() -> None:
    stage = Stage(LEADER, SECOND, THIRD)
    stage.fetch(SECOND, 15, 15)
    stage.fetch(THIRD, 11, 15)
    stage.in_sync.propose((LEADER, SECOND))
    assert stage.committed(15, LAG_MS * 2) == 11
    stage.take(LEADER, SECOND, now_ms=LAG_MS * 2)
    assert stage.committed(15, LAG_MS * 2) == 15


def test_a_follower_that_keeps_up_holds_the_high_watermark_back() -> None:
    stage = Stage(LEADER, SECOND)
    stage.fetch(SECOND, 20, 20)
    stage.fetch(THIRD, 18, 18, now_ms=1)
    assert stage.committed(20, 2) == 18
    assert stage.committed(20, LAG_MS + 1) == 18
    assert stage.committed(20, LAG_MS + 2) == 20  # it no longer keeps up
    stage.dead.add(THIRD)
    assert stage.committed(20, 2) == 20


def test_the_high_watermark_waits_for_members_and_who_keeps_up() -> None:
    stage = Stage(LEADER, SECOND)
    stage.fetch(SECOND, 20, 20)
    assert stage.in_sync.waits_for(SECOND, LAG_MS * 2)
    assert not stage.in_sync.waits_for(THIRD, 0)  # it has not fetched
    stage.fetch(THIRD, 18, 18, now_ms=1)
    assert stage.in_sync.waits_for(THIRD, LAG_MS + 1)
    assert not stage.in_sync.waits_for(THIRD, LAG_MS + 2)


def test_a_follower_that_has_nothing_yet_and_keeps_up_holds_the_high_watermark_back() -> None:
    stage = Stage(LEADER, SECOND)
    stage.fetch(SECOND, 20, 20)
    assert stage.committed(20, 1) == 20  # the third has not fetched
    stage.fetch(THIRD, 0, 0, now_ms=1)
    assert stage.committed(20, 1) == 0


def test_a_member_that_was_at_the_end_until_now_is_not_behind() -> None:
    stage = Stage(LEADER, SECOND, THIRD)
    for each in (SECOND, THIRD):
        stage.fetch(each, 15, 15)
    idle_ms = LAG_MS * 100
    assert stage.in_sync.without_laggards(15, idle_ms) is None
    stage.in_sync.leave_behind(15, idle_ms)
    assert stage.in_sync.without_laggards(16, idle_ms + LAG_MS) is None
    assert stage.in_sync.without_laggards(16, idle_ms + LAG_MS + 1) == (LEADER,)


def test_a_member_that_never_reaches_the_end_stays_while_each_fetch_reaches_the_end_before() -> (
    None
):
    stage = Stage(LEADER, SECOND, THIRD)
    for now_ms in range(0, 5 * LAG_MS, 1000):
        end = 100 + now_ms
        stage.fetch(SECOND, end - 1000, end, now_ms)
        stage.fetch(THIRD, 50, end, now_ms)
    assert stage.in_sync.without_laggards(end, now_ms) == (LEADER, SECOND)


def test_nothing_more_is_proposed_while_a_proposal_is_under_way() -> None:
    stage = Stage(LEADER, SECOND, THIRD)
    stage.in_sync.propose((LEADER, SECOND))
    assert stage.in_sync.without_laggards(15, LAG_MS * 5) is None
    stage.fetch(THIRD, 15, 15)
    assert stage.in_sync.with_follower(THIRD, 0, 12) is None


@pytest.mark.parametrize(
    ("offset", "high_watermark", "joins"),
    [
        (15, 12, True),
        (12, 12, True),
        (11, 12, False),  # it lacks what is committed
        (9, 8, False),  # it may lack what an earlier leader has committed (KAFKA-7128)
        (10, 8, True),
    ],
)
def test_a_follower_joins_with_all_that_may_be_committed(
    offset: int, high_watermark: int, joins: bool
) -> None:
    stage = Stage(LEADER, SECOND)
    stage.fetch(THIRD, offset, 15)
    found = stage.in_sync.with_follower(THIRD, 0, high_watermark)
    assert found == ((LEADER, SECOND, THIRD) if joins else None)


def test_a_follower_whose_log_begins_before_the_leaders_does_not_join() -> None:
    stage = Stage(LEADER, SECOND)
    stage.in_sync.remotes[THIRD].note(FollowerFetch(THIRD, 15, 11), 15, 0)
    assert stage.in_sync.with_follower(THIRD, 12, 12) is None
    assert stage.in_sync.with_another(12, 12, 15, 0) is None
    assert stage.in_sync.with_follower(THIRD, 11, 12) == (LEADER, SECOND, THIRD)


def test_a_dead_follower_does_not_join() -> None:
    stage = Stage(LEADER, SECOND)
    stage.fetch(THIRD, 15, 15)
    stage.dead.add(THIRD)
    assert stage.in_sync.with_follower(THIRD, 0, 12) is None


def test_a_member_outside_the_assignment_counts_until_it_is_gone() -> None:
    stage = Stage(LEADER, 9)  # KAFKA-9672
    assert stage.committed(15) == -1
    stage.take(LEADER, SECOND)
    assert 9 not in stage.in_sync.remotes


def test_a_proposal_tells_the_members_broker_epochs_as_far_as_they_told_them() -> None:
    stage = Stage(LEADER, SECOND, THIRD)
    stage.in_sync.remotes[SECOND].note(FollowerFetch(SECOND, 15, 0, 77), 15, 0)
    assert stage.in_sync.broker_epochs((LEADER, SECOND, THIRD), 70) == {
        LEADER: 70,
        SECOND: 77,
        THIRD: -1,
    }


def test_the_low_watermark_is_the_lowest_start_of_the_living() -> None:
    stage = Stage(LEADER, SECOND, THIRD)
    assert stage.in_sync.lowest_start(4) == -1
    stage.in_sync.remotes[SECOND].note(FollowerFetch(SECOND, 15, 3), 15, 0)
    stage.dead.add(THIRD)
    assert stage.in_sync.lowest_start(4) == 3


def test_a_follower_at_the_end_that_could_not_join_when_it_fetched_may_join_later() -> None:
    stage = Stage(LEADER)
    stage.fetch(SECOND, 15, 15)
    stage.in_sync.propose((LEADER, SECOND))
    stage.fetch(THIRD, 15, 15)
    assert stage.in_sync.with_another(0, 12, 15, 0) is None  # one proposal at a time
    stage.take(LEADER, SECOND)
    assert stage.in_sync.with_another(0, 12, 15, 0) == (LEADER, SECOND, THIRD)
    assert stage.in_sync.with_another(0, 12, 16, LAG_MS) == (LEADER, SECOND, THIRD)
    assert stage.in_sync.with_another(0, 12, 16, LAG_MS + 1) is None  # it does not keep up
    stage.dead.add(THIRD)
    assert stage.in_sync.with_another(0, 12, 15, 0) is None


def test_a_follower_that_is_refused_does_not_keep_another_out() -> None:
    stage = Stage(LEADER)
    for each in (SECOND, THIRD):
        stage.fetch(each, 15, 15)
    found = []
    for _ in range(3):
        isr = stage.in_sync.with_another(0, 12, 15, 0)
        assert isr is not None
        found.append(isr[-1])
        stage.in_sync.propose(isr)
        stage.in_sync.withdraw()
    assert found == [SECOND, THIRD, SECOND]


def test_consumers_go_on_at_live_members_of_the_isr_that_have_their_offset() -> None:
    stage = Stage(LEADER, SECOND)

    def readable(offset: int) -> list[int]:
        return [each.broker_id for each in stage.in_sync.readable_at(offset)]

    assert readable(0) == []  # it has not fetched in this epoch
    stage.in_sync.remotes[SECOND].note(FollowerFetch(SECOND, 15, 12), 15, 0)
    stage.fetch(THIRD, 15, 15)
    assert [readable(offset) for offset in (11, 12, 15, 16)] == [[], [SECOND], [SECOND], []]
    stage.in_sync.propose((LEADER,))
    assert readable(12) == []
    stage.in_sync.withdraw()
    stage.dead.add(SECOND)
    assert readable(12) == []
