"""`kdist reassign`: a plan is shown, kept, carried out, and taken back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kdist.client import zookeeper_session
from kdist.client.admin.disks import LogDirectory, log_directories
from kdist.client.cluster import Cluster
from kdist.errors import ApiError, Error, UserError
from kdist.model import TopicPartition
from kdist.ops import roll_lock
from kdist.ops.reassignment import execution, site
from kdist.ops.reassignment.plan import Move
from kdist.ops.reassignment.progress import Status, Statuses
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.values import LockHolder
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster


def replicas(cluster: CliCluster, topic: str = "clicks") -> list[list[int]]:
    told = json.loads(cluster.done("topics", "describe", topic, "--json"))
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
        assert "only" not in shown
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


def test_a_summary_counts_each_partition_as_what_becomes_of_it(tmp_path: Path) -> None:
    with cli_cluster(tmp_path) as cluster:
        cluster.done("topics", "create", "clicks", "--partitions", 6, "--replication-factor", 2)
        words = ("reassign", "plan", "clicks", "--sample", 0, "--only-needed")
        fewer = cluster.done(*words, "--replication-factor", 1)
        assert fewer.splitlines()[-1] == "6 partitions to fewer replicas."
        refusal = cluster.refused(*words, "--replication-factor", 9)
        assert "clicks-0 cannot have 9 replicas" in refusal
        assert cluster.done(*words).splitlines()[-1] == "Nothing to move."


def test_a_dead_broker_keeps_what_it_has_unless_it_is_drained(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with cli_cluster(tmp_path, brokers=3) as cluster:
        cluster.done("topics", "create", "clicks", "--partitions", 6, "--replication-factor", 2)
        placed = sum(3 in each for each in replicas(cluster))
        cluster.stop_broker(3)
        cluster.until(lambda: ": 2 brokers" in cluster.run("cluster", "describe").stdout)
        words = ("reassign", "plan", "--sample", 0, "--only-needed")
        shown = cluster.done(*words)
        assert shown.startswith(f"1 broker is down (3): of its {placed} replicas {placed} left")
        assert shown.splitlines()[-1] == "Nothing to move."
        told = json.loads(cluster.done(*words, "--json"))
        assert (told["down"], told["moves"], told["leaderless"]) == ([3], [], [])
        shown = cluster.done(*words, "--drain", 3, "--output", path)
        assert shown.startswith(f"1 broker is down (3): of its {placed} replicas all moved.")
        assert "no broker is on host x; there are" in cluster.refused(*words, "--drain-host", "x")
        assert cluster.done(*words, "--drain-dead") == shown
        result = cluster.run("reassign", "execute", path)
        assert result.exit_code == 0, result.output
        assert all(3 not in each for each in replicas(cluster))
        assert "down" not in cluster.done(*words, "--drain-dead")


def test_a_broker_that_does_not_answer_counts_as_down_and_can_be_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked(cluster: Cluster, broker: int) -> list[LogDirectory]:
        if broker == 2:
            raise ApiError(error, "broker 2")
        return await log_directories(cluster, broker)

    monkeypatch.setattr(site, "log_directories", asked)
    monkeypatch.setattr(site, "_PATIENCE_S", 0.2)
    words = ("reassign", "plan", "--sample", 0, "--only-needed", "--drain", 2)
    with cli_cluster(tmp_path, brokers=3) as cluster:
        cluster.done("topics", "create", "clicks", "--partitions", 6, "--replication-factor", 2)
        error = Error.NETWORK_EXCEPTION
        assert cluster.done(*words).startswith("1 broker is down (2): of its 4 replicas all moved.")
        error = Error.CLUSTER_AUTHORIZATION_FAILED
        assert "broker 2" in cluster.refused(*words)


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
    for words, sentence in (
        (("plan", "--sample", "nan"), "nan is no number of seconds"),
        (("plan", "--sample", "inf"), "not in the range"),
        (("plan", "--sample", "-1"), "not in the range"),
        (("plan", ""), "it is empty"),
        (("plan", "--drain-host", ""), "it is empty"),
        (("execute", gone, "--throttle", 5, "--no-throttle"), "Give one of"),
    ):
        result = cluster.run("reassign", *words)
        assert result.exit_code == 2
        assert sentence in result.stderr


@contextlib.asynccontextmanager
async def no_zookeeper(_: str) -> AsyncIterator[ZooKeeper]:
    raise UserError("no ZooKeeper answers at memory:2181")
    yield


def test_a_plan_waits_for_a_rolls_end_and_is_announced_to_those_that_begin_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--zookeeper", "memory:2181")
    with cli_cluster(tmp_path) as cluster:
        cluster.done("topics", "create", "clicks")
        (before,) = replicas(cluster)
        path = a_plan(tmp_path / "plan.json", ("clicks", 0, before, [3 - before[0]]))
        cluster.done("gate", "lock", "--owner", "anna", "--run", "r1", *words)
        refusal = cluster.refused("reassign", "execute", path)
        assert refusal.startswith("'anna' holds the lock by run r1")
        assert "--beside-roll" in refusal
        assert (replicas(cluster), throttles(cluster)) == ([before], [])
        seen: list[str] = []
        move = execution._move

        async def moving(*given: Any) -> None:
            async with cluster.zookeeper_at("memory:2181") as keeper:
                holder = await roll_lock.lock_holder(keeper, znodes.MOVES_LOCK)
            assert holder is not None
            seen.append(holder.holder)
            await move(*given)

        monkeypatch.setattr(execution, "_move", moving)
        cluster.done("reassign", "execute", path, "--beside-roll")
        assert [each.partition(" (")[2] for each in seen] == ["0 of 1 partitions are there)"]
        assert replicas(cluster) == [[3 - before[0]]]
        cluster.done("gate", "unlock", "--run", "r1", *words)
        cluster.done("reassign", "execute", path, "--reverse")
        assert asyncio.run(_mover(cluster)) is None


async def _mover(cluster: CliCluster) -> LockHolder | None:
    async with cluster.zookeeper_at("memory:2181") as keeper:
        return await roll_lock.lock_holder(keeper, znodes.MOVES_LOCK)


def test_where_no_zookeeper_can_say_who_rolls_a_plan_begins_only_if_one_insists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cli_cluster(tmp_path) as cluster:
        cluster.done("topics", "create", "clicks")
        (before,) = replicas(cluster)
        path = a_plan(tmp_path / "plan.json", ("clicks", 0, before, [3 - before[0]]))
        monkeypatch.setattr(zookeeper_session, "zookeeper_at", no_zookeeper)
        refusal = cluster.refused("reassign", "execute", path)
        assert "no ZooKeeper answers at memory:2181" in refusal
        assert replicas(cluster) == [before]
        cluster.done("reassign", "execute", path, "--beside-roll")
        assert replicas(cluster) != [before]


def a_plan(path: Path, *rows: tuple[str, int, list[int], list[int]]) -> Path:
    """A plan's file as somebody edits it: topic, partition, before, after."""
    fields = ("topic", "partition", "kdist_before", "replicas")
    partitions = [dict(zip(fields, row, strict=True)) for row in rows]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return path


