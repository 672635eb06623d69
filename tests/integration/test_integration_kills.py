"""kill -9 under load, again and again: what was acknowledged is there, and once if so promised.

With `flush.before.expose=true` an acknowledged record is on disk, and no reader has seen another.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.broker_processes import BrokerProcess, broker_processes
from tests.integration.fire_load import PARTITIONS, QUIET, Group, Writing, grown, read_topic
from tests.integration.load_checks import group_saw_all, holds, is_dense, is_once_and_in_order

QUICK_KILLS, KILLS = 5, 50
ACKED_BETWEEN_KILLS = 500
PLAIN, IDEMPOTENT = "plain", "idempotent"


@pytest.fixture
def broker(tmp_path: Path, connect: str) -> Iterator[BrokerProcess]:
    """A broker that flushes before it tells, with small segments so that kills meet rolls too."""
    settings = {"log_flush_before_expose": "true", "log_segment_bytes": "1000000"}
    with broker_processes(1, tmp_path, connect, **settings) as (only,):
        admin = AdminClient({**QUIET, "bootstrap.servers": only.address})
        for made in admin.create_topics(
            [NewTopic(name, PARTITIONS, 1) for name in (PLAIN, IDEMPOTENT)]
        ).values():
            made.result(20)
        yield only


@pytest.mark.parametrize(
    "kills",
    [QUICK_KILLS, pytest.param(KILLS, marks=[pytest.mark.stress, pytest.mark.timeout(1200)])],
)
def test_what_was_acknowledged_outlives_each_kill(broker: BrokerProcess, kills: int) -> None:
    rng = random.Random(kills)
    writings = [Writing(broker.address, PLAIN, False), Writing(broker.address, IDEMPOTENT, True)]
    group = Group(broker.address, "readers", [PLAIN, IDEMPOTENT])
    try:
        ready_s = [kill_under_load(broker, writings, group, rng) for _ in range(kills)]
    finally:
        for writing in writings:
            writing.stop()
        group_saw_all(group, writings)
    for writing in writings:
        assert (writing.acknowledged.failed, writing.fatal) == ([], [])
        found = read_topic(broker.address, writing.topic, {})
        holds(found, writing.acknowledged.values)
        is_dense(found)
    is_once_and_in_order(found, writings[1])
    assert group.refused == []
    assert broker.stop() == 0
    verify = [sys.executable, "-m", "kdist.cli", "log", "verify", str(broker.directory)]
    subprocess.run(verify, check=True, timeout=60)
    report(kills, ready_s, writings)


def kill_under_load(
    broker: BrokerProcess, writings: list[Writing], group: Group, rng: random.Random
) -> float:
    """Wait for load, kill, start, and look at what was acknowledged since; seconds until ready."""
    before = [set(writing.acknowledged.values) for writing in writings]
    for writing in writings:
        grown(writing.acknowledged.values, rng.randrange(1, ACKED_BETWEEN_KILLS))
    broker.stop(signal.SIGKILL)
    promised = dict(group.committed)
    begun_s = time.monotonic()
    broker.start()
    ready_s = time.monotonic() - begun_s
    for writing, old in zip(writings, before, strict=True):
        new = {p: v for p, v in dict(writing.acknowledged.values).items() if p not in old}
        starts = {n: min((o for p, o in new if p == n), default=0) for n in range(PARTITIONS)}
        holds(read_topic(broker.address, writing.topic, starts), new)
    positions = group.positions()
    for partition, offset in promised.items():
        assert positions[partition] >= offset, f"a commit of {partition} was lost"
    return ready_s


def report(kills: int, ready_s: list[float], writings: list[Writing]) -> None:
    counts = ", ".join(f"{len(w.acknowledged.values)} {w.topic}" for w in writings)
    slowest, median = max(ready_s), sorted(ready_s)[len(ready_s) // 2]
    sys.stdout.write(
        f"{kills} kills; acknowledged and found: {counts}; "
        f"ready again in {median:.2f} s (median), {slowest:.2f} s (slowest)\n"
    )
