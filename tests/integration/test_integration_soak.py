"""The loops of the clients' guides, while brokers freeze and die and members come and go.

`tests/soak` is the harness; here it runs as a command.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MINUTES = 5
LIMIT_S = MINUTES * 60 + 600


@pytest.mark.stress
@pytest.mark.timeout(LIMIT_S + 20)
def test_no_loop_skips_or_repeats_records_while_brokers_freeze_and_die() -> None:
    command = [sys.executable, "-m", "tests.soak", "--minutes", str(MINUTES), "--seed", "7"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
