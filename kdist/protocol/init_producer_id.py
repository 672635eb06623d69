"""InitProducerId (key 22): an id and epoch for an idempotent or transactional producer.

version  changed
0        (KIP-98)
1        throttling happens after the response is sent (KIP-219)
2        flexible (KIP-482)
3        the producer's present id and epoch, to be raised after an error (KIP-360)
4        response: PRODUCER_FENCED may come instead of INVALID_PRODUCER_EPOCH (KIP-588)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, int64, message, nullable_string


@message(flexible=2)
class InitProducerIdRequest:
    """`transactional_id` None: idempotence only, and any broker may answer."""

    transactional_id: nullable_string
    transaction_timeout_ms: int32
    producer_id: int64 = at(since=3, default=-1)
    producer_epoch: int16 = at(since=3, default=-1)


@message(flexible=2)
class InitProducerIdResponse:
    """`producer_id` is -1 if there is an error."""

    throttle_time_ms: int32 = 0
    error_code: int16
    producer_id: int64 = -1
    producer_epoch: int16


API = Api(22, InitProducerIdRequest, InitProducerIdResponse, newest=4)
