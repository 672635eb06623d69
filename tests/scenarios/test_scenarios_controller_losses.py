"""Brokers that come back without all they had: on a new disk, or after their host went down."""

from __future__ import annotations

import asyncio
import logging

import pytest
from controller_states import assign, controller_of, settle, state_of, vetted
from controller_world import Cluster, in_cluster

from kdist.controller import writing
from kdist.metrics.controller import ControllerMetrics
from kdist.model import TopicPartition
from kdist.zk import znodes
from kdist.zk.values import VettedDisk

CLICKS = TopicPartition("clicks", 0)


def metrics_of(cluster: Cluster) -> ControllerMetrics:
    return controller_of(cluster)._context.metrics


@pytest.mark.played(by=in_cluster, seed=60)
async def test_a_fast_restart_with_an_empty_disk_truncates_nobody(cluster: Cluster, /) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2, 3))
    assert state_of(cluster, CLICKS)[0].leader == 2
    cluster.nodes[2].replace_disk()
    await settle(cluster)
    await cluster.converge()
    state, _ = state_of(cluster, CLICKS)
    assert (state.leader, state.isr, state.eligible) == (3, (3,), ())
    assert metrics_of(cluster).unclean_elections == 0


@pytest.mark.played(by=in_cluster, seed=61)
async def test_the_only_replica_leads_on_after_its_host_went_down_and_the_loss_is_said(
    cluster: Cluster, /, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2,), (3,))
    with caplog.at_level(logging.WARNING):
        cluster.nodes[2].lose_page_cache()
        await settle(cluster)
        await cluster.converge()
    state, _ = state_of(cluster, CLICKS)
    assert (state.leader, state.isr, state.is_recovering) == (2, (2,), True)
    metrics = metrics_of(cluster)
    assert metrics.unclean_elections == 1
    assert metrics.recovering_partitions() == 1
    told = [each.getMessage() for each in caplog.records]
    assert "broker 2 has come back and may lack what it had not flushed when its host" in (
        "".join(told)
    )
    assert "elected for 1 partitions" in "".join(told)
    cluster.nodes[2].expire()  # nothing was lost this time
    await asyncio.sleep(1)
    await cluster.converge()
    assert metrics.unclean_elections == 1


@pytest.mark.played(by=in_cluster, seed=62)
async def test_the_only_replica_on_a_new_disk_is_not_elected_now_nor_by_the_next_controller(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2,))
    cluster.nodes[2].replace_disk()
    await settle(cluster)
    await cluster.until(lambda: state_of(cluster, CLICKS)[0].emptied == (2,))
    assert state_of(cluster, CLICKS)[0].leader == -1
    cluster.nodes[1].kill()
    await cluster.until(lambda: cluster.controller)
    cluster.nodes[2].expire()
    cluster.nodes[1].start()
    await asyncio.sleep(5)
    state, _ = state_of(cluster, CLICKS)
    assert (state.leader, state.isr, state.emptied) == (-1, (2,), (2,))


@pytest.mark.played(by=in_cluster, seed=65)
async def test_an_unclean_election_begins_when_a_topic_allows_it_and_is_told(
    cluster: Cluster, /, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (1, 2))
    cluster.nodes[2].kill()
    await cluster.until(lambda: state_of(cluster, CLICKS)[0].isr == (1,))
    cluster.nodes[2].start()
    await cluster.converge()
    cluster.nodes[1].kill()
    await cluster.until(lambda: cluster.controller)
    await cluster.until(lambda: state_of(cluster, CLICKS)[0].leader == -1)
    await asyncio.sleep(5)
    assert state_of(cluster, CLICKS)[0].leader == -1
    with caplog.at_level(logging.WARNING):
        cluster.configure("clicks", unclean_leader_election_enable="true")
        await cluster.until(lambda: state_of(cluster, CLICKS)[0].leader == 2)
    state, _ = state_of(cluster, CLICKS)
    assert (state.isr, state.is_recovering) == ((2,), True)
    assert metrics_of(cluster).unclean_elections == 1
    assert "it may lack what it had not fetched, which is lost: clicks-0" in caplog.text


@pytest.mark.played(by=in_cluster, seed=66)
async def test_a_topic_that_cannot_be_read_has_no_replica_judged_twice(cluster: Cluster, /) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2,))
    tool = cluster.nodes[3].zk
    assert tool is not None
    await tool.create(znodes.TOPIC.path("corrupt"), b"no json")
    cluster.nodes[2].lose_page_cache()
    await settle(cluster)
    await cluster.until(lambda: state_of(cluster, CLICKS)[0].leader == 2)
    epoch = state_of(cluster, CLICKS)[0].leader_epoch
    cluster.nodes[1].kill()
    await cluster.until(lambda: cluster.controller)
    await asyncio.sleep(5)
    assert state_of(cluster, CLICKS)[0].leader_epoch == epoch
    assert metrics_of(cluster).unclean_elections == 0


