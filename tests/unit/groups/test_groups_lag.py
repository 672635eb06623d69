"""A group's lag, from what past looks have seen of partitions' ends."""

from __future__ import annotations

import pytest

from kdist.groups.group import Group
from kdist.groups.lag import GroupLags, Lag, SeenEnds, worst
from kdist.groups.offsets import CommittedOffset
from kdist.model import TopicPartition

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


def test_of_many_looks_a_few_are_kept_and_the_oldest_is_among_them() -> None:
    made = seen(*((end, end) for end in range(1000)))
    assert len(made._ends) <= 16
    assert made.lag(0, 1_000_000) == Lag(999, 1000.0)
    for true_s in (100, 300, 700):
        lag = made.lag(1000 - true_s, 1_000_000)
        assert true_s <= lag.seconds <= 1000


def test_a_topics_lag_is_all_partitions_records_and_the_worst_ones_age() -> None:
    lags = GroupLags()
    lags.note({CLICKS: 10, OTHER: 100}, 0)
    lags.note({CLICKS: 12, OTHER: 150}, 60_000)
    group = group_at(clicks_0=10, clicks_1=99, unseen_0=5)
    assert lags.of(group, 90_000) == {"clicks": Lag(2 + 51, 90.0)}
    lags.keep_only({CLICKS})
    assert lags.of(group, 90_000) == {"clicks": Lag(2, 90.0)}


def test_the_worst_lags_are_chosen_by_time_and_then_by_records() -> None:
    lags = {
        ("a", "t"): Lag(9, 1.0),
        ("b", "t"): Lag(1, 5.0),
        ("c", "t"): Lag(2, 5.0),
        ("d", "t"): Lag(0, 0.0),
    }
    assert list(worst(lags, 2)) == [("c", "t"), ("b", "t")]
    assert set(worst(lags, 4)) == set(lags)
