"""UpdateMetadata (key 6): the controller tells every broker the state of the cluster.

    version  changed
    0        partitions in one list; one host and port for each broker
    1        many endpoints for each broker (KIP-2)
    2        rack (KIP-36)
    3        listener names (KIP-103)
    4        offline replicas (KIP-112)
    5        broker epoch (KIP-380); partitions by topic
    6        flexible (KIP-482)
    7        topic id (KIP-516)
    8        whether the controller is a KRaft one; type of the request (KIP-866)

Between brokers only.
"""

from __future__ import annotations

from kdist.model import ZERO_UUID
from kdist.protocol.api import Api
from kdist.protocol.schema import (
    at,
    int8,
    int16,
    int32,
    int64,
    message,
    nullable_string,
    string,
    struct,
    uuid,
)


@struct
class UpdatedPartition:
    """`leader` is -1 while there is none, -2 while the topic is being deleted."""

    topic_name: string = at(until=4, default="", ignorable=True)
    partition_index: int32
    controller_epoch: int32
    leader: int32
    leader_epoch: int32
    isr: list[int32]
    zk_version: int32
    replicas: list[int32]
    offline_replicas: list[int32] = at(since=4, default=[], ignorable=True)


@struct
class UpdatedTopic:
    topic_name: string
    topic_id: uuid = at(since=7, default=ZERO_UUID, ignorable=True)
    partition_states: list[UpdatedPartition]


@struct
class Endpoint:
    """`security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    port: int32
    host: string
    listener: string = at(since=3, default="", ignorable=True)
    security_protocol: int16


@struct
class LiveBroker:
    id: int32
    v0_host: string = at(until=0, default="", ignorable=True)
    v0_port: int32 = at(until=0, default=0, ignorable=True)
    endpoints: list[Endpoint] = at(since=1, default=[], ignorable=True)
    rack: nullable_string = at(since=2, default=None, ignorable=True)


@message(flexible=6)
class UpdateMetadataRequest:
    """Up to version 4 `ungrouped_partition_states`, from 5 on `topic_states`."""

    controller_id: int32
    is_kraft_controller: bool = at(since=8, default=False)
    type: int8 = at(since=8, tag=0, default=0)
    controller_epoch: int32
    broker_epoch: int64 = at(since=5, default=-1, ignorable=True)
    ungrouped_partition_states: list[UpdatedPartition] = at(until=4, default=[])
    topic_states: list[UpdatedTopic] = at(since=5, default=[])
    live_brokers: list[LiveBroker]


@message(flexible=6)
class UpdateMetadataResponse:
    """STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH, or nothing."""

    error_code: int16


API = Api(6, UpdateMetadataRequest, UpdateMetadataResponse, newest=8, is_between_brokers=True)