def throttles(cluster: CliCluster) -> list[str]:
    shown = cluster.run("configs", "list").stdout  # a broker may be down
    return [each for each in shown.splitlines() if "throttled" in each]


def test_a_plan_that_cannot_begin_leaves_no_throttle(tmp_path: Path) -> None:
    with cli_cluster(tmp_path) as cluster:
        cluster.done("topics", "create", "clicks")
        (before,) = replicas(cluster)
        path = a_plan(tmp_path / "dead.json", ("clicks", 0, before, [*before, 77]))
        refusal = "broker 77 is to get replicas, and is not alive: make a new plan"
        assert cluster.refused("reassign", "execute", path) == refusal
        assert throttles(cluster) == []


def test_topics_deleted_since_the_plan_was_made_are_told_apart(tmp_path: Path) -> None:
    with cli_cluster(tmp_path) as cluster:
        cluster.done("topics", "create", "clicks")
        (first,) = replicas(cluster)
        gone = ("clicks", 9, [1], [2]), ("nosuch", 0, [1], [2])
        path = a_plan(tmp_path / "plan.json", ("clicks", 0, first, [3 - first[0]]), *gone)
        told = cluster.done("reassign", "execute", path)
        assert told == (
            "All done: 1 partition where the plan has them. 2 others deleted since it was made.\n"
        )
        told = cluster.done("reassign", "execute", path, "--json")
        assert json.loads(told) == {"partitions": 1, "gone": 2}
        assert throttles(cluster) == []


