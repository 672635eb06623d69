"""Whatever a power loss leaves: flushed records are there, none torn, in order, indexes agree."""

from __future__ import annotations

import pytest
from log_history import History

from tests.examples import first_of

OPERATIONS = 40


@pytest.mark.parametrize("seed", range(100))
def test_a_log_survives_any_history(seed: int) -> None:
    History(seed).run(OPERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", first_of(range(1, 20), 4, others=pytest.mark.stress))
def test_logs_survive_a_hundred_histories_more(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        try:
            History(seed).run(OPERATIONS)
        except BaseException as error:
            error.add_note(f"to see it again: History({seed}).run({OPERATIONS})")
            raise


def test_histories_lose_power_often_enough_to_mean_something() -> None:
    histories = [History(seed) for seed in range(20)]
    for history in histories:
        history.run(OPERATIONS)
    assert sum(history.crashes for history in histories) >= 40
