"""The controller in a cluster: what brokers are told, what others write, what clients hear."""

from __future__ import annotations

import asyncio
import math

import pytest
from controller_world import Cluster, Node, in_cluster

from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.delete_topics import TopicToDelete
from kdist.zk import znodes
from kdist.zk.client import Create, Delete, Set, Watch, Znode
from kdist.zk.values import TopicAssignment


def transcript(node: Node) -> list[str]:
    """What the node was told since the last time this was asked."""
    said = [line.partition(": ")[2] for line in node.peer.transcript]
    node.peer.transcript.clear()
    return said


def hush(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.peer.transcript.clear()


# Transcripts


@pytest.mark.played(by=in_cluster, seed=4, brokers=2)
async def test_brokers_hear_of_a_topic_leaders_first(cluster: Cluster, /) -> None:
    await cluster.start()
    hush(cluster)
    assert await cluster.create("clicks", on=[1, 2]) == "NONE"
    all_know = "UpdateMetadata brokers 1,2, clicks-0 leader 1 epoch 0, clicks-1 leader 2 epoch 0"
    assert transcript(cluster.nodes[1]) == ["LeaderAndIsr, clicks-0 leader 1 epoch 0", all_know]
    assert transcript(cluster.nodes[2]) == ["LeaderAndIsr, clicks-1 leader 2 epoch 0", all_know]


@pytest.mark.played(by=in_cluster, seed=4, brokers=2)
async def test_a_deleted_topic_leaves_metadata_first_then_disks_then_zookeeper(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await cluster.create("clicks", on=[1], retention_ms="1000")
    hush(cluster)
    assert await cluster.delete("clicks") == "NONE"
    gone = "UpdateMetadata brokers 1,2, clicks-0 leader -2"
    assert transcript(cluster.nodes[1]) == [gone, "StopReplica, clicks-0"]
    assert transcript(cluster.nodes[2]) == [gone]
    assert cluster.topics() == []
    assert not cluster.exists("/config/topics/clicks")
    assert cluster.queued_for_deletion() == []


@pytest.mark.played(by=in_cluster, seed=2)
async def test_a_topic_created_again_has_a_new_id_and_its_own_settings(cluster: Cluster, /) -> None:
    await cluster.start()
    await cluster.create("clicks", 5, retention_ms="1000")
    before = cluster.states()[TopicPartition("clicks", 0)]
    await cluster.delete("clicks")
    assert await cluster.create("clicks", 2) == "NONE"
    await cluster.converge()
    after = cluster.states()[TopicPartition("clicks", 0)]
    assert before
    assert after
    assert before.topic_id != after.topic_id
    settings = cluster.ensemble.tree.get(znodes.TOPIC_SETTINGS.path("clicks")).data
    assert settings == b'{"version":1,"config":{}}'


@pytest.mark.played(by=in_cluster, seed=4, brokers=2)
async def test_a_broker_that_goes_takes_its_leaders_offline_and_brings_them_back(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await cluster.create("clicks", on=[1, 2])
    hush(cluster)
    cluster.nodes[2].kill()
    await cluster.converge()
    assert transcript(cluster.nodes[1]) == ["UpdateMetadata brokers 1, clicks-1 leader -1 epoch 1"]
    cluster.nodes[2].start()
    await cluster.converge()
    update = transcript(cluster.nodes[1])
    assert update == ["UpdateMetadata brokers 1,2, clicks-1 leader 2 epoch 2"]
    assert transcript(cluster.nodes[2])[:2] == [
        "UpdateMetadata brokers 1,2",
        "LeaderAndIsr full, clicks-1 leader 2 epoch 2",
    ]


@pytest.mark.played(by=in_cluster, seed=4, brokers=2)
async def test_a_broker_whose_session_expires_leads_on_in_a_new_epoch(cluster: Cluster, /) -> None:
    await cluster.start()
    await cluster.create("clicks", on=[1, 2])
    cluster.nodes[2].expire()
    await asyncio.sleep(1)
    await cluster.converge()
    state = cluster.states()[TopicPartition("clicks", 1)]
    assert state
    assert state.leader == 2
    assert state.leader_epoch > 0


@pytest.mark.played(by=in_cluster, seed=5)
async def test_a_broker_that_registered_anew_between_two_controllers_leads_in_a_new_epoch(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await cluster.create("clicks", 3)
    led = next(p for p, update in cluster.states().items() if update and update.leader == 2)
    cluster.nodes[1].kill()
    cluster.nodes[2].expire()
    cluster.nodes[3].expire()
    await asyncio.sleep(1)  # both are back before there is a controller again
    assert cluster.controller is None
    await cluster.until(lambda: cluster.controller)
    await cluster.converge()
    state = cluster.states()[led]
    assert state
    assert (state.leader, state.leader_epoch) == (2, 1)


# What others write


@pytest.mark.played(by=in_cluster, seed=6)
async def test_a_topic_that_an_old_tool_wrote_gets_an_id_and_leaders(cluster: Cluster, /) -> None:
    await cluster.start()
    zk = cluster.nodes[3].zk
    assert zk
    data = znodes.TOPIC.encode(TopicAssignment({0: (2,), 1: (3,)}, None))
    await zk.multi([Create("/brokers/topics/old", data)])
    await cluster.until(lambda: "old" in cluster.topics())
    await cluster.converge()
    first = cluster.states()[TopicPartition("old", 0)]
    assert first
    data = znodes.TOPIC.encode(TopicAssignment({0: (2,), 1: (3,), 2: (1,)}, None))
    await zk.multi([Set("/brokers/topics/old", data)])
    await asyncio.sleep(1)
    await cluster.converge()
    assert cluster.states()[TopicPartition("old", 0)] == first
    grown = cluster.states()[TopicPartition("old", 2)]
    assert grown
    assert (grown.leader, grown.topic_id) == (1, first.topic_id)


@pytest.mark.parametrize("ms", [0, 500])
@pytest.mark.played(by=in_cluster, seed=6)
async def test_a_topic_of_ours_that_a_tool_lets_grow_has_leaders_for_all_of_it(
    cluster: Cluster, /, ms: int
) -> None:
    await cluster.start()
    await cluster.create("clicks", 2)
    await asyncio.sleep(ms / 1000)
    zk = cluster.nodes[3].zk
    assert zk
    before = cluster.topic("clicks")
    grown = before._replace(partitions={**before.partitions, 2: (1,)})
    await zk.multi([Set("/brokers/topics/clicks", znodes.TOPIC.encode(grown))])
    await asyncio.sleep(1)
    await cluster.converge()
    assert cluster.states()[TopicPartition("clicks", 2)]


@pytest.mark.played(by=in_cluster, seed=6)
async def test_topics_that_come_and_go_at_once_are_not_read(
    cluster: Cluster, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start()
    zk = cluster.nodes[1].zk
    assert zk
    read, get = [], zk.get

    async def noted(path: str, watch: Watch | None = None) -> Znode:
        read.append(path)
        return await get(path, watch)

    monkeypatch.setattr(zk, "get", noted)
    for name in ("clicks", "views"):
        assert await cluster.create(name) == "NONE"
        assert await cluster.delete(name) == "NONE"
    assert await cluster.create("clicks") == "NONE"
    await asyncio.sleep(1)
    assert read == ["/brokers/topics/clicks"]
    await cluster.delete("clicks")
    await cluster.create("views")
    cluster.nodes[3].kill()  # which holds the deletion up
    await cluster.delete("views")
    await asyncio.sleep(1)
    assert [path for path in read if "topics" in path] == ["/brokers/topics/clicks"]
    assert cluster.queued_for_deletion() == ["views"]


@pytest.mark.played(by=in_cluster, seed=7)
async def test_a_deletion_that_a_tool_asked_for_is_carried_out_and_an_unknown_one_withdrawn(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await cluster.create("clicks")
    zk = cluster.nodes[3].zk
    assert zk
    await zk.multi([Create("/admin/delete_topics/clicks"), Create("/admin/delete_topics/no")])
    await cluster.until(lambda: not cluster.queued_for_deletion())
    await cluster.converge()
    assert cluster.topics() == []


@pytest.mark.played(by=in_cluster, seed=8)
async def test_a_topic_that_cannot_be_read_does_not_stop_the_others(cluster: Cluster, /) -> None:
    await cluster.start()
    zk = cluster.nodes[3].zk
    assert zk
    await zk.multi([Create("/brokers/topics/broken", b"{")])
    assert await cluster.create("clicks") == "NONE"
    await zk.multi([Delete("/brokers/topics/broken")])
    await cluster.converge()


# Answers


@pytest.mark.played(by=in_cluster, seed=9)
async def test_a_deletion_waits_for_a_broker_that_is_down_but_clients_do_not(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await cluster.create("clicks", 3)
    cluster.nodes[3].kill()
    await cluster.converge()
    assert await cluster.delete("clicks") == "NONE"
    assert cluster.queued_for_deletion() == ["clicks"]
    assert await cluster.create("clicks") == "TOPIC_ALREADY_EXISTS"
    assert all(not node.peer.metadata for node in cluster.alive)
    assert cluster.nodes[3].peer.logs
    cluster.nodes[3].start()
    await cluster.until(lambda: not cluster.topics())
    await cluster.converge()
    assert not cluster.nodes[3].peer.logs
    assert await cluster.create("clicks") == "NONE"


@pytest.mark.played(by=in_cluster, seed=10)
async def test_a_broker_that_does_not_answer_is_a_timeout_and_the_topic_is_created(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    cluster.nodes[2].peer.is_up = False  # its session lives on
    assert await cluster.create("clicks") == "REQUEST_TIMED_OUT"
    cluster.nodes[2].peer.is_up = True
    await cluster.converge()
    assert cluster.topics() == ["clicks"]


@pytest.mark.played(by=in_cluster, seed=11)
async def test_a_partition_that_a_broker_refuses_for_now_is_told_again(cluster: Cluster, /) -> None:
    await cluster.start()
    cluster.nodes[2].peer.refusals = [Error.KAFKA_STORAGE_ERROR] * 3
    assert await cluster.create("clicks") == "NONE"
    await cluster.converge()
    assert sum(node.metrics.refused_partitions for node in cluster.alive) == 3


@pytest.mark.parametrize(("is_kdists", "counted"), [(True, 1), (False, 0)])
@pytest.mark.played(by=in_cluster, seed=11)
async def test_a_broker_of_kafkas_may_say_that_it_knows_a_leader_epoch(
    cluster: Cluster, /, is_kdists: bool, counted: int
) -> None:
    if not is_kdists:
        cluster.nodes[2].disk = cluster.nodes[2].content = None
    await cluster.start()
    cluster.nodes[2].peer.refusals = [Error.STALE_CONTROLLER_EPOCH]
    assert await cluster.create("clicks") == "NONE"
    assert sum(node.metrics.refused_partitions for node in cluster.alive) == counted


@pytest.mark.played(by=in_cluster, seed=12)
async def test_only_the_controller_takes_requests(cluster: Cluster, /) -> None:
    await cluster.start()
    bystander = cluster.nodes[2].controller
    assert bystander
    [outcome] = await bystander.delete_topics([TopicToDelete(name="clicks")], 1000)
    assert outcome.error is Error.NOT_CONTROLLER
    assert outcome.sentence


@pytest.mark.played(by=in_cluster, seed=21)
async def test_a_controller_hears_from_a_broker_that_it_was_replaced(cluster: Cluster, /) -> None:
    await cluster.start()
    first, second, third = (cluster.nodes[i] for i in (1, 2, 3))
    assert first.controller
    others = [node.controller for node in (second, third) if node.controller]
    third.peer.is_up = False
    asking = asyncio.ensure_future(cluster.create("clicks"))
    await asyncio.sleep(1)
    first.pause(60_000)
    await cluster.until(lambda: any(each.is_active for each in others))
    assert first.controller.is_active  # as far as it knows
    third.peer.controller_epoch = 2
    third.peer.is_up = True
    await cluster.until(lambda: not first.controller.is_active, patience_ms=15_000)
    await cluster.converge()
    assert await asking in ("NONE", "REQUEST_TIMED_OUT")


@pytest.mark.played(by=in_cluster, seed=13)
async def test_a_change_of_the_same_partition_is_told_once(cluster: Cluster, /) -> None:
    await cluster.start()
    await cluster.create("clicks", 3)
    cluster.nodes[2].peer.is_up = False
    await asyncio.sleep(1)
    hush(cluster)
    for count in (4, 5, 6):
        growing = asyncio.ensure_future(cluster.grow("clicks", count))
        await asyncio.sleep(0.2)
        growing.cancel()
    cluster.nodes[2].peer.is_up = True
    await cluster.converge()
    # Brokers; then all in one LeaderAndIsr, one UpdateMetadata.
    assert len(transcript(cluster.nodes[2])) == 3


@pytest.mark.played(by=in_cluster, seed=15)
async def test_metrics_show_the_controller_context_on_the_controller_and_nothing_elsewhere(
    cluster: Cluster, /
) -> None:
    await cluster.start()
    await cluster.create("clicks", 3)
    cluster.nodes[3].kill()
    await cluster.converge()
    seen = cluster.nodes[1].metrics
    assert (seen.is_active, seen.epoch, seen.brokers(), seen.topics()) == (1, 1, 2, 1)
    assert (
        seen.partitions(),
        seen.offline_partitions(),
        seen.topics_queued_for_deletion(),
    ) == (3, 1, 0)
    assert seen.elections == 0  # a first leader is not elected, and nobody came after the one lost
    assert cluster.nodes[2].metrics.is_active == 0
    assert math.isnan(cluster.nodes[2].metrics.topics())


@pytest.mark.played(by=in_cluster, seed=16)
async def test_a_clean_stop_hands_over_at_once_and_never_takes_it_back(cluster: Cluster, /) -> None:
    await cluster.start()
    first = cluster.controller
    assert first
    start_s = cluster.loop.time()
    await first.resign()
    await cluster.until(lambda: cluster.controller)
    assert cluster.loop.time() - start_s < 1
    cluster.nodes[2].expire()
    cluster.nodes[3].expire()
    await cluster.converge()
    assert not first.is_active