@pytest.mark.parametrize("is_removed", [True, False])
@pytest.mark.played(by=in_cluster, seed=67)
async def test_what_was_noted_of_disks_is_written_anew_where_it_is_removed_or_corrupt(
    cluster: Cluster, /, is_removed: bool
) -> None:
    await cluster.start()
    await settle(cluster)
    tool = cluster.nodes[3].zk
    assert tool is not None
    for path in (znodes.VETTED_DISK.path(each) for each in sorted(cluster.nodes)):
        if is_removed:
            await tool.delete(path)
        else:
            await tool.set(path, b"no json")
    if is_removed:
        await tool.delete(znodes.VETTED_DISKS.path())
    cluster.nodes[1].kill()
    noted = {
        znodes.VETTED_DISK.path(node.id): VettedDisk(node.disk, node.content).encode()
        for node in cluster.alive
    }
    tree = cluster.ensemble.tree
    await cluster.until(lambda: all(map(cluster.exists, noted)))
    await cluster.until(lambda: {path: tree.get(path).data for path in noted} == noted)
    await cluster.converge()


@pytest.mark.played(by=in_cluster, seed=68)
async def test_where_a_disk_was_noted_corruptly_its_broker_may_have_lost_everything(
    cluster: Cluster, /, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2, 3))
    await settle(cluster)
    tool = cluster.nodes[3].zk
    assert tool is not None
    await tool.set(znodes.VETTED_DISK.path(2), b"no json")
    cluster.nodes[1].kill()
    await cluster.until(lambda: state_of(cluster, CLICKS)[0].isr == (3,))
    await cluster.converge()
    assert state_of(cluster, CLICKS)[0].leader == 3
    assert vetted(cluster, 2).disk == cluster.nodes[2].disk
    assert "broker 2 may have lost everything: " in caplog.text


@pytest.mark.played(by=in_cluster, seed=69)
async def test_the_disk_of_one_and_the_page_cache_of_the_other_leave_the_other_to_lead(
    cluster: Cluster, /, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2, 3))
    cluster.nodes[2].lose_page_cache()
    await settle(cluster)
    await cluster.until(lambda: state_of(cluster, CLICKS)[0].isr == (3,))
    assert state_of(cluster, CLICKS)[0].lossy == (2,)
    with caplog.at_level(logging.WARNING):
        cluster.nodes[3].replace_disk()
        await settle(cluster)
        await cluster.converge()
    state, _ = state_of(cluster, CLICKS)
    assert (state.leader, state.isr, state.is_recovering) == (2, (2,), True)
    assert metrics_of(cluster).unclean_elections == 1
    lacks = "it may lack what it had not flushed when its host went down, which is lost"
    assert f"broker 2 was elected for 1 partitions though {lacks}: clicks-0" in caplog.text


@pytest.mark.played(by=in_cluster, seed=63)
async def test_a_loss_that_no_controller_saw_is_known_to_the_one_after_the_next_registration(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await assign(cluster, "clicks", (2, 3))
    cluster.nodes[1].kill()
    await asyncio.sleep(1)
    cluster.nodes[2].lose_page_cache()
    await asyncio.sleep(1)
    cluster.nodes[2].expire()
    assert cluster.controller is None
    await cluster.until(lambda: cluster.controller)
    await cluster.converge()
    state, _ = state_of(cluster, CLICKS)
    assert (state.leader, state.isr) == (3, (3,))


@pytest.mark.parametrize("how", ["lose_page_cache", "replace_disk"])
def test_a_controller_that_dies_at_any_turn_while_it_judges_a_disk_forgets_no_loss(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "CHUNK", 1)  # each partition is a write that can be the last
    for turn in range(1, 60):
        cluster = Cluster(seed=64)

        async def scenario(cluster: Cluster = cluster, turn: int = turn) -> None:
            await cluster.start()
            await assign(cluster, "clicks", (2, 3), (3, 2), (2,))
            registered = cluster.registered()[2]
            getattr(cluster.nodes[2], how)()
            await cluster.until(lambda: cluster.registered().get(2, registered) != registered)
            cluster.loop.arm(turn, cluster.nodes[1].kill)
            await cluster.until(lambda: not cluster.nodes[1].is_up)
            await settle(cluster)
            await asyncio.sleep(3)
            states = [state_of(cluster, TopicPartition("clicks", i))[0] for i in range(3)]
            assert [(each.leader, each.isr) for each in states[:2]] == [(3, (3,))] * 2
            is_cache = how == "lose_page_cache"
            only = states[2]
            assert (only.leader, only.is_recovering) == ((2, True) if is_cache else (-1, False))
            assert only.emptied == (() if is_cache else (2,))

        cluster.run(scenario())
