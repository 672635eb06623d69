"""Three brokers are broken under foreign clients, and a checker judges what these saw.

`tests/chaos` is the harness; here it runs as a command. In the short form each kind of fault that
takes few seconds comes once, and in the long one all kinds do, for as long as was asked for.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHORT_S, LONG_S = 300, 2400
WHILE_MOVING = "kill,two killed,host lost briefly,disk lost,pause,controller deposed"

pytestmark = [pytest.mark.mount, pytest.mark.slow]


def run(directory: Path, limit_s: float, *arguments: str) -> None:
    """Run the harness, which exits with 0 if no promise was broken, and show what it says."""
    command = [sys.executable, "-m", "tests.chaos", "--directory", str(directory), *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False
    )
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(SHORT_S + 20)
def test_brokers_keep_their_promises_through_each_cheap_fault(tmp_path: Path) -> None:
    run(tmp_path, SHORT_S, "--short", "--seed", "1")


@pytest.mark.timeout(SHORT_S + 20)
def test_a_rolling_restart_under_load_shows_clients_no_error(tmp_path: Path) -> None:
    run(tmp_path, SHORT_S, "--short", "--only", "roll")


@pytest.mark.timeout(SHORT_S + 20)
def test_what_is_flushed_outlives_the_power_loss_of_all_hosts(tmp_path: Path) -> None:
    run(tmp_path, SHORT_S, "--short", "--flushed", "--only", "all hosts lost")


@pytest.mark.timeout(SHORT_S + 20)
def test_brokers_keep_their_promises_while_two_more_join_and_leave(tmp_path: Path) -> None:
    run(tmp_path, SHORT_S, "--short", "--grow", "--seed", "5", "--only", WHILE_MOVING)


@pytest.mark.stress
@pytest.mark.timeout(LONG_S + 20)
def test_brokers_keep_their_promises_while_five_become_three_again_and_again(
    tmp_path: Path,
) -> None:
    run(tmp_path, LONG_S, "--minutes", "20", "--grow", "--seed", "26")


@pytest.mark.stress
@pytest.mark.timeout(LONG_S + 20)
def test_brokers_keep_their_promises_through_a_fault_every_ten_seconds(tmp_path: Path) -> None:
    run(tmp_path, LONG_S, "--minutes", "20", "--seed", "25")
