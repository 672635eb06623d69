"""Who has which quota, what a budget lets through, what is owed, how few clients are remembered."""

from __future__ import annotations

import heapq
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.broker import quotas as module
from kdist.broker.quotas import CLIENTS_MAX, OTHERS, Account, Budget, Quotas
from kdist.broker.stored_quotas import FETCH, PRODUCE, REQUEST, Entity, levels
from kdist.metrics.broker import QuotaMetrics
from kdist.metrics.declare import Family
from kdist.testing.virtual_clock import VirtualClock
from kdist.zk.znodes import DEFAULT_ENTITY

P, F, R = PRODUCE.name, FETCH.name, REQUEST.name
NOBODY = "ANONYMOUS"


class World:
    """Quotas, their clock, their metrics, and how often they have changed."""

    def __init__(self, **limits: dict[str, float]) -> None:
        self.clock = VirtualClock()
        self.metrics = Family(QuotaMetrics, "user", "client", "quota")
        self.changes = 0
        self.quotas = Quotas(self.clock, 1.0, self.metrics, self._count)
        if limits:
            names = ((DEFAULT_ENTITY if n == "default" else n, each) for n, each in limits.items())
            self.quotas.replace({Entity(None, name): each for name, each in names})

    def _count(self) -> None:
        self.changes += 1

    def account(self, client_id: str | None = "etl", user: str = NOBODY) -> Account:
        found = self.quotas.account(user, client_id)
        assert found is not None
        return found

    def passes(self, seconds: float) -> None:
        self.clock.wait_ms(seconds * 1000)


def test_without_quotas_nobody_has_an_account() -> None:
    world = World()
    assert world.quotas.account(NOBODY, "etl") is None
    assert len(world.quotas) == 0


def test_a_client_without_a_quota_of_its_own_or_a_default_has_none() -> None:
    world = World(etl={P: 10})
    assert world.quotas.account(NOBODY, "other") is None
    assert len(world.quotas) == 0


def test_for_each_quota_a_clients_own_goes_before_the_default() -> None:
    world = World(etl={P: 10}, default={P: 100, F: 100})
    assert world.account("etl").produced(100) == 9
    assert world.account("etl").fetched(1000) == 9
    assert world.account("etl").kept_busy(1000) == 0
    assert world.account("other").produced(1000) == 9
    assert world.account("").produced(1000) == 9
    assert world.account(None).produced(0) == 9  # the same as an empty one


def test_a_client_that_calls_itself_the_default_has_the_defaults_quota_for_itself() -> None:
    world = World(default={P: 100})
    assert world.account(DEFAULT_ENTITY).produced(1000) == 9
    assert world.account("other").produced(100) == 0


def test_each_client_has_the_default_for_itself_over_all_its_connections() -> None:
    world = World(default={P: 100})
    assert world.account("a").produced(300) == 2
    assert world.account("b").produced(100) == 0
    assert world.account("a").produced(100) == 3


def test_a_pause_for_the_brokers_time_is_as_long_as_the_burst_at_most() -> None:
    world = World(etl={R: 10})
    assert world.account().kept_busy(0.1) == 0  # a second's worth at once
    assert world.account().kept_busy(0.05) == pytest.approx(0.5)
    assert world.account().kept_busy(10) == 1
    world.passes(50)
    assert world.account().kept_busy(0) == 1


def test_what_is_owed_stays_owed_when_a_quota_changes() -> None:
    world = World(etl={P: 100})
    assert world.account().produced(1100) == 10
    world.quotas.set(Entity(None, "etl"), {P: 1000})
    assert world.account().produced(0) == 1
    world.quotas.set(Entity(None, DEFAULT_ENTITY), {P: 100})
    world.quotas.set(Entity(None, "etl"), {})
    assert world.account().produced(0) == 10  # by the default now
    world.quotas.set(Entity(None, DEFAULT_ENTITY), {})
    assert world.quotas.account(NOBODY, "etl") is None


def test_only_real_changes_are_told() -> None:
    world = World(etl={P: 10})
    for _ in range(2):
        world.quotas.set(Entity(None, "etl"), {P: 10})
        world.quotas.set(Entity(None, "other"), {})
        world.quotas.replace({Entity(None, "etl"): {P: 10}})
    assert world.changes == 1
    world.quotas.set(Entity(None, "etl"), {P: 11})
    assert world.changes == 2


def test_idle_clients_are_forgotten_and_nothing_changes_for_them() -> None:
    world = World(default={P: 100})
    for number in range(500):
        world.account(f"client {number}").produced(200)
    world.account("slow").produced(100 * 100)
    world.passes(61)
    world.account("another")
    assert len(world.quotas) == 2
    assert world.account("slow").produced(0) == pytest.approx(38)
    assert world.account("client 7").produced(100) == 0
    assert world.account("client 7").produced(100) == 1


def test_made_up_client_ids_take_a_bounded_memory_and_share_a_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLIENTS_MAX", 50)
    world = World(etl={P: 100}, default={P: 1})
    for number in range(200):
        world.account(f"random {number}").produced(1000)
    assert len(world.quotas) == 50 + 1
    # A new one owes what others have used; one that an operator named does not.
    assert world.account("innocent").produced(0) > 1000
    assert world.account("etl").produced(100) == 0
    assert len(world.quotas) == 52
    assert CLIENTS_MAX == 10_000


