"""Clients that nobody here wrote, of every age, served by real brokers.

What is in each suite, and what becomes of each test, is docs/conformance.md; the suites are run by
tests/conformance/run.py. It is a process of its own here, so that no client's threads, caches or
crashes reach the other tests. `make setup` brings and builds the suites; without it a test does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "conformance" / "run.py"
# What each suite's fixed small part counts; all of it passes.
SMALL = {
    "kcat": {"kcat": 10},
    "eras": {"eras": 71},
    "librdkafka": {"librdkafka": 19},
    "kafka-python": {"kafka-python 0.9.0.1": 15, "kafka-python 4.2.0": 34},
    "java": {"java": 4},
}
# With three brokers, and three replicas of every partition.
SMALL_OF_A_CLUSTER = {
    **{name: SMALL[name] for name in ("kcat", "eras", "librdkafka")},
    "kafka-python": {"kafka-python 0.9.0.1": 15, "kafka-python 4.2.0": 33},
    "java-cluster": {"java-cluster": 2},
}
# Of the suites that have more, how many tests pass at least: the others need a later feature.
WHOLE = {
    "librdkafka": {"librdkafka": 38},
    "librdkafka --brokers 3 --idempotent": {"librdkafka": 54},
    "librdkafka --brokers 3 --idempotent --no-auto-creation": {"librdkafka": 2},
    "kafka-python": {
        "kafka-python 0.9.0.1": 16,
        "kafka-python 0.11.0.3": 37,
        "kafka-python 2.4.1": 42,
        "kafka-python 4.2.0": 43,
    },
    "kafka-python --brokers 3": {
        "kafka-python 0.9.0.1": 16,
        "kafka-python 0.11.0.3": 36,
        "kafka-python 2.4.1": 40,
        "kafka-python 4.2.0": 41,
    },
    "java": {"java": 13},
    "java --brokers 3": {"java": 13},
    "java-cluster --brokers 3": {"java-cluster": 8},
}
# Deadlines for a machine that does much else. The first run may have to bring and build its suite.
SMALL_S, WHOLE_S = 1200, 3600
STOPPING_S = 30

pytestmark = pytest.mark.peer


def run_suite(timeout_s: int, *arguments: str) -> Counter[str]:
    """How many tests of each suite passed. That one failed, or had not come, is an assertion."""
    # A time limit that lets it stop its brokers.
    command = ["timeout", str(timeout_s - STOPPING_S), sys.executable, str(RUN), "--json"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert done.stdout, done.stderr
    outcomes: list[dict[str, str]] = json.loads(done.stdout)
    failed = [outcome for outcome in outcomes if outcome["state"] == "failed"]
    assert not failed, "\n".join(f"{o['suite']}: {o['test']}: {o['reason']}" for o in failed)
    return Counter(outcome["suite"] for outcome in outcomes if outcome["state"] == "passed")


@pytest.mark.timeout(SMALL_S)
@pytest.mark.parametrize("suite", SMALL)
def test_clients_of_every_age_are_served(suite: str) -> None:
    assert run_suite(SMALL_S, suite, "--small") == SMALL[suite]


@pytest.mark.timeout(SMALL_S)
@pytest.mark.parametrize("suite", SMALL_OF_A_CLUSTER)
def test_clients_of_every_age_are_served_by_three_brokers_with_replicas(suite: str) -> None:
    found = run_suite(SMALL_S, suite, "--small", "--brokers", "3")
    assert found == SMALL_OF_A_CLUSTER[suite]


@pytest.mark.stress
@pytest.mark.timeout(WHOLE_S)
@pytest.mark.parametrize("arguments", WHOLE)
def test_whole_suites_pass_but_for_what_needs_a_later_feature(arguments: str) -> None:
    assert run_suite(WHOLE_S, *arguments.split()) >= Counter(WHOLE[arguments])
