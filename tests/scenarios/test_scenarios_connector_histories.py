"""Whatever happens to brokers, members and ZooKeeper, all is read, by one member at a time."""

from __future__ import annotations

import pytest
from connector_history import ConnectorHistory

STRATEGIES = ["range", "roundrobin"]


@pytest.mark.parametrize("is_power_lost", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_acknowledged_record_is_read_by_one_member_at_a_time(
    seed: int, is_power_lost: bool
) -> None:
    ConnectorHistory(seed, STRATEGIES[seed % 2], is_power_lost=is_power_lost).play()
