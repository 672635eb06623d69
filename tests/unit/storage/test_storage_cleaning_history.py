"""Compaction against a model, with power losses at any step; the whole search is `make stress`."""

from __future__ import annotations

import pytest
from cleaning_history import run

from tests.examples import first_of


@pytest.mark.parametrize("seed", first_of(range(20), 6))
def test_a_cleaned_log_keeps_the_last_record_of_each_key_through_power_losses(seed: int) -> None:
    run(seed, 150)


def test_the_histories_do_clean_and_lose_power() -> None:
    histories = [run(seed, 200) for seed in (1001, 1002, 1003)]
    assert sum(each.passes for each in histories) > 5
    assert sum(each.removed for each in histories) > 50
    assert sum(each.crashes for each in histories) > 5


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_500_histories_keep_the_last_record_of_each_key() -> None:
    for seed in range(5000, 5500):
        run(seed, 250)
