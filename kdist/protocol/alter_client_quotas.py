"""AlterClientQuotas (key 49): set and remove quotas of clients (KIP-546).

version  changed
1        flexible (KIP-482)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.describe_client_quotas import QuotaEntity
from kdist.protocol.schema import float64, int16, int32, message, nullable_string, string, struct


@struct
class QuotaChange:
    """`value` has no meaning where the quota is removed."""

    key: string
    value: float64
    remove: bool


@struct
class AlteredQuotas:
    """The changes of one entity, made together or not at all."""

    entity: list[QuotaEntity]
    ops: list[QuotaChange]


@message(flexible=1)
class AlterClientQuotasRequest:
    """Entities succeed and fail one by one."""

    entries: list[AlteredQuotas]
    validate_only: bool


@struct
class AlteredQuotasResult:
    error_code: int16
    error_message: nullable_string
    entity: list[QuotaEntity]


@message(flexible=1)
class AlterClientQuotasResponse:
    throttle_time_ms: int32 = 0
    entries: list[AlteredQuotasResult]


API = Api(49, AlterClientQuotasRequest, AlterClientQuotasResponse, newest=1)
