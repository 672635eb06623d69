"""The budget of a quota, by itself: what it lets through, and what it forgets."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.broker.quotas.budget import Budget

RATE, BURST_S = 1e6, 1.0
amounts = st.floats(0, 20 * RATE)
pauses = st.floats(0, 30)


def passed(size: float, connections: int, seconds: float, faster: float = 10) -> float:
    """What a client gets that asks for so many times its quota, on some connections."""
    budget = Budget(RATE, BURST_S, 0)
    asks = [(number / 1000, number) for number in range(connections)]
    each_s = size * connections / (faster * RATE)
    total = 0.0
    while asks[0][0] < seconds:
        now_s, number = heapq.heappop(asks)
        total += size
        heapq.heappush(asks, (now_s + max(each_s, budget.use(size, now_s)), number))
    return total


@pytest.mark.parametrize("connections", [1, 10])
@pytest.mark.parametrize("size", [100, 10_000, 100_000])
def test_a_client_at_ten_times_its_quota_gets_a_tenth_more_at_most(
    size: float, connections: int
) -> None:
    assert RATE * 30 <= passed(size, connections, 30) <= RATE * 33


def test_a_client_below_its_quota_never_pauses() -> None:
    budget = Budget(RATE, BURST_S, 0)
    assert not any(budget.use(RATE / 10, tenth / 10) for tenth in range(600))


@given(st.lists(st.tuples(amounts, pauses), min_size=1), st.data())
def test_over_any_time_a_client_that_pauses_as_told_gets_its_rate_and_one_burst(
    uses: list[tuple[float, float]], data: st.DataObject
) -> None:
    budget, now_s = Budget(RATE, BURST_S, 0), 0.0
    got: list[tuple[float, float]] = []
    for amount, idle_s in uses:
        got.append((now_s, amount))
        now_s += budget.use(amount, now_s) + idle_s
    first = data.draw(st.integers(0, len(got) - 1))
    last = data.draw(st.integers(first, len(got) - 1))
    # The last request was let through before it was known how large it is.
    total = sum(amount for _, amount in got[first:last])
    seconds = got[last][0] - got[first][0]
    assert total <= RATE * (seconds + BURST_S) * (1 + 1e-9) + 1


@given(st.lists(st.tuples(amounts, pauses), min_size=1))
def test_no_more_is_held_back_than_is_owed(uses: list[tuple[float, float]]) -> None:
    budget, now_s, total = Budget(RATE, BURST_S, 0), 0.0, 0.0
    for amount, idle_s in uses:
        total += amount
        pause_s = budget.use(amount, now_s)
        assert pause_s <= total / RATE
        now_s += pause_s + idle_s
    assert budget.debt_s(now_s) == 0


@given(st.lists(st.tuples(amounts, pauses)), amounts)
def test_a_full_budget_is_like_a_new_one(uses: list[tuple[float, float]], next_: float) -> None:
    budget, now_s = Budget(RATE, BURST_S, 0), 0.0
    for amount, idle_s in uses:
        budget.use(amount, now_s)
        now_s += idle_s
        if budget.is_full(now_s):
            new = Budget(RATE, BURST_S, now_s)
            assert new.use(next_, now_s) == Budget(RATE, BURST_S, now_s).use(next_, now_s)
            after, again = Budget(RATE, BURST_S, now_s), budget
            assert again.use(next_, now_s) == pytest.approx(after.use(next_, now_s), abs=1e-6)


def test_what_is_owed_is_paid_at_the_new_rate() -> None:
    budget = Budget(RATE, BURST_S, 0)
    assert budget.use(5 * RATE, 0) == 4
    budget.change_rate(2 * RATE, 0)
    assert budget.debt_s(0) == 2
    budget.change_rate(RATE / 2, 1)
    assert budget.debt_s(1) == 4


def test_credit_is_kept_at_a_new_rate() -> None:
    budget = Budget(RATE, BURST_S, 0)
    budget.change_rate(2 * RATE, 0)
    assert budget.use(2 * RATE, 0) == 0
    assert budget.use(RATE, 0) == 0.5


def test_a_debt_of_more_than_an_hour_is_forgiven() -> None:
    assert Budget(1, BURST_S, 0).use(1e12, 0) == 3600
