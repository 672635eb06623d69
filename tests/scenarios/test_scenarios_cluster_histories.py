"""Whatever happens to brokers, readers and links, no acknowledged record is lost or doubled."""

from __future__ import annotations

import pytest
from cluster_history import History

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]


@pytest.mark.parametrize("is_power_lost", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_every_acknowledged_record_is_kept_once_and_read(seed: int, is_power_lost: bool) -> None:
    History(seed, STRATEGIES[seed % 4], is_power_lost=is_power_lost).play()
