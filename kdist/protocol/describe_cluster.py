"""DescribeCluster (key 60): the brokers, the controller, and the cluster's id (KIP-700).

version  changed
0        flexible from the start (KIP-482)
1        whether brokers or controllers are asked for (KIP-919)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.metadata import OMITTED
from kdist.protocol.schema import at, int8, int16, int32, message, nullable_string, string, struct

BROKERS, CONTROLLERS = 1, 2  # endpoint types


@message(flexible=0)
class DescribeClusterRequest:
    """Controllers of their own, an endpoint type of KRaft, are UNSUPPORTED_ENDPOINT_TYPE."""

    include_cluster_authorized_operations: bool
    endpoint_type: int8 = at(since=1, default=BROKERS)


@struct
class DescribedBroker:
    """A broker that is alive, at the listener that the request came in on."""

    broker_id: int32
    host: string
    port: int32
    rack: nullable_string = None


@message(flexible=0)
class DescribeClusterResponse:
    """`controller_id` -1: none is known."""

    throttle_time_ms: int32 = 0
    error_code: int16
    error_message: nullable_string = None
    endpoint_type: int8 = at(since=1, default=BROKERS)
    cluster_id: string
    controller_id: int32 = -1
    brokers: list[DescribedBroker]
    cluster_authorized_operations: int32 = OMITTED


API = Api(60, DescribeClusterRequest, DescribeClusterResponse, newest=1)
