"""The benchmark of replicated clusters runs: its shape is looked at, not its speed."""

from __future__ import annotations

import pytest

from tests.integration.quick_benchmark import LIMIT_S, quick_run


@pytest.mark.stress
@pytest.mark.peer
@pytest.mark.timeout(LIMIT_S + 20)
def test_a_quick_run_measures_both_clusters_at_every_task() -> None:
    rows = quick_run("bench_cluster.py")
    assert len({row["task"] + row["unit"] for row in rows}) == 15
    assert all(row["peer"] > 0 and row["kdist"] > 0 for row in rows)
