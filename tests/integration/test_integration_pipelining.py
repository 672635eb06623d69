"""Random pipelines on real sockets are answered in order, each rightly, and what was told is there.

`python tests/integration/pipelining.py --seconds 300` for more.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integration.pipelining import CAREFUL, run, target
from tests.integration.pipelining_sessions import ENDS

SESSIONS = 25
SECONDS = 60.0  # at most


@pytest.mark.parametrize("settings", [{}, CAREFUL], ids=["prompt", "careful"])
def test_pipelined_requests_are_answered_in_order_and_rightly(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with target(tmp_path, **settings) as broker:
        report = run(broker, seed=7, count=SESSIONS, seconds=SECONDS)
    sys.stdout.write(report.text())
    assert set(report.ends) == set(ENDS)
    assert report.requests > 500
    assert report.after_mib - report.before_mib < 64  # what an allocator may keep