def test_a_move_that_ends_just_before_it_is_cancelled_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_too_early(_: Cluster, moves: list[Move]) -> Statuses:
        return dict.fromkeys(moves, Status.MOVING)

    with cli_cluster(tmp_path) as cluster:
        cluster.done("topics", "create", "clicks")
        (before,) = replicas(cluster)
        path = a_plan(tmp_path / "plan.json", ("clicks", 0, before, [3 - before[0]]))
        cluster.done("reassign", "execute", path)
        monkeypatch.setattr(execution, "read_statuses", look_too_early)
        assert cluster.done("reassign", "cancel", path) == "0 moves cancelled.\n"


def test_a_plan_of_which_nothing_exists_is_refused(cluster: CliCluster, tmp_path: Path) -> None:
    path = a_plan(tmp_path / "plan.json", ("nosuch", 0, [1], [2]))
    for word in ("execute", "verify"):
        refusal = cluster.refused("reassign", word, path)
        assert (
            refusal == "nosuch-0: none of the plan is in this cluster: deleted, or another one's?"
        )


def alive_once(monkeypatch: pytest.MonkeyPatch, *brokers: int) -> None:
    """Have a carrying out find these alive at first: they die right after that look."""
    look = execution._alive
    looks = [{*brokers}, {*brokers}]

    async def alive(cluster: Cluster) -> set[int]:
        return looks.pop() if looks else await look(cluster)

    monkeypatch.setattr(execution, "_alive", alive)


def lose_a_replica(cluster: CliCluster, tmp_path: Path) -> None:
    """Have a partition on brokers 1 and 3, and stop broker 3."""
    cluster.done("topics", "create", "clicks", "--replication-factor", 2)
    (before,) = replicas(cluster)
    start = a_plan(tmp_path / "start.json", ("clicks", 0, before, [1, 3]))
    cluster.done("reassign", "execute", start)
    cluster.stop_broker(3)
    cluster.until(lambda: ": 2 brokers" in cluster.run("cluster", "describe").stdout)


def test_brokers_that_die_while_rates_are_set_stop_a_plan_only_if_they_are_to_get_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cli_cluster(tmp_path, brokers=3) as cluster:
        lose_a_replica(cluster, tmp_path)
        off = a_plan(tmp_path / "off.json", ("clicks", 0, [1, 3], [1, 2]))
        wrong = a_plan(tmp_path / "wrong.json", ("clicks", 0, [1, 3], [1, 4]))
        alive_once(monkeypatch, 1, 2, 4)
        refusal = cluster.refused("reassign", "execute", wrong)
        assert refusal.startswith("broker 4 is to get replicas, and is not alive: make a new plan")
        assert throttles(cluster) == []
        alive_once(monkeypatch, 1, 2, 3)
        result = cluster.run("reassign", "execute", off)
        assert result.exit_code == 0, result.output
        assert "Broker 3 is not alive" in result.stderr
        assert throttles(cluster) == []


def test_a_move_that_waits_for_a_dead_broker_ends_elsewhere_once_that_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_RETURN_S", 0.0)
    path = tmp_path / "drained.json"
    with cli_cluster(tmp_path, brokers=3) as cluster:
        lose_a_replica(cluster, tmp_path)
        stuck = a_plan(tmp_path / "stuck.json", ("clicks", 0, [1, 3], [2, 3]))
        assert "without broker 3" in cluster.refused("reassign", "execute", stuck)
        words = ("reassign", "plan", "--only-needed", "--output", path)
        for drained in ((), ("--drain", 1)):
            told = cluster.refused(*words, *drained)
            assert told.startswith("1 partition moving already")
        cluster.done(*words, "--drain", 3)
        cluster.done("reassign", "execute", path)
        ((first, second),) = replicas(cluster)
        assert {first, second} == {1, 2}
        assert "1 done." in cluster.done("reassign", "verify", path)
        assert throttles(cluster) == []


