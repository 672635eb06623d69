"""Quotas of users and clients: describe those that are set, and change single ones (KIP-546).

A quota is of each broker: a client that produces to three gets three times as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

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
    USER,
    DescribeClientQuotasRequest,
    QuotaEntity,
    QuotaFilter,
)

Quotas = dict[str, float]

EACH = "<default>"


class QuotaOwner(NamedTuple):
    """Whose quotas: a user's, a client id's, or those of a user's clients with that id.

    None is no part of it. "<default>" stands for each that has none of its own.
    """

    user: str | None = None
    client_id: str | None = None


async def describe_quotas(cluster: Cluster) -> dict[QuotaOwner, Quotas]:
    """All quotas that are set, by owner and name."""
    return await _described(cluster, DescribeClientQuotasRequest(components=[], strict=False))


async def _described(
    cluster: Cluster, request: DescribeClientQuotasRequest
) -> dict[QuotaOwner, Quotas]:
    await cluster.retried(cluster.metadata)

    async def ask() -> dict[QuotaOwner, Quotas]:
        answer = await (await cluster.any_client()).send(request)
        error = fault_of(answer.error_code, "quotas", answer.error_message)
        if error is not None:
            raise error
        return {
            _owner(entry.entity): {each.key: each.value for each in entry.values}
            for entry in answer.entries or ()
            if {part.entity_type for part in entry.entity} <= {USER, CLIENT_ID}
        }

    return await cluster.retried(ask)


async def describe_client_quotas(cluster: Cluster) -> dict[str | None, Quotas]:
    """The quotas of client ids alone, by client id and name; the default's under None."""
    wanted = QuotaFilter(entity_type=CLIENT_ID, match_type=ANY, match=None)
    found = await _described(cluster, DescribeClientQuotasRequest(components=[wanted], strict=True))
    return {
        None if owner.client_id == EACH else owner.client_id: each for owner, each in found.items()
    }


async def alter_quotas(
    cluster: Cluster,
    owner: QuotaOwner,
    given: Mapping[str, float | str] | None = None,
    unset: Iterable[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Set some quotas, and unset others.

    Either all of them are changed, at once, or none. `validate_only` checks without changing.
    """
    names = listed(unset)
    values = {name: _number(name, value) for name, value in (given or {}).items()}
    changes = [QuotaChange(key=name, value=values[name], remove=False) for name in values]
    changes += [QuotaChange(key=name, value=0.0, remove=True) for name in names]
    entity = [
        QuotaEntity(entity_type=kind, entity_name=None if name == EACH else name)
        for kind, name in ((USER, owner.user), (CLIENT_ID, owner.client_id))
        if name is not None
    ]
    request = AlterClientQuotasRequest(
        entries=[AlteredQuotas(entity=entity, ops=changes)], validate_only=validate_only
    )
    about = _shown(owner)
    await ask_controller(cluster, request, lambda answer: _read_change(answer, about))


async def alter_client_quotas(
    cluster: Cluster,
    client_id: str | None,
    given: Mapping[str, float | str] | None = None,
    unset: Iterable[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """As `alter_quotas`, of a client id alone, or with None of all without their own."""
    owner = QuotaOwner(client_id=EACH if client_id is None else client_id)
    await alter_quotas(cluster, owner, given, unset, validate_only=validate_only)


def _owner(parts: Iterable[QuotaEntity]) -> QuotaOwner:
    names = {each.entity_type: each.entity_name for each in parts}
    user, client_id = (
        (EACH if names[kind] is None else names[kind]) if kind in names else None
        for kind in (USER, CLIENT_ID)
    )
    return QuotaOwner(user, client_id)


def _shown(owner: QuotaOwner) -> str:
    parts = (("client", owner.client_id), ("user", owner.user))
    shown = (f"all {noun}s" if name == EACH else f"{noun} {name}" for noun, name in parts if name)
    return " of ".join(shown)


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
