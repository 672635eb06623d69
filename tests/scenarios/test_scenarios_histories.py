"""Random histories: whatever happens to a cluster and its links, each record is there, once."""

from __future__ import annotations

import pytest
from cluster_history import History
from connector_history import ConnectorHistory
from mirror_history import MirrorHistory

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]

pytestmark = pytest.mark.parametrize("is_power_lost", [False, True])


@pytest.mark.parametrize("seed", range(4))
def test_every_acknowledged_record_is_kept_once_and_read(seed: int, is_power_lost: bool) -> None:
    History(seed, STRATEGIES[seed % 4], is_power_lost=is_power_lost).play()


@pytest.mark.parametrize("seed", range(3))
def test_every_acknowledged_record_is_read_by_one_member_at_a_time(
    seed: int, is_power_lost: bool
) -> None:
    ConnectorHistory(seed, STRATEGIES[seed % 2], is_power_lost=is_power_lost).play()


@pytest.mark.parametrize("seed", range(3))
def test_every_record_of_the_source_is_mirrored_once(seed: int, is_power_lost: bool) -> None:
    MirrorHistory(seed, is_power_lost=is_power_lost).play()
