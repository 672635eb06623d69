"""Finds the broker that coordinates a group."""

from __future__ import annotations

from kdist.client.cluster import Cluster, raise_for
from kdist.errors import ApiError, Error
from kdist.protocol import find_coordinator as api
from kdist.protocol.find_coordinator import FindCoordinatorRequest

_VERSION_OF_MANY = 4  # from then on several keys at once (KIP-699)


async def find_coordinator(cluster: Cluster, group: str) -> int:
    """The coordinator's id, without retries. `ApiError`, or `NoBroker` if no broker answers."""
    await cluster.metadata()
    client = await cluster.any_client()
    if client.version_of(api.API) >= _VERSION_OF_MANY:
        request = FindCoordinatorRequest(coordinator_keys=[group])
    else:
        request = FindCoordinatorRequest(key=group)
    answer = await client.send(request)
    found = answer.coordinators[0] if answer.coordinators else answer
    raise_for(found.error_code, f"group {group}", found.error_message)
    if found.node_id not in cluster.brokers:
        raise ApiError(Error.COORDINATOR_NOT_AVAILABLE)
    node_id: int = found.node_id
    return node_id
