"""A group's lag, from what past looks have seen of partitions' ends."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from random import Random

import pytest

from kdist.groups.group import CommittedOffset, Group
from kdist.groups.lag import GroupLags, Lag, SeenEnds, WorstLags
from kdist.model import TopicPartition

HOUR_S, DAY_S = 3_600, 86_400
CLICKS, OTHER = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def seen(*looks: tuple[int, int]) -> SeenEnds:
    """Ends and the seconds at which they were seen."""
    made = SeenEnds()
    for end, at_s in looks:
        made.add(end, at_s * 1000)
    return made


def group_at(**offsets: int) -> Group:
    made = Group("g", 0)
    for name, offset in offsets.items():
        topic, _, number = name.rpartition("_")
        made.offsets.load(TopicPartition(topic, int(number)), CommittedOffset(offset))
    return made


@pytest.mark.parametrize(
    ("committed", "lag"),
    [
        (30, Lag(0, 0.0)),
        (31, Lag(0, 0.0)),  # of an end that was asked for before the commit
        (29, Lag(1, 15.0)),  # the last record came after the end had been 20, at 15 s
        (20, Lag(10, 15.0)),
        (19, Lag(11, 30.0)),
        (5, Lag(25, 30.0)),  # since the first look, as nobody looked before
    ],
)
def test_a_lag_is_as_old_as_the_last_look_at_which_nothing_was_missing(
    committed: int, lag: Lag
) -> None:
    assert seen((10, 0), (20, 10), (20, 15), (30, 20)).lag(committed, 30_000) == lag


def test_after_a_truncation_no_higher_end_is_remembered() -> None:
    assert seen((10, 0), (30, 10), (12, 20)).lag(10, 25_000) == Lag(2, 25.0)


GAPS_S: dict[str, Callable[[Random], int]] = {
    "every 15 s": lambda _: 15,
    "uneven": lambda random: random.randrange(10, 120),
    "with outages": lambda random: random.choice((10, 15, 15, 60, 900)),
    "rare": lambda random: random.randrange(600, 3_000),
}


@pytest.mark.parametrize("gaps", GAPS_S)
def test_a_lag_is_not_much_older_than_the_record_for_days_of_hourly_commits(gaps: str) -> None:
    """A record comes each second: that at offset `o` by `o + 1`."""
    random, made, looks = Random(28), SeenEnds(), [0]

    def is_near_the_age(committed: int) -> bool:
        age = looks[-1] - committed - 1
        after = bisect_right(looks, committed)
        between = looks[after] - looks[after - 1]
        told = made.lag(committed, looks[-1] * 1000).seconds
        return age <= told <= max(1.2 * (age + 1), age + 1 + between)

    made.add(0, 0)
    while looks[-1] < 7 * DAY_S:
        looks.append(looks[-1] + GAPS_S[gaps](random))
        made.add(looks[-1], looks[-1] * 1000)
        if looks[-1] % HOUR_S:
            assert is_near_the_age(looks[-1] // HOUR_S * HOUR_S)
    wrong = [at for at in range(0, looks[-1], 97) if not is_near_the_age(at)]
    assert wrong == [], "of groups that have stopped at some time of the week"


def test_the_looks_of_a_month_are_kept_in_few_bytes() -> None:
    made = SeenEnds()
    kept = 0
    for at_s in range(0, 30 * DAY_S, 20):
        made.add(at_s, at_s * 1000)
        kept = max(kept, len(made._ends))
    assert kept < 128
    assert made.lag(0, 30 * DAY_S * 1000).seconds == 30 * DAY_S


def test_while_nothing_is_written_the_looks_before_are_remembered() -> None:
    made = seen(*((at_s, at_s) for at_s in range(0, HOUR_S, 15)))
    for at_s in range(HOUR_S, 2 * DAY_S, 15):
        made.add(HOUR_S, at_s * 1000)
    assert made.lag(HOUR_S, 2 * DAY_S * 1000) == Lag(0, 0)
    made.add(HOUR_S + 1, 2 * DAY_S * 1000)
    assert made.lag(HOUR_S, 2 * DAY_S * 1000) == Lag(1, 15)
    assert made.lag(0, 2 * DAY_S * 1000) == Lag(HOUR_S + 1, 2 * DAY_S)
    assert 2 * DAY_S - 1800 <= made.lag(1800, 2 * DAY_S * 1000).seconds <= 2 * DAY_S - 1800 + 315


def test_a_topics_lag_is_all_partitions_records_and_the_worst_ones_age() -> None:
    lags = GroupLags()
    lags.note({CLICKS: 10, OTHER: 100}, 0)
    lags.note({CLICKS: 12, OTHER: 150}, 60_000)
    group = group_at(clicks_0=10, clicks_1=99, unseen_0=5)
    assert lag_of(lags, group) == [("g", "clicks", Lag(2 + 51, 90.0))]
    deque(lags.keep_only({CLICKS}), 0)
    assert lag_of(lags, group) == [("g", "clicks", Lag(2, 90.0))]


def lag_of(lags: GroupLags, group: Group) -> list[tuple[str, str, Lag]]:
    found = WorstLags(10)
    deque(lags.of(group, 90_000, found), 0)
    return found.worst()


def test_the_worst_lags_are_chosen_by_time_and_then_by_records() -> None:
    lags = WorstLags(2)
    for name, lag in (("a", Lag(9, 1.0)), ("b", Lag(1, 5.0)), ("c", Lag(2, 5.0)), ("d", Lag(0, 0))):
        lags.add(name, "t", lag)
    assert lags.worst() == [("c", "t", Lag(2, 5.0)), ("b", "t", Lag(1, 5.0))]
    assert lags.hidden == 2
