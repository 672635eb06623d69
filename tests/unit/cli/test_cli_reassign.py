"""`kdist reassign`: a plan is shown, kept, carried out, and taken back."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.cli_cluster import CliCluster, cli_cluster


def replicas(cluster: CliCluster) -> list[list[int]]:
    told = json.loads(cluster.done("topics", "describe", "clicks", "--json"))
    return [each["replicas"] for each in told["partitions"]]


def test_a_broker_is_drained_by_a_plan_and_filled_again_by_its_way_back(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with cli_cluster(tmp_path) as cluster:
        cluster.done("topics", "create", "clicks", "--partitions", 6)
        cluster.done("produce", "clicks", text="x\n" * 600)
        before = replicas(cluster)
        words = ("reassign", "plan", "--drain", 2, "--sample", 0, "--output", path)
        shown = cluster.done(*words)
        assert "3 partitions copied" in shown
        assert "partitions get another leader only" in shown
        assert replicas(cluster) == before
        assert "exists already" in cluster.refused(*words)

        waiting = cluster.run("reassign", "verify", path)
        assert waiting.exit_code == 1
        assert "3 waiting." in waiting.stdout
        told = cluster.done("reassign", "execute", path)
        assert told == "All done: 3 partitions where the plan has them.\n"
        assert replicas(cluster) == [[1]] * 6
        assert "3 done." in cluster.done("reassign", "verify", path)
        assert cluster.done("reassign", "cancel", path) == "0 moves cancelled.\n"
        cluster.done("reassign", "execute", path)  # again: nothing is left to do
        assert (
            len(cluster.done("consume", "clicks", "--from-beginning", "--until-end").splitlines())
            == 600
        )

        cluster.done("reassign", "execute", path, "--reverse", "--no-throttle")
        assert replicas(cluster) == before
        cluster.done("reassign", "plan", "clicks", "--replication-factor", 2, "--sample", 0)
        assert replicas(cluster) == before


def test_a_plan_that_somebody_else_overtook_moves_nothing(tmp_path: Path) -> None:
    path, other = tmp_path / "plan.json", tmp_path / "other.json"
    with cli_cluster(tmp_path) as cluster:
        cluster.done("topics", "create", "clicks", "--partitions", 2)
        cluster.done("reassign", "plan", "--drain", 2, "--sample", 0, "--output", path)
        cluster.done(
            *("reassign", "plan", "clicks", "--replication-factor", 2, "--sample", 0),
            *("--output", other),
        )
        cluster.done("reassign", "execute", other)
        moved = replicas(cluster)
        assert "moved by somebody else" in cluster.refused("reassign", "execute", path)
        assert replicas(cluster) == moved


def test_mistakes_are_named(cluster: CliCluster, tmp_path: Path) -> None:
    assert "there is no topic nosuch" in cluster.refused("reassign", "plan", "nosuch")
    assert "broker 9 is not alive" in cluster.refused("reassign", "plan", "--drain", 9)
    assert "no broker is on host x" in cluster.refused("reassign", "plan", "--drain-host", "x")
    gone = tmp_path / "gone.json"
    assert "does not exist" in cluster.refused("reassign", "execute", gone)
    result = cluster.run("reassign", "plan", "--replication-factor", 2)
    assert result.exit_code == 2
    assert "needs the topics" in result.stderr