def test_metrics_name_those_that_an_operator_named_and_no_others() -> None:
    world = World(etl={P: 100}, default={P: 10, R: 50})
    for client in ("etl", "a", "b"):
        world.account(client).produced(210)
        world.account(client).kept_busy(1.5)
    found = {
        labels: (each.limit, each.used, each.throttled, each.throttled_seconds)
        for labels, each in world.metrics.items()
    }
    assert found == {
        ("", "etl", "produce"): (100, 210, 1, pytest.approx(1.1)),
        ("", DEFAULT_ENTITY, "produce"): (10, 420, 2, 40),
        ("", DEFAULT_ENTITY, "request"): (0.5, 4.5, 3, 3),
    }
    world.quotas.set(Entity(None, "etl"), {})
    assert world.metrics.keys() == {
        ("", DEFAULT_ENTITY, "produce"),
        ("", DEFAULT_ENTITY, "request"),
    }
    assert world.account("etl").produced(0) > 0
    world.quotas.set(Entity(None, DEFAULT_ENTITY), {})
    assert not world.metrics


def test_many_clients_with_quotas_of_their_own_are_counted_together_in_metrics() -> None:
    world = World(default={P: 1}, **{f"client {n:03}": {P: 10.0 + n} for n in range(250)})
    for number in (199, 200, 249):
        world.account(f"client {number:03}").produced(number)
    assert len(world.metrics) == 200 + 2
    named, others = world.metrics["", "client 199", "produce"], world.metrics["", OTHERS, "produce"]
    assert (named.limit, named.used) == (209, 199)
    assert (others.limit, others.used) == (0, 449)


def test_a_client_that_calls_itself_the_others_is_counted_among_them() -> None:
    world = World(**{OTHERS: {P: 10.0}}, etl={P: 10.0})
    world.account(OTHERS).produced(5)
    assert {labels: each.limit for labels, each in world.metrics.items()} == {
        ("", OTHERS, "produce"): 0,
        ("", "etl", "produce"): 10,
    }
    assert world.metrics["", OTHERS, "produce"].used == 5


def test_the_log_names_a_throttled_client_every_half_minute_at_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    world = World(default={P: 1})
    for number in range(100):
        world.account(f"client {number}").produced(100)
        world.passes(1)
    assert len(caplog.messages) == 4
    assert caplog.messages[0] == (
        "client 'client 0' is over its producer_byte_rate: it pauses for 99.000 s"
    )


# --- users ---------------------------------------------------------------------------------------

D = DEFAULT_ENTITY
ORDER = [("u", "c"), ("u", D), ("u", None), (D, "c"), (D, D), (D, None), (None, "c"), (None, D)]


def test_whose_quota_goes_first_is_as_in_kafka() -> None:
    assert [*levels("u", "c")] == ORDER
    world = World()
    for value, entity in enumerate(reversed(ORDER), 1):
        world.quotas.set(Entity(*entity), {P: 100.0 * value})
        assert world.account("c", "u").produced(0) == 0
        assert world.account("c", "u").meters[PRODUCE].budget.at_once == 100 * value


def test_a_users_quota_is_one_for_all_its_clients_and_one_of_client_ids_is_for_each() -> None:
    world = World()
    world.quotas.replace({Entity("alice", None): {P: 100}, Entity(D, D): {F: 100}})
    assert world.account("a", "alice").produced(200) == 1
    assert world.account("b", "alice").produced(100) == 2
    assert world.account("a", "alice").fetched(200) == 1
    assert world.account("b", "alice").fetched(100) == 0
    assert world.account("a", "bob").produced(10_000) == 0
    assert world.account("a", "bob").fetched(100) == 0


def test_the_default_of_users_is_for_each_user() -> None:
    world = World()
    world.quotas.set(Entity(D, None), {P: 100})
    assert world.account("a", "alice").produced(200) == 1
    assert world.account("b", "alice").produced(0) == 1
    assert world.account("a", "bob").produced(100) == 0
    assert world.account("a", NOBODY).produced(100) == 0


def test_a_users_quota_that_is_shared_is_forgotten_by_none_of_its_clients_alone() -> None:
    world = World()
    world.quotas.replace({Entity("alice", None): {P: 100}, Entity(None, D): {F: 1}})
    world.account("busy", "alice").produced(10_000)
    world.account("idle", "alice")
    world.passes(61)
    assert world.account("new", "alice").produced(0) == pytest.approx(38)
    assert world.account("idle", "alice").produced(0) == pytest.approx(38)


def test_made_up_client_ids_of_one_user_take_nothing_from_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLIENTS_MAX", 50)
    world = World(default={P: 1})
    for number in range(200):
        world.account(f"random {number}", "mallory").produced(1000)
    assert len(world.quotas) == 51
    assert world.account("new", "mallory").produced(0) > 1000
    assert world.account("new", "alice").produced(1) == 0


def test_metrics_and_log_tell_users_from_clients(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World()
    world.quotas.replace(
        {Entity("alice", None): {P: 1}, Entity("bob", "etl"): {P: 2}, Entity(None, "etl"): {P: 3}}
    )
    for user in ("alice", "bob", "carol"):
        world.passes(60)
        world.account("etl", user).produced(30)
    assert {labels: each.limit for labels, each in world.metrics.items()} == {
        ("alice", "", "produce"): 1,
        ("bob", "etl", "produce"): 2,
        ("", "etl", "produce"): 3,
    }
    assert [message.partition(" is over")[0] for message in caplog.messages] == [
        "user 'alice'",
        "client 'etl' of user 'bob'",
        "client 'etl'",
    ]


# --- a budget by itself: what it lets through, and what it forgets ------------------------------

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
