"""Metadata (key 3): the brokers, and the leaders and replicas of topics.

    version  changed
    0        topics: an empty list asks for all
    1        topics: None asks for all, an empty list for none; response: rack, controller, internal
    2        response: cluster id (KIP-78)
    3        response: throttle time (KIP-124)
    4        whether the request may create topics (KAFKA-5291)
    5        response: offline replicas (KIP-112)
    6        throttling happens after the response is sent (KIP-219)
    7        response: leader epoch (KIP-320)
    8        authorized operations of cluster and topics (KIP-430)
    9        flexible (KIP-482)
    10       topic id, both ways; brokers serve requests by id from 12 only (KIP-516)
    11       the cluster's authorized operations are gone: DescribeCluster has them (KIP-700)
    12       a topic may be asked for by id, its name then None (KIP-516)

A topic that the request created gets LEADER_NOT_AVAILABLE until it has leaders: clients retry.

Authorized operations, of topics, clusters and groups, are a bit set of what the client may do. A
bit's number is the code of Kafka's `AclOperation`. Without access control, every client may do all
that a type of resource allows.
"""

from __future__ import annotations

from kdist.model import ZERO_UUID
from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, message, nullable_string, string, struct, uuid

OMITTED = -(2**31)  # authorized operations that the request did not ask for

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = range(3, 10)
DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(10, 13)

_GOVERNING = (ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)

ON_CLUSTER = sum(1 << code for code in (*_GOVERNING, CREATE, CLUSTER_ACTION, IDEMPOTENT_WRITE))
ON_TOPIC = sum(1 << code for code in (*_GOVERNING, READ, WRITE, CREATE, DELETE))
ON_GROUP = sum(1 << code for code in (READ, DELETE, DESCRIBE))


@struct
class MetadataTopic:
    """A topic by name, or by id with the name None."""

    topic_id: uuid = at(since=10, default=ZERO_UUID, ignorable=True)
    name: nullable_string = at(nullable_since=10)


@message(flexible=9)
class MetadataRequest:
    """See the version table for what None and an empty list of topics mean."""

    topics: list[MetadataTopic] | None = at(nullable_since=1)
    allow_auto_topic_creation: bool = at(since=4, default=True)
    include_cluster_authorized_operations: bool = at(since=8, until=10, default=False)
    include_topic_authorized_operations: bool = at(since=8, default=False)


@struct
class MetadataBroker:
    """Where a broker listens."""

    node_id: int32
    host: string
    port: int32
    rack: nullable_string = at(since=1, default=None, ignorable=True)


@struct
class MetadataPartitionResult:
    """`leader_id` is -1 while there is none; replicas are broker ids, preferred leader first."""

    error_code: int16
    partition_index: int32
    leader_id: int32
    leader_epoch: int32 = at(since=7, default=-1, ignorable=True)
    replica_nodes: list[int32]
    isr_nodes: list[int32]
    offline_replicas: list[int32] = at(since=5, default=[], ignorable=True)


@struct
class MetadataTopicResult:
    """`name` is None for an unknown id."""

    error_code: int16
    name: nullable_string = at(nullable_since=12)
    topic_id: uuid = at(since=10, default=ZERO_UUID, ignorable=True)
    is_internal: bool = at(since=1, default=False, ignorable=True)
    partitions: list[MetadataPartitionResult]
    topic_authorized_operations: int32 = at(since=8, default=OMITTED)


@message(flexible=9)
class MetadataResponse:
    """`controller_id` is -1 while there is none."""

    throttle_time_ms: int32 = at(since=3, default=0, ignorable=True)
    brokers: list[MetadataBroker]
    cluster_id: nullable_string = at(since=2, default=None, ignorable=True)
    controller_id: int32 = at(since=1, default=-1, ignorable=True)
    topics: list[MetadataTopicResult]
    cluster_authorized_operations: int32 = at(since=8, until=10, default=OMITTED)


API = Api(3, MetadataRequest, MetadataResponse, newest=12)
