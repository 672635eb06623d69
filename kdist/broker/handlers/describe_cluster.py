"""DescribeCluster (key 60): brokers, controller and cluster id, from the metadata cache."""

from __future__ import annotations

from kdist.broker.metadata_cache import NO_CONTROLLER, MetadataCache
from kdist.errors import Error
from kdist.protocol.describe_cluster import (
    BROKERS,
    CONTROLLERS,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedBroker,
)
from kdist.protocol.operations import OMITTED, ON_CLUSTER


async def answer(
    request: DescribeClusterRequest, listener: str, cache: MetadataCache, cluster_id: str
) -> DescribeClusterResponse:
    """The answer for clients on `listener`; it waits until this broker has metadata."""
    error = _endpoint_fault(request.endpoint_type)
    if error is not Error.NONE:
        return DescribeClusterResponse(
            error_code=error,
            error_message=error.sentence,
            endpoint_type=request.endpoint_type,
            cluster_id="",
            brokers=[],
        )
    await cache.loaded.wait()
    brokers = cache.brokers_on(listener)
    is_listed = any(each.id == cache.controller_id for each in brokers)
    asks_operations = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        error_code=Error.NONE,
        cluster_id=cluster_id,
        controller_id=cache.controller_id if is_listed else NO_CONTROLLER,
        brokers=[
            DescribedBroker(broker_id=each.id, host=each.host, port=each.port, rack=each.rack)
            for each in brokers
        ],
        cluster_authorized_operations=ON_CLUSTER if asks_operations else OMITTED,
    )


def _endpoint_fault(endpoint_type: int) -> Error:
    if endpoint_type == BROKERS:
        return Error.NONE
    if endpoint_type == CONTROLLERS:
        return Error.MISMATCHED_ENDPOINT_TYPE
    return Error.UNSUPPORTED_ENDPOINT_TYPE
