"""Groups whose members come, die and leave by chance: no partition has two owners, all is given.

Connectors in a group of ZooKeeper's; then kdist's consumers and librdkafka's in one of the broker's
coordinator. `make stress` has twenty members, for ten minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.churn import Producing, churn, gaps_s, overlaps, settling_s
from tests.integration.consumer_members import create
from tests.integration.standalone_process import Standalone, standalone

SESSION_MS = 6_000
TOPIC, GROUP = "clicks", "readers"
SLACK_S = 6.0  # on a machine that does much else
KINDS = {"zookeeper": ("connector",), "broker": ("consumer", "librdkafka")}
# The coordinator waits for a dead member, and once more if that one was to share out.
SESSIONS = {"zookeeper": 1, "broker": 2}


def arguments(run: Standalone, kind: str) -> Sequence[str]:
    address = run.addresses["zookeeper"] if kind == "connector" else f"127.0.0.1:{run.port}"
    return address, GROUP, TOPIC, str(SESSION_MS)


def live_through(
    directory: Path, registry: str, count: int, duration_s: float, pause_s: float
) -> None:
    with standalone(directory / "cluster") as run:
        broker = f"127.0.0.1:{run.port}"
        partitions = count * 2
        create(broker, TOPIC, partitions)
        lines = {kind: arguments(run, kind) for kind in KINDS[registry]}
        with churn(directory, 7, count, lines) as group:
            producing = Producing(broker, TOPIC, each_second=200)
            try:
                group.run(duration_s, pause_s)
            finally:
                producing.stop()
            group.wait_for(producing.acknowledged)
            group.leave()
            found, ownerships = group.found(), group.ownerships()
            gaps, settling = gaps_s(ownerships), settling_s(ownerships, group.kills_ns)
            print(  # noqa: T201 - what `make stress` shows
                f"{dict(group.counts)}, {len(producing.acknowledged)} records, "
                f"{sum(found.values()) - len(found)} given again, {len(gaps)} changes of owner: "
                f"median {gaps[len(gaps) // 2]:.2f} s, longest {gaps[-1]:.2f} s, "
                f"{settling[-1]:.2f} s after the last kill in it"
            )
            assert overlaps(ownerships) == []
            assert len(ownerships) == partitions
            assert group.counts["killed"] > 0
            assert settling[-1] < SESSIONS[registry] * SESSION_MS / 1000 + SLACK_S


@pytest.mark.parametrize("registry", KINDS)
def test_six_members_come_die_and_leave(registry: str, tmp_path: Path) -> None:
    live_through(tmp_path, registry, 6, duration_s=20, pause_s=2)


@pytest.mark.stress
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("registry", KINDS)
def test_twenty_members_come_die_and_leave_for_ten_minutes(registry: str, tmp_path: Path) -> None:
    live_through(tmp_path, registry, 20, duration_s=600, pause_s=3)
