"""DescribeCluster, asked of brokers in virtual time."""

from __future__ import annotations

import pytest

from kdist.errors import Error
from kdist.protocol.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from kdist.protocol.operations import OMITTED
from tests.simulator.cluster import Cluster


def ask(
    cluster: Cluster,
    version: int = 1,
    *,
    endpoint_type: int = 1,
    asks_operations: bool = False,
) -> DescribeClusterResponse:
    """What one of two brokers answers."""

    async def scenario() -> DescribeClusterResponse:
        await cluster.started(1, broker_rack="r1")
        await cluster.started(2)
        client = await cluster.client(2)
        request = DescribeClusterRequest(
            endpoint_type=endpoint_type, include_cluster_authorized_operations=asks_operations
        )
        answer = await client.send(request, version)
        assert isinstance(answer, DescribeClusterResponse)
        return answer

    answer: DescribeClusterResponse = cluster.run(scenario())
    return answer


@pytest.mark.parametrize("version", range(2))
def test_brokers_controller_and_cluster_id_are_returned(version: int) -> None:
    answer = ask(Cluster(), version)
    assert (answer.error_code, answer.error_message) == (Error.NONE, None)
    brokers = [(each.broker_id, each.host, each.port, each.rack) for each in answer.brokers]
    assert brokers == [(1, "m1", 9092, "r1"), (2, "m2", 9092, None)]
    assert answer.controller_id == 1
    assert len(answer.cluster_id) == 22
    assert answer.cluster_authorized_operations == OMITTED


def test_authorized_operations_are_all_of_them() -> None:
    answer = ask(Cluster(), asks_operations=True)
    assert answer.cluster_authorized_operations == 0b1_1111_1010_0000


@pytest.mark.parametrize(
    ("endpoint_type", "error"),
    [(2, Error.MISMATCHED_ENDPOINT_TYPE), (3, Error.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_kraft_controllers_cannot_be_asked_for(endpoint_type: int, error: Error) -> None:
    answer = ask(Cluster(), endpoint_type=endpoint_type)
    assert (answer.error_code, answer.brokers) == (error, [])
    assert answer.error_message
