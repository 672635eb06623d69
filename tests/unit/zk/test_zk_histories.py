"""Random histories: the ensemble in memory does nothing that a real one cannot do."""

from __future__ import annotations

from collections import Counter

from tests.unit.zk.zk_ensemble import EnsembleWorld, run_ensemble
from tests.unit.zk.zk_history import History

SEEDS = 30
RARE = {
    "a read was stale",
    "a leader was lost",
    "a session moved",
    "a lost write was decided 0 times",
    "a lost write was decided 1 times",
    "a done write was decided 1 times",
    "a refused write was decided 0 times",
}


def test_writes_have_one_order_and_no_session_goes_back_in_any_history() -> None:
    rare: Counter[str] = Counter()

    async def scenario(world: EnsembleWorld) -> None:
        history = History(world)
        await history.run()
        rare.update(history.rare)

    for seed in range(SEEDS):
        run_ensemble(scenario, seed)
    assert set(rare) == RARE, "what these seeds never brought about is not tested"
