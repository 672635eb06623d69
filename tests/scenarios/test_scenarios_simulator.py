"""A few of the simulator's histories; `make simulate` plays more."""

from __future__ import annotations

import pytest

from tests.simulator.playing import run

TWICE = range(4)
ONCE = range(25, 36)


@pytest.mark.parametrize("seed", TWICE)
def test_a_random_history_keeps_every_promise_and_can_be_repeated(seed: int) -> None:
    one, two = run(seed), run(seed)
    assert one.violation == "", "\n".join(one.last_events)
    assert one.trace_hash == two.trace_hash


@pytest.mark.slow
@pytest.mark.parametrize("seed", ONCE)
def test_a_random_history_keeps_every_promise(seed: int) -> None:
    outcome = run(seed)
    assert outcome.violation == "", "\n".join(outcome.last_events)


def test_a_planted_bug_is_found() -> None:
    outcomes = (run(seed, "consumers read what is not committed") for seed in range(20))
    assert any(each.violation.startswith(("S16", "S17")) for each in outcomes)
