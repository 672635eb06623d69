"""Quotas of clients by their ids: describe those that are set, and change single ones (KIP-546).

A quota is of each broker: a client that produces to three gets three times as much. The key None
stands for the default, which each client has that has no value of its own. Brokers of Apache Kafka
also have quotas of users, which are not shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kdist.client.admin.asking import ask_controller
from kdist.client.admin.outcomes import fault_of, listed
from kdist.client.cluster import Cluster
from kdist.errors import ApiError, UserError
from kdist.protocol.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlteredQuotas,
    QuotaChange,
)
from kdist.protocol.describe_client_quotas import (
    ANY,
    CLIENT_ID,
    DescribeClientQuotasRequest,
    QuotaEntity,
    QuotaFilter,
)

Quotas = dict[str, float]


async def describe_client_quotas(cluster: Cluster) -> dict[str | None, Quotas]:
    """All quotas that are set, by client id and name; the default's under None."""
    await cluster.retried(cluster.metadata)
    everything = QuotaFilter(entity_type=CLIENT_ID, match_type=ANY, match=None)
    request = DescribeClientQuotasRequest(components=[everything], strict=True)

    async def ask() -> dict[str | None, Quotas]:
        answer = await (await cluster.any_client()).send(request)
        error = fault_of(answer.error_code, "quotas", answer.error_message)
        if error is not None:
            raise error
        return {
            entry.entity[0].entity_name: {each.key: each.value for each in entry.values}
            for entry in answer.entries or ()
        }

    return await cluster.retried(ask)


async def alter_client_quotas(
    cluster: Cluster,
    client_id: str | None,
    given: Mapping[str, float | str] | None = None,
    unset: Iterable[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Set some quotas of a client, or with None of all without their own, and unset others.

    Either all of them are changed, at once, or none. `validate_only` checks without changing.
    """
    names = listed(unset)
    values = {name: _number(name, value) for name, value in (given or {}).items()}
    changes = [QuotaChange(key=name, value=values[name], remove=False) for name in values]
    changes += [QuotaChange(key=name, value=0.0, remove=True) for name in names]
    entity = [QuotaEntity(entity_type=CLIENT_ID, entity_name=client_id)]
    request = AlterClientQuotasRequest(
        entries=[AlteredQuotas(entity=entity, ops=changes)], validate_only=validate_only
    )
    about = "all clients" if client_id is None else f"client {client_id}"
    await ask_controller(cluster, request, lambda answer: _read_change(answer, about))


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"{name} is {value!r}, and must be a number") from None


def _read_change(answer: Any, about: str) -> None:
    for each in answer.entries:
        error: ApiError | None = fault_of(each.error_code, about, each.error_message)
        if error is not None:
            raise error
