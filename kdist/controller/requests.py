"""The controller's requests to one broker, built from the controller context (pure).

Versions are those of Kafka 3.9's ZooKeeper mode. A request of type FULL replaces all that the
broker was sent before. It is the first on each connection, so that nothing half sent by an earlier
controller remains. Partitions are sorted, so that the same context gives the same bytes.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from kdist.controller.context import LEADER_DURING_DELETION, ControllerContext, LiveBroker
from kdist.model import LeaderAndIsr, TopicPartition
from kdist.protocol.alter_partition import RECOVERED, RECOVERING
from kdist.protocol.leader_and_isr import (
    FULL,
    INCREMENTAL,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LiveLeader,
)
from kdist.protocol.stop_replica import StoppedPartition, StoppedTopicState, StopReplicaRequest
from kdist.protocol.update_metadata import Endpoint as WireEndpoint
from kdist.protocol.update_metadata import (
    LiveBroker as WireBroker,
)
from kdist.protocol.update_metadata import (
    UpdatedPartition,
    UpdatedTopic,
    UpdateMetadataRequest,
)

LEADER_AND_ISR_VERSION = 7
STOP_REPLICA_VERSION = 4
UPDATE_METADATA_VERSION = 8

EPOCH_DURING_DELETION = -2  # a leader epoch that fences nothing (KIP-570)
SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class ControllerIdAndEpoch(NamedTuple):
    """The sender of a request: the controller's broker id and epoch."""

    controller_id: int
    controller_epoch: int


def leader_and_isr(
    cluster: ControllerContext,
    controller: ControllerIdAndEpoch,
    to: LiveBroker,
    partitions: Iterable[TopicPartition],
    is_full: bool,
) -> LeaderAndIsrRequest:
    """What `to` leads and follows among `partitions`; among all of them, if `is_full`.

    With `is_full`, `to` stops leading and following anything else, except partitions of unreadable
    topics: those topics are listed without partitions, and the broker keeps what it has of them.
    """
    states = _states(cluster, cluster.tally.concerning([to.id]) if is_full else partitions)
    mine = {each: state for each, state in states.items() if to.id in cluster.replicas(each)}
    leaders = {state.leader for state in mine.values()} & cluster.alive
    doubtful = sorted(cluster.unreadable - cluster.topics.keys()) if is_full else []
    return LeaderAndIsrRequest(
        controller_id=controller.controller_id,
        controller_epoch=controller.controller_epoch,
        broker_epoch=to.epoch,
        type=FULL if is_full else INCREMENTAL,
        topic_states=[
            *(
                LeaderAndIsrTopic(
                    topic_name=name,
                    topic_id=cluster.topics[name].id,
                    partition_states=[_led(cluster, each, mine[each]) for each in members],
                )
                for name, members in _by_topic(mine)
            ),
            *(LeaderAndIsrTopic(topic_name=name, partition_states=[]) for name in doubtful),
        ],
        live_leaders=[_live_leader(cluster.brokers[leader]) for leader in sorted(leaders)],
    )


def update_metadata(
    cluster: ControllerContext,
    controller: ControllerIdAndEpoch,
    to: LiveBroker,
    partitions: Iterable[TopicPartition],
    deleted: Mapping[TopicPartition, uuid.UUID],
    is_full: bool,
    rows: list[UpdatedTopic] | None = None,
) -> UpdateMetadataRequest:
    """All live brokers, and the state of `partitions`; of all partitions, if `is_full`.

    `deleted` are partitions of deleted topics, with the topic's id. They come first, since a topic
    of the same name may have been created since. With `is_full`, all topics that are being deleted
    are included: the broker may have been away when that was announced. `rows` is given if the
    states were brought together before, by `add_metadata`.
    """
    current = rows
    if current is None:
        current = []
        chosen = cluster.sorted_partitions() if is_full else sorted(partitions)
        add_metadata(cluster, chosen, current)
    if is_full:
        queued_for_deletion = (cluster.topics[name] for name in cluster.queued_for_deletion)
        deleted = {
            **deleted,
            **{each: topic.id for topic in queued_for_deletion for each in topic.partitions},
        }
    removed = [
        UpdatedTopic(
            topic_name=name,
            topic_id=deleted[members[0]],
            partition_states=[_removed(controller, each) for each in members],
        )
        for name, members in _by_topic(deleted)
    ]
    return UpdateMetadataRequest(
        controller_id=controller.controller_id,
        type=FULL if is_full else INCREMENTAL,
        controller_epoch=controller.controller_epoch,
        broker_epoch=to.epoch,
        topic_states=removed + current,
        live_brokers=[_live_broker(broker) for _, broker in sorted(cluster.brokers.items())],
    )


