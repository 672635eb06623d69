"""The cluster as a whole: its id, controller, and brokers with their racks and API versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kdist.client.admin.asking import ask_brokers
from kdist.client.cluster import Cluster, raise_for
from kdist.errors import ApiError
from kdist.model import Broker
from kdist.protocol.api_versions import ApiVersionsRequest

_OLDEST = 0  # the version of ApiVersions that every broker since Kafka 0.10 answers


class VersionRange(NamedTuple):
    """The versions of an API that a broker supports, both ends included."""

    oldest: int
    newest: int


class ClusterView(NamedTuple):
    """The cluster's live brokers; `controller` is None while there is none.

    In a KRaft cluster, `controller` is a broker that forwards requests to the real one.
    """

    id: str | None
    controller: int | None
    brokers: tuple[Broker, ...]


async def describe_cluster(cluster: Cluster) -> ClusterView:
    """The cluster's id, controller and brokers."""
    answer = await cluster.retried(cluster.metadata)
    brokers = sorted(
        Broker(each.node_id, each.host, each.port, each.rack) for each in answer.brokers
    )
    known = {each.id for each in brokers}
    controller = answer.controller_id if answer.controller_id in known else None
    return ClusterView(answer.cluster_id, controller, tuple(brokers))


async def describe_versions(
    cluster: Cluster, patience_s: float | None = None
) -> dict[int, Mapping[str, VersionRange] | ApiError]:
    """The API versions that each broker supports, by broker id and API name.

    An API that kdist does not know is named by its key. A broker that does not answer, or not
    within `patience_s` seconds, has its error instead.
    """
    from kdist.protocol.versions import TABLE  # here, as it imports every message there is

    names = {api.key: api.name for api in TABLE}

    async def ask(broker: int) -> Mapping[str, VersionRange]:
        client = await cluster.client(broker)
        answer = await client.send(ApiVersionsRequest(), _OLDEST)
        raise_for(answer.error_code, f"broker {broker}")
        return {
            names.get(each.api_key, str(each.api_key)): VersionRange(
                each.min_version, each.max_version
            )
            for each in answer.api_keys
        }

    return await ask_brokers(cluster, ask, patience_s=patience_s)
