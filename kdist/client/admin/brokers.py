"""The cluster as a whole: its id, its controller, its brokers with racks, and what they speak."""

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
    """Versions of an API that a broker answers, both ends included."""

    oldest: int
    newest: int


class ClusterView(NamedTuple):
    """The brokers that are there now; `controller` is None while there is none.

    In a cluster of KRaft it is the broker that such requests go to, which passes them on.
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
    """What each broker speaks, by id and API; an API that is not known here goes by its key.

    A broker that does not answer, within `patience_s` seconds if given, has its error in its place.
    """
    from kdist.protocol.versions import TABLE  # every message there is: others need few

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
