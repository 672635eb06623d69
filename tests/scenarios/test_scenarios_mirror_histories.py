"""Whatever happens to brokers, mirrors and links, the target has each record of the source once."""

from __future__ import annotations

import pytest
from mirror_history import MirrorHistory


@pytest.mark.parametrize("is_power_lost", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_record_of_the_source_is_mirrored_once(seed: int, is_power_lost: bool) -> None:
    MirrorHistory(seed, is_power_lost=is_power_lost).play()
