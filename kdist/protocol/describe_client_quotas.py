"""DescribeClientQuotas (key 48): the quotas of clients, found by their entities (KIP-546).

version  changed
1        flexible (KIP-482)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import (
    float64,
    int8,
    int16,
    int32,
    message,
    nullable_string,
    string,
    struct,
)

CLIENT_ID, USER, IP = "client-id", "user", "ip"  # types of entities
EXACT, DEFAULT, ANY = range(3)  # how a name is matched: this one, the default, any


@struct
class QuotaFilter:
    """What an entity must have; `match` is the name where that is matched exactly."""

    entity_type: string
    match_type: int8
    match: nullable_string


@message(flexible=1)
class DescribeClientQuotasRequest:
    """`strict`: only entities that have the filters' types and no others."""

    components: list[QuotaFilter]
    strict: bool


@struct
class QuotaEntity:
    """One part of what a quota is for; without a name, it is the default of all of its type."""

    entity_type: string
    entity_name: nullable_string


@struct
class QuotaValue:
    key: string
    value: float64


@struct
class QuotaEntry:
    """An entity, and its own quotas."""

    entity: list[QuotaEntity]
    values: list[QuotaValue]


@message(flexible=1)
class DescribeClientQuotasResponse:
    """`entries` is None after an error."""

    throttle_time_ms: int32 = 0
    error_code: int16
    error_message: nullable_string = None
    entries: list[QuotaEntry] | None = None


API = Api(48, DescribeClientQuotasRequest, DescribeClientQuotasResponse, newest=1)