def add_metadata(
    cluster: ControllerContext, partitions: Iterable[TopicPartition], rows: list[UpdatedTopic]
) -> None:
    """Add the states of these partitions, which are sorted, to those of others before them."""
    for partition, state in _states(cluster, partitions).items():
        name, topic_id = partition.topic, cluster.topics[partition.topic].id
        if not rows or (rows[-1].topic_name, rows[-1].topic_id) != (name, topic_id):
            rows.append(UpdatedTopic(topic_name=name, topic_id=topic_id, partition_states=[]))
        rows[-1].partition_states.append(_updated(cluster, partition, state))


def stop_replica(
    cluster: ControllerContext,
    controller: ControllerIdAndEpoch,
    to: LiveBroker,
    deleted: Collection[TopicPartition],
    removed: Collection[TopicPartition],
    stopped: Collection[TopicPartition],
) -> StopReplicaRequest:
    """Have `to` delete its replicas of `deleted`, and fetch no more for those of `stopped`.

    Those of `removed` were moved away: they are deleted, unless `to` knows of a newer epoch, in
    which they may be back. Of `stopped` only those that still need no fetching: not in the ISR, and
    not led.
    """
    epochs = {each: state.leader_epoch for each, state in _states(cluster, removed).items()}
    epochs |= dict.fromkeys(deleted, EPOCH_DURING_DELETION)
    for partition, state in _states(cluster, stopped).items():
        if partition not in epochs and to.id not in (state.leader, *state.isr):
            epochs[partition] = state.leader_epoch
    return StopReplicaRequest(
        controller_id=controller.controller_id,
        controller_epoch=controller.controller_epoch,
        broker_epoch=to.epoch,
        topic_states=[
            StoppedTopicState(
                topic_name=name,
                partition_states=[
                    StoppedPartition(
                        partition_index=each.partition,
                        leader_epoch=epochs[each],
                        delete_partition=each in deleted or each in removed,
                    )
                    for each in members
                ],
            )
            for name, members in _by_topic(epochs)
        ],
    )


def _states(
    cluster: ControllerContext, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, LeaderAndIsr]:
    """The states to send: of partitions that have one and whose topic is not being deleted."""
    found: dict[TopicPartition, LeaderAndIsr] = {}
    for partition in partitions:
        state = cluster.leader_and_isr(partition)
        if state is not None and partition.topic not in cluster.queued_for_deletion:
            found[partition] = state
    return found


def _by_topic(
    partitions: Iterable[TopicPartition],
) -> Iterable[tuple[str, list[TopicPartition]]]:
    for name, members in groupby(sorted(partitions), key=lambda each: each.topic):
        yield name, list(members)


def _led(
    cluster: ControllerContext, partition: TopicPartition, state: LeaderAndIsr
) -> LeaderAndIsrPartition:
    topic = cluster.topics[partition.topic]
    return LeaderAndIsrPartition(
        partition_index=partition.partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        partition_epoch=state.zk_version,
        replicas=list(cluster.replicas(partition)),
        adding_replicas=list(topic.adding.get(partition.partition, ())),
        removing_replicas=list(topic.removing.get(partition.partition, ())),
        is_new=state.leader_epoch == 0,
        leader_recovery_state=RECOVERING if state.is_recovering else RECOVERED,
        eligible_replicas=list(state.eligible),
    )


def _updated(
    cluster: ControllerContext, partition: TopicPartition, state: LeaderAndIsr
) -> UpdatedPartition:
    replicas = cluster.replicas(partition)
    return UpdatedPartition(
        partition_index=partition.partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        zk_version=state.zk_version,
        replicas=list(replicas),
        offline_replicas=[each for each in replicas if not cluster.is_electable(each)],
    )


def _removed(controller: ControllerIdAndEpoch, partition: TopicPartition) -> UpdatedPartition:
    return UpdatedPartition(
        partition_index=partition.partition,
        controller_epoch=controller.controller_epoch,
        leader=LEADER_DURING_DELETION,
        leader_epoch=EPOCH_DURING_DELETION,
        isr=[],
        zk_version=0,
        replicas=[],
    )


def _live_leader(leader: LiveBroker) -> LiveLeader:
    return LiveLeader(broker_id=leader.id, host_name=leader.address.host, port=leader.address.port)


def _live_broker(live: LiveBroker) -> WireBroker:
    return WireBroker(
        id=live.id,
        endpoints=[
            WireEndpoint(
                port=each.listener.port,
                host=each.listener.host,
                listener=each.listener.name,
                security_protocol=SECURITY_PROTOCOLS[each.protocol],
            )
            for each in live.registration.endpoints
            if each.protocol in SECURITY_PROTOCOLS
        ],
        rack=live.registration.rack,
    )
