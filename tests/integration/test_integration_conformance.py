"""Clients that nobody here wrote, of every age, served by real brokers: the fixed small part.

The whole of their suites, and what becomes of each test, is docs/conformance.md; both are run by
tests/conformance/run.py. It is a process of its own here, so that no client's threads, caches or
crashes reach the other tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "conformance" / "run.py"
ERAS = ("0.9.0.1", "0.11.0.3", "2.4.1", "4.2.0")
TESTS = Counter(
    {
        "kcat": 10,
        "eras": 22,  # 3 clients writing with 4 codecs each, 10 reading
        "librdkafka": 6,
        **{f"kafka-python {era}": 2 for era in ERAS},
    }
)
BUILD_S, RUN_S = 900, 240  # the first run builds librdkafka's test runner; later ones find it

pytestmark = [pytest.mark.peer, pytest.mark.stress, pytest.mark.timeout(BUILD_S + RUN_S)]


def run_small_part(*options: str) -> list[dict[str, str]]:
    """The outcomes of all tests of the small part."""
    # A time limit that lets it stop its brokers.
    command = ["timeout", str(BUILD_S + RUN_S - 30), sys.executable, str(RUN), "small", "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.stdout, done.stderr
    outcomes: list[dict[str, str]] = json.loads(done.stdout)
    return outcomes


@pytest.mark.parametrize("brokers", [1, 3])
def test_clients_of_every_age_are_served(brokers: int) -> None:
    outcomes = run_small_part("--brokers", str(brokers))
    assert [outcome for outcome in outcomes if outcome["state"] != "passed"] == []
    assert Counter(outcome["suite"] for outcome in outcomes) == TESTS
