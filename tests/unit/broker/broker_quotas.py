"""Clients with quotas of a broker in virtual time, for the tests of that."""

from __future__ import annotations

from typing import Any

from kdist.network.client import Client, ClientSettings
from kdist.protocol.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlteredQuotas,
    AlteredQuotasResult,
    QuotaChange,
)
from kdist.protocol.describe_client_quotas import (
    ANY,
    CLIENT_ID,
    USER,
    DescribeClientQuotasRequest,
    QuotaEntity,
    QuotaFilter,
)
from kdist.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.simulator.cluster import PORT, Cluster

PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"


async def named(cluster: Cluster, client_id: str, broker: int = 1) -> Client:
    """A connection of a client with this id."""
    host = cluster.network.host(f"of {client_id}")
    return await Client.connect(host, f"m{broker}", PORT, ClientSettings(client_id))


async def change(
    client: Client,
    name: str | None,
    *,
    user: tuple[str | None, ...] = (),
    unset: tuple[str, ...] = (),
    kind: str = CLIENT_ID,
    version: int = 1,
    is_trial: bool = False,
    **quotas: float,
) -> AlteredQuotasResult:
    """Change the quotas of one client, or with None the default, or of those of a user."""
    ops = [QuotaChange(key=key, value=value, remove=False) for key, value in quotas.items()]
    ops += [QuotaChange(key=key, value=0, remove=True) for key in unset]
    entity = [QuotaEntity(entity_type=USER, entity_name=each) for each in user]
    entity.append(QuotaEntity(entity_type=kind, entity_name=name))
    request = AlterClientQuotasRequest(
        entries=[AlteredQuotas(entity=entity, ops=ops)], validate_only=is_trial
    )
    (result,) = (await client.send(request, version)).entries
    assert isinstance(result, AlteredQuotasResult)
    return result


async def set_(client: Client, name: str | None, **quotas: float) -> None:
    result = await change(client, name, **quotas)
    assert (result.error_code, result.error_message) == (0, None)


async def ask(
    client: Client, *filters: QuotaFilter, is_strict: bool = False, version: int = 1
) -> Any:
    """The whole answer."""
    request = DescribeClientQuotasRequest(components=list(filters), strict=is_strict)
    return await client.send(request, version)


async def quotas(
    client: Client, match_type: int = ANY, match: str | None = None, version: int = 1
) -> dict[str | None, dict[str, float]]:
    """What each client that matches has, by name; None is the default."""
    wanted = QuotaFilter(entity_type=CLIENT_ID, match_type=match_type, match=match)
    answer = await ask(client, wanted, is_strict=True, version=version)
    assert answer.error_code == 0, answer.error_message
    return {
        entry.entity[0].entity_name: {each.key: each.value for each in entry.values}
        for entry in answer.entries
    }


async def entities(
    client: Client, *filters: tuple[str, int, str | None], is_strict: bool
) -> set[tuple[tuple[str, str | None], ...]]:
    """Who has quotas, of those that match: each as pairs of kind and name."""
    wanted = [QuotaFilter(entity_type=k, match_type=t, match=m) for k, t, m in filters]
    answer = await ask(client, *wanted, is_strict=is_strict)
    assert answer.error_code == 0, answer.error_message
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity)
        for entry in answer.entries
    }


def fetch_request(topic: str, offset: int = 0, **fields: Any) -> FetchRequest:
    """A consumer's, which waits for nothing unless it is told to."""
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    given: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, **fields}
    return FetchRequest(topics=[FetchTopic(topic=topic, partitions=[asked])], **given)