def test_a_broker_that_is_to_get_replicas_is_waited_for_if_it_dies_amid_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cli_cluster(tmp_path, brokers=3) as cluster:
        cluster.done("topics", "create", "clicks", "--partitions", 2)
        rows = [("clicks", at, each, [*each, 3]) for at, each in enumerate(replicas(cluster))]
        path = a_plan(tmp_path / "plan.json", *(row for row in rows if row[2] != [3]))
        looks = 0
        look = execution._alive

        async def alive(asked: Cluster) -> set[int]:
            nonlocal looks
            looks += 1
            if looks == 3:  # all before the first moves are to begin has found it alive
                await asyncio.to_thread(cluster.stop_broker, 3)
                while 3 in await look(asked):
                    await asyncio.sleep(0.05)
            if looks == 5:
                await asyncio.to_thread(cluster.start_broker, 3)
                while 3 not in await look(asked):
                    await asyncio.sleep(0.05)
            return await look(asked)

        monkeypatch.setattr(execution, "_alive", alive)
        cluster.done("reassign", "execute", path)
        assert looks >= 5
        assert all(3 in each for each in replicas(cluster))
        assert throttles(cluster) == []


def test_interrupted_before_a_move_has_begun_it_leaves_no_throttle(
    cluster: CliCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.done("topics", "create", "early")
    (first,) = replicas(cluster, "early")
    path = a_plan(tmp_path / "plan.json", ("early", 0, first, [3 - first[0]]))

    async def interrupted(*_: object) -> None:
        throttled = await asyncio.to_thread(cluster.done, "configs", "list")
        assert execution.LEADER_RATE in throttled
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    back = a_plan(tmp_path / "way back.json", ("early", 0, [3 - first[0]], first))
    for words, cancels in (
        ((path,), f"`kdist reassign cancel {path}`"),
        ((back, "--reverse"), f"`kdist reassign cancel '{back}' --reverse`"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(execution, "_move", interrupted)
            result = cluster.run("reassign", "execute", *words)
        assert result.exit_code == 130
        assert "The same command goes on with the rest" in result.stderr
        assert cancels in result.stderr
        assert throttles(cluster) == []
        assert replicas(cluster, "early") == [first]


def test_a_factor_is_raised_and_the_raise_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "more.json"
    with cli_cluster(tmp_path, brokers=3) as cluster:
        cluster.done("topics", "create", "rf", "--partitions", 2, "--replication-factor", 2)
        before = replicas(cluster, "rf")
        words = ("reassign", "plan", "rf", "--only-needed", "--replication-factor")
        cluster.done(*words, 3, "--output", path)
        cluster.done("reassign", "execute", path)
        assert [len(each) for each in replicas(cluster, "rf")] == [3, 3]
        assert "2 waiting." in cluster.run("reassign", "verify", path, "--reverse").stdout
        cluster.done("reassign", "execute", path, "--reverse")
        assert replicas(cluster, "rf") == before
        cancelled = cluster.done("reassign", "cancel", path, "--reverse", "--json")
        assert json.loads(cancelled) == {"cancelled": 0, "going_back": 0, "going_on": 0}


def test_a_cancellation_says_how_what_is_under_way_still_is_turned_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    with cli_cluster(tmp_path) as cluster:
        cluster.done("topics", "create", "clicks", "--partitions", 6)
        cluster.done("reassign", "plan", "--drain", 2, "--sample", 0, "--output", path)

        async def cancelled(*_: object) -> execution.Cancelled:
            return some

        monkeypatch.setattr(execution, "cancel", cancelled)
        one = [TopicPartition("clicks", 0)]
        some = execution.Cancelled([], one, [])
        for words in ((), ("--reverse",)):
            told = cluster.done("reassign", "cancel", path, *words)
            assert f"`kdist reassign execute {' '.join(map(str, (path, *words)))}`" in told
        some = execution.Cancelled([], [], one)
        for words, other in (((), " --reverse"), (("--reverse",), "")):
            told = cluster.done("reassign", "cancel", path, *words)
            assert f"`kdist reassign execute {path}{other}`" in told


def test_without_a_throttle_an_earlier_one_is_removed_first(
    cluster: CliCluster, tmp_path: Path
) -> None:
    cluster.done("topics", "create", "freed")
    (first,) = replicas(cluster, "freed")
    path = a_plan(tmp_path / "plan.json", ("freed", 0, first, [3 - first[0]]))
    rate = f"{execution.FOLLOWER_RATE}=1"
    cluster.done("configs", "alter", "broker", 3 - first[0], "--set", rate)
    cluster.done("reassign", "execute", path, "--no-throttle")
    assert throttles(cluster) == []


def lacks(cluster: CliCluster, broker: int) -> int | None:
    """How many bytes a broker's replica of clicks-0 lacks; None if that cannot be told."""
    told = json.loads(cluster.done("topics", "describe", "clicks", "--replicas", "--json"))
    (found,) = [e for e in told["partitions"][0]["replica_states"] if e["broker"] == broker]
    return None if found["lag_bytes"] is None else int(found["lag_bytes"])


def test_a_new_disk_is_filled_no_faster_than_told_and_a_replica_in_sync_as_ever(
    tmp_path: Path,
) -> None:
    with cli_cluster(tmp_path) as cluster:
        cluster.done("topics", "create", "clicks", "--replication-factor", 2)
        told = cluster.done("reassign", "refill", 2, "--throttle", 1)
        assert told == "Broker 2 gets no more than 1 MiB/s until it is in sync.\n"
        began_s = time.monotonic()
        size = 20 << 20
        cluster.done(
            "produce", "clicks", "-X", "compression_type=none", text=("x" * 1023 + "\n") * 20_000
        )
        assert time.monotonic() - began_s < size >> 20, "it waited for the limit"
        cluster.stop_broker(2)
        began_s = time.monotonic()
        cluster.start_broker(2, is_disk_new=True)
        cluster.until(lambda: lacks(cluster, 2) is not None)
        lacked = lacks(cluster, 2)
        passed_s = time.monotonic() - began_s
        assert lacked is not None
        assert lacked > 19_000_000 - (passed_s + 2) * (1 << 20)
        assert cluster.done("reassign", "refill", 2, "--no-throttle") == (
            "Broker 2 gets what it can.\n"
        )
        cluster.until(lambda: lacks(cluster, 2) == 0)
        assert throttles(cluster) == []


def test_a_disk_that_is_filled_leaves_the_throttle_of_another_that_is_not(tmp_path: Path) -> None:
    with cli_cluster(tmp_path, brokers=3) as cluster:
        cluster.done("topics", "create", "clicks", "--replication-factor", 3)
        for broker in (2, 3):
            cluster.done("reassign", "refill", broker, "--throttle", 1)
        cluster.stop_broker(3)
        cluster.until(lambda: in_sync(cluster) == {1, 2})
        cluster.done("reassign", "refill", 2, "--no-throttle")
        cluster.start_broker(3)
        cluster.until(lambda: in_sync(cluster) == {1, 2, 3})
        assert execution.FOLLOWERS in "".join(throttles(cluster))
        cluster.done("reassign", "refill", 3, "--no-throttle")
        assert throttles(cluster) == []


def in_sync(cluster: CliCluster) -> set[int]:
    told = json.loads(cluster.done("topics", "describe", "clicks", "--json"))
    return {*told["partitions"][0]["isr"]}


def test_the_throttle_of_moves_is_not_taken_back_for_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def some_move(_: Cluster) -> dict[TopicPartition, object]:
        return {TopicPartition("clicks", 0): object()}

    with cli_cluster(tmp_path) as cluster:
        cluster.done("topics", "create", "clicks")
        cluster.done("reassign", "refill", 2)
        before = throttles(cluster)
        monkeypatch.setattr(execution, "list_partition_reassignments", some_move)
        result = cluster.run("reassign", "refill", 2, "--no-throttle")
        assert (result.exit_code, throttles(cluster)) == (1, before)


def test_partitions_leave_a_dead_broker_which_is_unthrottled_later(tmp_path: Path) -> None:
    with cli_cluster(tmp_path, brokers=3) as cluster:
        lose_a_replica(cluster, tmp_path)
        path = a_plan(tmp_path / "plan.json", ("clicks", 0, [1, 3], [1, 2]))
        result = cluster.run("reassign", "execute", path)
        assert result.exit_code == 0, result.output
        assert "Broker 3 is not alive" in result.stderr
        assert replicas(cluster) == [[1, 2]]
        assert throttles(cluster) == []


def test_where_a_plan_would_be_written_is_looked_at_first(
    cluster: CliCluster, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    refusal = cluster.refused("reassign", "plan", "--output", missing / "plan.json")
    assert refusal == f"there is no directory {missing}"
    assert cluster.run("reassign", "plan", "--output", "").exit_code == 2
