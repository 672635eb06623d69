"""A few of the simulator's histories; `make simulate` plays more."""

from __future__ import annotations

import pytest

from tests.simulator.__main__ import play


@pytest.mark.parametrize("seed", range(4))
def test_a_random_history_keeps_every_promise_and_can_be_repeated(seed: int) -> None:
    one, two = play(seed)
    assert one.violation == "", "\n".join(one.last_events)
    assert one.trace_hash == two.trace_hash
