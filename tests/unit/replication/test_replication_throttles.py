"""Replicas out of the ISR are copied no faster than is allowed, and those in it as ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replication_world import BROKER, batch
from test_replication_fetcher import Stage

from kdist.config.kinds import INT64_MAX
from kdist.config.replication import ReplicationSettings
from kdist.replication.throttles import Throttle, Throttles, is_listed
from kdist.runtime.clock import VirtualClock

RECORDS = bytes(batch([b"x" * 1_000]))


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
    throttle = Throttle(clock)
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
    throttle = Throttle(clock)
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
    throttles = Throttles(clock)
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
