"""Random histories keep what a group promises; a failure prints the seed that brings it back."""

from __future__ import annotations

from collections import Counter

import pytest
from groups_history import GROUP, History
from hypothesis import example, given
from hypothesis import strategies as st

from tests.examples import examples


@examples(80)
@given(seed=st.integers(0, 2**32), clients=st.integers(1, 6))
@example(seed=1, clients=3)
def test_a_random_history_keeps_the_promises_of_a_group(seed: int, clients: int) -> None:
    history = History(seed, clients)
    history.run(steps=300)
    assert history.answers.total() > 0


@pytest.mark.slow
@pytest.mark.parametrize("fewest", [1, 4, 7, 10])
@examples(75)
@given(seed=st.integers(0, 2**32), more=st.integers(0, 2))
def test_many_long_histories_keep_the_promises_of_a_group(
    fewest: int, seed: int, more: int
) -> None:
    History(seed, fewest + more).run(steps=1000)


@examples(30)
@given(seed=st.integers(0, 2**32))
def test_a_coordinator_that_loads_the_log_knows_what_the_one_before_knew(seed: int) -> None:
    history = History(seed, clients=4)
    history.run(steps=200)
    group = history.group()
    after = history.world.restarted()
    assert history.fetched(after) == history.committed
    loaded = after._registry.groups.get(GROUP)
    if group is not None and group.generation > 0 and history.newest_generation > 0:
        assert loaded is not None
        assert (loaded.state, loaded.generation) == (group.state, group.generation)


def test_histories_reach_what_they_are_for() -> None:
    reached: Counter[str] = Counter()
    for seed in range(20):
        history = History(seed, clients=4)
        history.run(steps=400)
        reached += history.answers
    often = ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit")
    assert all(reached[f"{api}Response NONE"] > 100 for api in often)
    assert reached["SyncGroupResponse REBALANCE_IN_PROGRESS"] > 100
    assert reached["JoinGroupResponse FENCED_INSTANCE_ID"] > 0
    assert reached["SyncGroupResponse COORDINATOR_NOT_AVAILABLE"] > 0
